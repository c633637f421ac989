"""The picture of a run's systems as a file: the chart that the report begins with, for pages that draw no Vega-Lite."""

import io
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.report import systems
from gnn_encoder.report.charts import GREEN, KINDS


def systems_picture(metrics: Mapping[str, Any]) -> str:
    """Returns an SVG with what `charts.systems_chart` draws of all systems with different figures, in its colours."""
    split, measure, baseline = metrics["headline_split"], metrics["measures"][0], metrics["baseline"]
    rows = systems.rows(metrics, split, metrics, systems.best_first(metrics))
    figure = Figure(figsize=(8.0, 1.0 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(metrics["results"][split][baseline][measure], color=GREEN, linestyle="--", linewidth=1)
    for position, row in enumerate(rows):
        colour, shape = KINDS[row["kind"]], "D" if row["recommended"] else "o"
        axes.hlines(position, row["low"], row["high"], color=colour, linewidth=2)
        axes.plot(row["mean"], position, color=colour, marker=shape)
    axes.set_yticks(range(len(rows)), [row["system"] for row in rows], parse_math=False)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axis = f"{mean_name(measure)} on {of_split(metrics, split)}, 95 % intervals; dashed: {baseline}"
    axes.set_xlabel(axis, parse_math=False)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "systems"}):  # equal pictures have equal bytes
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
