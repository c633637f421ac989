"""Shows what labels gain, and which labels to add next: tables for a terminal, a plot, CSV and JSON files."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from gnn_encoder.artifacts import passage_text
from gnn_encoder.errors import printable
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.judging.agreement import finite
from gnn_encoder.labels.curve import MEASURE, Point
from gnn_encoder.labels.suggestions import PassageSuggestion, QuerySuggestion
from gnn_encoder.report.charts import BLUE, COLOURS, RED
from gnn_encoder.report.table import figures_table

LONGEST = 60
"""Characters shown of a text."""
DOTS_PER_INCH = 150
LIMITS = (
    "The models are those trained with all labels, and only the graph has fewer. So the curve shows what labels add to "
    "this model. The row with ~ is no measurement: it goes on as between half of the queries and all."
)


def curve_table(points: Sequence[Point], beyond: tuple[int, float, float], queries: int) -> Table:
    """Returns the table of the curve over a number of dev queries."""
    headers = ("labels", "warm", MEASURE, "gain", "95 %", "warm gain", "cold gain")
    table = figures_table(headers, f"{LIMITS} {sum(point.seconds for point in points):.1f} seconds in all.")
    table.title, table.title_justify = f"What labels gain: {mean_name(MEASURE)} of {queries:,} dev queries", "left"
    table.columns[0].header, table.columns[0].justify = "queries", "right"
    for point in points:
        interval = f"{point.low:+.3f} {point.high:+.3f}" if point.queries else ""
        gains = (f"{point.gain:+.3f}", interval, _gain(point.warm_gain), _gain(point.cold_gain))
        table.add_row(
            f"{point.queries:,}", f"{point.labels:,.0f}", f"{point.warm:.0%}", f"{point.mean:.3f}", *gains
        )  # fmt: skip
    mean = points[0].mean - points[0].gain + beyond[1]
    table.add_row(f"~{beyond[0]:,}", "", f"{beyond[2]:.0%}", f"{mean:.3f}", f"{beyond[1]:+.3f}")
    return table


def labels_plot(points: Sequence[Point], beyond: tuple[int, float, float]) -> bytes:
    """Draws the gain on dev against the number of labelled training queries, and the share of warm queries.

    `beyond`: the extrapolated number of queries, gain and warm share, drawn dashed.
    """
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    queries = [point.queries for point in points]
    gains, shares = figure.subplots(1, 2)
    for name, colour, shape in (("gain", BLUE, "o"), ("warm_gain", COLOURS[2], "^"), ("cold_gain", COLOURS[0], "v")):
        values = [getattr(point, name) for point in points]
        label = {"gain": "all", "warm_gain": "warm", "cold_gain": "cold"}[name]
        gains.plot(queries, values, color=colour, marker=shape, label=label)
    gains.fill_between(queries, [p.low for p in points], [p.high for p in points], color=BLUE, alpha=0.15, linewidth=0)
    shares.plot(queries, [point.warm for point in points], color=RED, marker="D")
    gains.plot([queries[-1], beyond[0]], [points[-1].gain, beyond[1]], color=BLUE, linestyle="--", label="extrapolated")
    shares.plot([queries[-1], beyond[0]], [points[-1].warm, beyond[2]], color=RED, linestyle="--")
    gains.axhline(0, color="black", linewidth=0.8)
    gains.legend(frameon=False, fontsize="small")
    gains.set(xlabel="training queries in the graph", ylabel=f"dev {mean_name(MEASURE)} gained")
    shares.set(xlabel="training queries in the graph", ylabel="share of warm dev queries", ylim=(0, 1))
    return _png(figure)


def queries_table(suggestions: Sequence[QuerySuggestion], log: float, value: float) -> Table:
    """Returns the table of suggested queries of a log with `log` queries; `value`: V of `labels.suggestions`."""
    share = sum(suggestion.count for suggestion in suggestions) / log
    caption = (
        f"These are {share:.1%} of the log's {log:,.0f} queries. gain: count × ({value:.3f}, what dev queries find "
        "after a label of their own, − now, what dev queries as near and as certain find)"
    )
    table = figures_table(("gain", "count", "now", "near", "margin"), caption)
    table.title, table.title_justify = "Queries to label next", "left"
    table.add_column("query, and its first passage")
    for number, suggestion in enumerate(suggestions, start=1):
        table.add_row(
            str(number),
            f"{suggestion.gain:.1f}",
            f"{suggestion.count:,.0f}",
            f"{suggestion.expected:.2f}",
            f"{suggestion.similarity:.2f}",
            f"{suggestion.margin:.3f}",
            Text(f"{_short(suggestion.query)}\n→ {_short(suggestion.title)} [{printable(suggestion.passage_id)}]"),
        )
    return table


def passages_table(suggestions: Sequence[PassageSuggestion], gain: float) -> Table:
    """Returns the table of suggested passages; `gain`: G of `labels.suggestions`."""
    caption = (
        f"gain: expected {mean_name(MEASURE)} gained by 1,000 queries, of which the passage answers the number in the "
        f"next column; a query with a labelled passage gained {gain:+.3f} on dev"
    )
    table = figures_table(("gain", "answers"), caption)
    table.title, table.title_justify = "Passages to label next", "left"
    table.add_column("passage, and a training query near it")
    for number, suggestion in enumerate(suggestions, start=1):
        passage = _short(passage_text(suggestion.title, suggestion.text))
        shown = f"{passage} [{printable(suggestion.passage_id)}]\n← {_short(suggestion.query)}"
        table.add_row(str(number), f"{suggestion.gain:.2f}", f"{suggestion.answers:.2f}", Text(shown))
    return table


def write_json(
    path: Path,
    points: Sequence[Point],
    beyond: tuple[int, float, float],
    suggestions: Sequence[QuerySuggestion] | Sequence[PassageSuggestion],
) -> None:
    """Writes the curve, its extrapolation and the suggestions; NaN becomes null."""
    names = ("queries", "gain", "warm")
    facts = {
        "measure": MEASURE,
        "curve": [finite(asdict(point)) for point in points],
        "extrapolated": dict(zip(names, beyond, strict=True)),
        "suggestions": [asdict(suggestion) for suggestion in suggestions],
    }
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")


def write_csv(path: Path, suggestions: Sequence[QuerySuggestion] | Sequence[PassageSuggestion]) -> None:
    """Writes the suggestions, with a header."""
    rows = [asdict(suggestion) for suggestion in suggestions]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["gain"])
        writer.writeheader()
        writer.writerows(rows)


def _gain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:+.3f}"


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _png(figure: Figure) -> bytes:
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
