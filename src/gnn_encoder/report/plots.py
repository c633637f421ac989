"""Draws plots of an evaluation, of the data and of the trainings, as PNG bytes.

The colours are Okabe and Ito's, which colour-blind people can distinguish.
"""

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import in_table
from gnn_encoder.inference.diffusion import COSINES, Diffusion
from gnn_encoder.report.profile import DataProfile

COLOURS = ("#999999", "#56B4E9", "#E69F00", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
SHAPES = ("s", "v", "^", "D", "o", "P", "X", "*")
"""Each system also has its own shape, for print without colour."""
WON, LOST = "#0072B2", "#D55E00"
DOTS_PER_INCH = 150
BINS = 40
CELLS = 50
"""Cells of a distribution of cosines; a divisor of `diffusion.BINS`."""
DEGREES = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, np.inf))
"""Ranges of degrees; each range has one bar."""
LOSS, DEV = "loss", "dev_pool/RR_at_10"
COLUMNS = 3


def systems_plot(metrics: dict[str, Any], split: str) -> bytes:
    """Draws every system's mean of every measure: a row per measure, a mark per system."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    measures = metrics["measures"]
    systems = {system: metrics["results"][split][system] for system in in_table(metrics, split)}
    rows = np.arange(len(measures))[::-1]
    for i, (system, values) in enumerate(systems.items()):
        colour, shape = COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)]
        # The later systems are the compared systems. They are drawn on top, and slightly larger.
        axes.plot(
            [values[measure] for measure in measures], rows, shape,
            color=colour, markersize=6 + 0.5 * i, markeredgecolor="white", markeredgewidth=0.7,
            label=system, zorder=3 + i,
        )  # fmt: skip
    axes.set_yticks(rows, [mean_name(measure) for measure in measures])
    axes.set(xlabel=f"mean over {metrics['queries'][split]:,} {split} queries", xlim=(-0.01, 1.01))
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    figure.legend(loc="outside upper center", ncols=min(len(systems), 4), frameon=False, handletextpad=0.2)
    return png(figure)


def gains_plot(gains: np.ndarray, measure: str, system: str, baseline: str) -> bytes:
    """Draws per-query gains [n] of a system over the baseline, sorted; queries with gain 0 are only counted."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    differing = np.sort(gains[gains != 0])[::-1]
    won = int((differing > 0).sum())
    # No gaps between the bars, because n may be thousands.
    edges = np.arange(len(differing) + 1)
    axes.stairs(differing[:won], edges[: won + 1], fill=True, color=WON)
    axes.stairs(differing[won:], edges[won:], fill=True, color=LOST)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(ylim=(-1.05, 1.05), xlim=(0, max(len(differing), 1)))
    axes.set(xlabel="queries whose figure differs, by gain", ylabel=f"{measure} gained")
    equal, lost = len(gains) - len(differing), len(differing) - won
    axes.set_title(f"{system} against {baseline}: {won:,} won, {lost:,} lost, {equal:,} equal", fontsize="medium")
    return png(figure)


def scatter_plot(of_baseline: np.ndarray, of_system: np.ndarray, measure: str, baseline: str, system: str) -> bytes:
    """Draws each query's values [n] under two systems; a circle's area is the number of queries with these values."""
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.subplots()
    places, counts = np.unique(np.stack([of_baseline, of_system], axis=1).round(3), axis=0, return_counts=True)
    gained = places[:, 1] - places[:, 0]
    for chosen, colour in ((gained == 0, COLOURS[0]), (gained > 0, WON), (gained < 0, LOST)):
        area = 600 * counts[chosen] / counts.max() + 4
        axes.scatter(places[chosen, 0], places[chosen, 1], area, color=colour, alpha=0.7, linewidths=0)
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, zorder=0)
    axes.set(xlabel=f"{measure} under {baseline}", ylabel=f"{measure} under {system}", aspect="equal")
    return png(figure)


def sweep_plot(
    results: dict[str, Any], deviations: dict[str, Any], points: list[tuple[float, str]], axis: str, baseline: str
) -> bytes:
    """Draws two measures of variants along one setting, and the baseline as a dotted line of the same colour.

    Args:
        results, deviations: {variant: {measure: value}}; a variant may have no deviation.
        points: (value, variant), ascending.
    """
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    curves = (("RR@10", WON, "o"), ("R@20", LOST, "D"))
    for axes, (measure, colour, shape) in zip(figure.subplots(1, 2), curves, strict=True):
        axes.errorbar(
            [value for value, _ in points], [results[variant][measure] for _, variant in points],
            yerr=[deviations.get(variant, {}).get(measure, 0.0) for _, variant in points],
            color=colour, marker=shape, capsize=3,
        )  # fmt: skip
        axes.axhline(results[baseline][measure], color=colour, linestyle=":", label=baseline)
        axes.set_xlabel(axis)
        axes.set_title(mean_name(measure), fontsize="medium")
        axes.legend(frameon=False)
    return png(figure)


def thresholds_plot(points: dict[str, dict[str, float]], values: dict[str, float], measure: str) -> bytes:
    """Draws a measure and the best step of a training against the threshold t_A (SS-BERT Fig. 4 and 5).

    `points`, `values`: by system, `report.study.thresholds` and the measure's means.
    """
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axis = [point["threshold"] for point in points.values()]
    for axes, curve, name, colour, shape in zip(
        figure.subplots(1, 2),
        ([values[system] for system in points], [point["step"] for point in points.values()]),
        (mean_name(measure), "step of the best dev figure"),
        (WON, LOST),
        ("o", "D"),
        strict=True,
    ):
        axes.plot(axis, curve, color=colour, marker=shape)
        axes.set(xlabel="t_A")
        axes.set_title(name, fontsize="medium")
    return png(figure)


def diffusion_plot(diffusions: dict[str, Diffusion]) -> bytes:
    """Draws the distribution of each kind of cosine, with a line per encoder and its mean dotted (BERT-DMN Fig. 3)."""
    figure = Figure(figsize=(7.0, 3.0), layout="constrained")
    edges = np.linspace(-1.0, 1.0, CELLS + 1)
    for kind, axes in enumerate(figure.subplots(1, len(COSINES), sharey=True)):
        for i, (name, diffusion) in enumerate(diffusions.items()):
            counts = diffusion.counts[kind].reshape(CELLS, -1).sum(axis=1)
            shares = counts / max(counts.sum(), 1)
            axes.stairs(shares, edges, color=COLOURS[i + 2], label=name if kind == 0 else None)
            axes.axvline(diffusion.means[kind], color=COLOURS[i + 2], linestyle=":", linewidth=1)
        axes.set(xlabel="cosine", xlim=(-1, 1))
        axes.set_title(COSINES[kind], fontsize="medium")
    figure.axes[0].set_ylabel("share of the cosines")
    figure.legend(loc="outside upper center", ncols=len(diffusions), frameon=False)
    return png(figure)


def profile_plot(profile: DataProfile) -> bytes:
    """Draws the distributions of text lengths and of degrees."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    lengths, degrees = figure.subplots(1, 2)
    longest = max(int(words.max()) for words in profile.words.values())
    edges = np.geomspace(1, longest + 1, BINS)
    for i, (kind, words) in enumerate(profile.words.items()):
        counts, _ = np.histogram(words, edges)
        lengths.stairs(counts / len(words), edges, color=COLOURS[-1 - i], label=kind)
    lengths.set(xscale="log", xlabel="words", ylabel="share of texts")
    lengths.legend(frameon=False, fontsize="small")
    shares = [((profile.degrees >= low) & (profile.degrees <= high)).mean() for low, high in DEGREES]
    names = [f"{low}" if low == high else f"{low}–{high}" if high < np.inf else f"{low}+" for low, high in DEGREES]
    degrees.bar(names, shares, color=WON)
    degrees.set(xlabel="training queries of a passage in the graph", ylabel="share of passages")
    degrees.tick_params(axis="x", labelsize="small")
    return png(figure)


def training_plot(history: History) -> bytes | None:
    """Draws the loss of each training and the dev measure after each epoch; returns None if nothing was trained."""
    trained = {title: record for title, record in history.items() if record.curves.get(LOSS)}
    if not trained:
        return None
    rows = -(-len(trained) // COLUMNS)
    figure = Figure(figsize=(7.0, 2.2 * rows), layout="constrained")
    cells = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes, (title, record) in zip(cells, trained.items(), strict=False):
        _losses(axes, title, record)
    for axes in cells[len(trained) :]:
        axes.remove()
    return png(figure)


def _losses(axes: Axes, title: str, record: Record) -> None:
    steps, losses = zip(*record.curves[LOSS], strict=True)
    axes.plot(steps, losses, color=WON, linewidth=0.9)
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("steps", fontsize="small")
    axes.set_ylabel("loss", color=WON, fontsize="small")
    if measured := record.curves.get(DEV):
        epochs, figures = zip(*measured, strict=True)
        other = axes.twinx()
        other.plot([epoch * steps[-1] / epochs[-1] for epoch in epochs], figures, "D", color=LOST, markersize=5)
        other.set_ylim(0, 1)
        other.set_ylabel("dev MRR@10", color=LOST, fontsize="small")


def png(figure: Figure) -> bytes:
    """Returns the plot as the bytes of a PNG file; axis lines without a scale are removed."""
    for axes in figure.axes:
        axes.spines["top"].set_visible(False)
        axes.spines["right"].set_visible(axes.yaxis.get_ticks_position() == "right")
        axes.tick_params(length=0)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    # The file does not name the version of the plotting library, so the same plot gives the same bytes.
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
