"""Charts of an evaluation, of the data and of the trainings, as Vega-Lite specifications.

The page draws them with the library in `js_lib_vega_embed`: Vega, Vega-Lite and Vega-Embed as they are published, in a
wheel of 0.6 MB. Specifications hold their data and no expressions. The colours are Okabe and Ito's, which colour-blind
people can distinguish; each has a contrast of at least 3 to white and to the page's dark background, so a chart needs
no other colours at night. Text and axes get the page's colours there (`report.js`).
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import js_lib_vega_embed
import numpy as np

from gnn_encoder.artifacts.history import History
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.inference.diffusion import COSINES, Diffusion
from gnn_encoder.report.profile import DataProfile

Spec = dict[str, Any]
"""A Vega-Lite specification."""
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"
COLOURS = (GREY, "#56B4E9", "#E69F00", BLUE, RED, GREEN, "#CC79A7", "#000000")
BETTER, EQUAL, WORSE, BASELINE = "significantly better", "no significant difference", "significantly worse", "baseline"
KINDS = {BETTER: BLUE, EQUAL: GREY, WORSE: RED, BASELINE: GREEN}
"""How a system differs from the baseline → its colour."""
BINS = 40
CELLS = 50
"""Cells of a distribution of cosines; a divisor of `diffusion.BINS`."""
DEGREES = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, np.inf))
"""Ranges of degrees; each range has one bar."""
LOSS, DEV = "loss", "dev_pool/RR_at_10"
POINTS = 200
"""Most points of a curve."""
ROW = 17
"""Height of a system or a step in a chart, in pixels."""
ANY = {"zero": False}
"""The scale of an axis that need not begin at 0."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"


@cache
def library() -> str:
    """Returns the JavaScript that draws the charts."""
    folder = files(js_lib_vega_embed) / "static" / "js_lib_vega_embed"
    return (folder / "vega-embed-full.js").read_text("utf-8")


def kind_of(metrics: Mapping[str, Any], split: str, system: str) -> str:
    """Returns how a system's first measure differs from the baseline's, a key of `KINDS`."""
    baseline, measure = metrics["baseline"], metrics["measures"][0]
    if system == baseline:
        return BASELINE
    p = metrics["p_holm"].get(split, {}).get(system, {}).get(measure)
    if p is None or p >= SIGNIFICANT:
        return EQUAL
    means = metrics["results"][split]
    return BETTER if means[system][measure] > means[baseline][measure] else WORSE


def systems_chart(rows: Sequence[Mapping[str, Any]], measure: str, baseline: float, domain: Sequence[float]) -> Spec:
    """Draws each system's mean with its interval; the recommended one is larger, the baseline a line.

    Args:
        rows: `system`, `mean`, `low`, `high`, `kind` (a key of `KINDS`) and `recommended`.
        domain: ends of the axis, which charts beside each other share.
    """
    order, axis = [row["system"] for row in rows], {"labelLimit": 230, "ticks": False, "domain": False}
    y = _name("system", sort=order, axis=axis | {"labelPadding": 6})
    x: Spec = {"type": "quantitative", "scale": {"domain": list(domain), "zero": False}, "title": measure}
    x |= {"axis": {"grid": True, "tickCount": 6, "format": ".2f"}}
    tooltip = [_tip("system", "system"), _tip("mean", measure, ".3f"), _tip("low", "from", ".3f")]
    tooltip += [_tip("high", "to", ".3f"), _tip("kind", "against the baseline")]
    size, shape = _size_and_shape(55, 190)
    layers: list[Spec] = [
        {
            "mark": {"type": "rule", "strokeDash": [5, 3], "color": GREEN, "size": 1.5},
            "data": {"values": [{"baseline": baseline}]},
            "encoding": {"x": {"field": "baseline", **x}, "y": None, "color": None, "tooltip": None},
        },
        {"mark": {"type": "rule", "size": 2.5}, "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}}},
        {
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {"x": {"field": "mean", **x}, "size": size, "shape": shape},
        },
    ]
    encoding = {"y": y, "color": _colour("kind", KINDS, title=None), "tooltip": tooltip}
    return _chart(rows, ROW * len(rows), encoding=encoding, layer=layers)


def domain_of(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the ends of an axis on which all intervals fit, at multiples of 0.05."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    return [round(math.floor(20 * low) / 20, 2), round(min(1.0, math.ceil(20 * high + 0.01) / 20), 2)]


def cost_chart(rows: Sequence[Mapping[str, Any]], cost: str, title: str, measure: str) -> Spec:
    """Draws the systems' means against a cost, a field of `rows`; those that nothing beats in both are joined."""
    rows = [row for row in rows if row.get(cost) is not None]
    front, best = [], -math.inf
    for row in sorted(rows, key=lambda row: (row[cost], -row["mean"])):
        if row["mean"] > best:
            front.append(row)
            best = row["mean"]
    costs = [row[cost] for row in rows]
    wide = max(costs) > 20 * min(costs) > 0
    form = "~s" if max(costs) >= 10_000 else "~r"
    x = _number(cost, title, scale={"type": "log"} if wide else {"zero": False, "nice": True})
    x |= {"axis": {"tickCount": 4, "format": form, "grid": not wide}}
    y = _number("mean", measure, scale=ANY, axis={"tickCount": 4, "format": ".3~f", "grid": True})
    size, shape = _size_and_shape(40, 160)
    tooltip = [_tip("system", "system"), _tip("mean", measure, ".3f"), _tip(cost, title, ".1f")]
    # A label stands where it has room. The cheapest system has one if the recommended one leaves that side free.
    middle = math.sqrt(min(costs) * max(costs)) if wide else (min(costs) + max(costs)) / 2
    labelled = [(row, *(("right", -9) if row[cost] > middle else ("left", 7))) for row in rows if row["recommended"]]
    if all(side == "right" for _, side, _ in labelled):
        labelled += [(row, "left", 7) for row in front[:1] if not row["recommended"]]
    layers: list[Spec] = [
        {
            "mark": {"type": "line", "color": GREY, "size": 1, "interpolate": "step-after", "strokeDash": [2, 2]},
            "data": {"values": front},
        },
        {
            "mark": {"type": "point", "filled": True, "opacity": 0.9},
            "encoding": {"color": _colour("kind", KINDS), "size": size, "shape": shape, "tooltip": tooltip},
        },
    ]
    for row, side, shift in labelled:
        mark = {"type": "text", "align": side, "dx": shift, "dy": -6, "fontSize": 11}
        layers.append({"mark": mark, "data": {"values": [row]}, "encoding": {"text": {"field": "system"}}})
    return _chart(rows, 150, encoding={"x": x, "y": y}, layer=layers)


def gains_chart(gains: np.ndarray, measure: str) -> Spec:
    """Draws how many queries gained or lost how much, from gains [n] in -1…1; equal queries are left out."""
    counts, edges = np.histogram(gains[gains != 0], np.linspace(-1, 1, 21))
    rows = [
        {"from": round(float(low), 1), "to": round(float(high), 1), "queries": int(count), "side": side}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
        for side in ["won" if low + high > 0 else "lost"]
    ]
    x = _number("from", f"{measure} gained", bin={"binned": True, "step": 0.1}, axis={"format": "+.1f"})
    tooltip = [_tip("from", "from", ".1f"), _tip("to", "to", ".1f"), _tip("queries", "queries")]
    return _bars(
        rows, 130, x, "queries", x2={"field": "to"}, color=_colour("side", {"won": BLUE, "lost": RED}), tooltip=tooltip
    )


def time_chart(rows: Sequence[Mapping[str, Any]], value: str, title: str) -> Spec:
    """Draws a bar for each of `rows`, which have `step` and a `value`, in the given order."""
    y = _name("step", sort=None, axis={"labelLimit": 260, "ticks": False, "domain": False})
    x = _number(value, title, axis={"tickCount": 5, "grid": True})
    encoding = {"y": y, "x": x, "tooltip": [_tip("step", "step"), _tip(value, title)]}
    return _chart(rows, ROW * len(rows), mark={"type": "bar", "color": BLUE, "height": 11}, encoding=encoding)


def training_charts(history: History) -> dict[str, Spec]:
    """Returns {title of a training: its loss by step, and the dev measure after each epoch, if there was one}."""
    charts = {}
    x = _number("step", "step", axis={"tickCount": 4, "grid": False})
    for title, record in history.items():
        losses, measured = record.curves.get(LOSS), record.curves.get(DEV, [])
        if not losses:
            continue
        loss = _number("value", "loss", axis={"tickCount": 4}, scale={"zero": True})
        mark = {"type": "line", "color": BLUE, "size": 1.2}
        line = [{"step": step, "value": value} for step, value in losses[:: -(-len(losses) // POINTS)]]
        layers: list[Spec] = [{"data": {"values": line}, "mark": mark, "encoding": {"x": x, "y": loss}}]
        if measured:
            last = losses[-1][0] / measured[-1][0]
            points = [{"step": epoch * last, "value": value} for epoch, value in measured]
            dev = _number("value", "dev MRR@10", axis={"tickCount": 4}, scale={"domain": [0, 1]})
            mark = {"type": "point", "filled": True, "color": RED, "shape": "diamond", "size": 60}
            encoding = {"x": x, "y": dev, "tooltip": [_tip("value", "dev MRR@10", ".3f")]}
            layers.append({"data": {"values": points}, "mark": mark, "encoding": encoding})
        of_two = {"resolve": {"scale": {"y": "independent"}}} if measured else {}
        charts[title] = {"$schema": SCHEMA, "width": "container", "height": 110, "layer": layers, **of_two}
    return charts


def profile_charts(profile: DataProfile) -> dict[str, Spec]:
    """Returns the distributions of text lengths and of degrees."""
    longest = max(int(words.max()) for words in profile.words.values())
    edges = np.geomspace(1, longest + 1, BINS)
    rows: list[dict[str, Any]] = []
    for kind, words in profile.words.items():
        counts, _ = np.histogram(words, edges)
        shares = (counts / len(words)).round(5).tolist()
        rows += [
            {"words": round(edge, 2), "share": share, "texts": kind}
            for edge, share in zip(edges.tolist(), shares, strict=False)
        ]
    lengths = _chart(
        rows,
        150,
        mark={"type": "line", "interpolate": "step-after", "size": 1.5},
        encoding={
            "x": _number("words", "words", scale={"type": "log"}, axis={"tickCount": 5}),
            "y": _number("share", "share of texts", axis={"tickCount": 4}),
            "color": _lines("texts", list(profile.words)),
        },
    )
    names = [f"{low}" if low == high else f"{low}–{high}" if high < np.inf else f"{low}+" for low, high in DEGREES]
    inside = [float(((profile.degrees >= low) & (profile.degrees <= high)).mean()) for low, high in DEGREES]
    x: Spec = {"field": "queries", "type": "ordinal", "sort": None, "axis": {"labelAngle": 0}}
    degrees = _bars(
        [{"queries": name, "share": share} for name, share in zip(names, inside, strict=True)],
        150,
        x | {"title": "training queries of a passage in the graph"},
        "share",
        tooltip=[_tip("queries", "queries"), _tip("share", "share", ".3f")],
    )
    return {"lengths": lengths, "degrees": degrees}


def sweep_chart(
    results: Mapping[str, Any], deviations: Mapping[str, Any], points: Sequence[tuple[float, str]], axis: str,
    measure: str, baseline: str,
) -> Spec:  # fmt: skip
    """Draws a measure of variants along one setting, and the baseline as a line.

    Args:
        results, deviations: {variant: {measure: value}}; a variant may have no deviation.
        points: (value, variant), ascending.
    """
    rows = []
    for value, variant in points:
        mean, spread = results[variant][measure], deviations.get(variant, {}).get(measure, 0.0)
        rows.append({"variant": variant, "at": value, "mean": mean, "low": mean - spread, "high": mean + spread})
    x, name = _number("at", axis, axis={"grid": False}), mean_name(measure)
    mean_axis, low_axis = (_number(field, name, scale=ANY) for field in ("mean", "low"))
    layers: list[Spec] = [
        {"mark": {"type": "line", "point": True, "color": BLUE}, "encoding": {"x": x, "y": mean_axis}},
        {"mark": {"type": "rule", "color": BLUE}, "encoding": {"x": x, "y": low_axis, "y2": {"field": "high"}}},
        {
            "mark": {"type": "rule", "strokeDash": [5, 3], "color": GREEN},
            "data": {"values": [{"mean": results[baseline][measure]}]},
            "encoding": {"y": mean_axis},
        },
    ]
    return _chart(rows, 180, layer=layers)


def line_chart(points: Sequence[tuple[float, float]], axis: str, title: str) -> Spec:
    """Draws points (x, y), joined."""
    encoding = {"x": _number("x", axis, scale=ANY, axis={"grid": False}), "y": _number("y", title, scale=ANY)}
    rows = [{"x": x, "y": y} for x, y in points]
    return _chart(rows, 180, mark={"type": "line", "point": True, "color": BLUE}, encoding=encoding)


def diffusion_charts(diffusions: Mapping[str, Diffusion]) -> dict[str, Spec]:
    """Returns the distribution of each kind of cosine, a line for each encoder (BERT-DMN Fig. 3)."""
    edges, charts = np.linspace(-1.0, 1.0, CELLS + 1).tolist(), {}
    for kind, cosine in enumerate(COSINES):
        rows = []
        for name, diffusion in diffusions.items():
            counts = diffusion.counts[kind].reshape(CELLS, -1).sum(axis=1)
            shares = (counts / max(counts.sum(), 1)).tolist()
            rows += [
                {"cosine": edge, "share": share, "encoder": name} for edge, share in zip(edges, shares, strict=False)
            ]
        encoding = {
            "x": _number("cosine", cosine, axis={"grid": False}),
            "y": _number("share", "share of the cosines"),
            "color": _lines("encoder", list(diffusions)),
        }
        charts[cosine] = _chart(rows, 160, mark={"type": "line", "interpolate": "step-after"}, encoding=encoding)
    return charts


def _chart(rows: Sequence[Mapping[str, Any]], height: Any, **parts: Any) -> Spec:
    """Returns a specification with its rows, as wide as its place on the page; `parts`: marks and encodings."""
    return {"$schema": SCHEMA, "data": {"values": list(rows)}, "width": "container", "height": height, **parts}


def _bars(rows: Sequence[Mapping[str, Any]], height: int, x: Spec, y: str, **encodings: Any) -> Spec:
    values: Spec = {"field": y, "type": "quantitative", "axis": {"tickCount": 4}}
    return _chart(rows, height, mark={"type": "bar", "color": BLUE}, encoding={"x": x, "y": values, **encodings})


def _number(field: str, title: str, **parts: Any) -> Spec:
    return {"field": field, "type": "quantitative", "title": title, **parts}


def _name(field: str, **parts: Any) -> Spec:
    """Returns the encoding of a field of names, on an axis without a title."""
    return {"field": field, "type": "nominal", "title": None, **parts}


def _colour(field: str, colours: Mapping[str, str], **parts: Any) -> Spec:
    """Returns the colours of a field's values, without a legend."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None, **parts}


def _lines(field: str, names: list[str]) -> Spec:
    """Returns the colours of named lines, with a legend above."""
    colours = [BLUE, RED, GREEN, GREY, *COLOURS[1:3], COLOURS[6]][: len(names)]
    legend = {"orient": "top", "title": None, "columns": 2}
    return {"field": field, "type": "nominal", "scale": {"domain": names, "range": colours}, "legend": legend}


def _size_and_shape(usual: int, recommended: int) -> tuple[Spec, Spec]:
    """Returns the encodings of a point's size, in pixels², and shape: the recommended system is a larger diamond."""
    field: Spec = {"field": "recommended", "legend": None}
    size = {**field, "type": "ordinal", "scale": {"domain": [False, True], "range": [usual, recommended]}}
    return size, {**field, "type": "nominal", "scale": {"domain": [False, True], "range": ["circle", "diamond"]}}


def _tip(field: str, title: str, form: str = "") -> Spec:
    return {"field": field, "title": title, **({"format": form} if form else {})}
