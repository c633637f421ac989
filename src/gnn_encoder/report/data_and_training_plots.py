"""Plots of what a system was made of: the data, and the trainings."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.report.plots import COLOURS, LOST, WON, open_frame, png
from gnn_encoder.report.profile import DataProfile

BINS = 40
DEGREES = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, np.inf))
"""Ranges of degrees that share a bar."""
LOSS, DEV = "loss", "dev_pool/RR_at_10"
COLUMNS = 3


def profile_plot(profile: DataProfile) -> bytes:
    """Distributions of lengths and of degrees."""
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    lengths, degrees = figure.subplots(1, 2)
    longest = max(int(words.max()) for words in profile.words.values())
    edges = np.geomspace(1, longest + 1, BINS)
    for i, (kind, words) in enumerate(profile.words.items()):
        counts, _ = np.histogram(words, edges)
        lengths.stairs(counts / len(words), edges, color=COLOURS[-1 - i], label=kind)
    lengths.set_xscale("log")
    lengths.set_xlabel("words")
    lengths.set_ylabel("share of texts")
    lengths.legend(frameon=False, fontsize="small")
    shares = [((profile.degrees >= low) & (profile.degrees <= high)).mean() for low, high in DEGREES]
    names = [f"{low}" if low == high else f"{low}–{high}" if high < np.inf else f"{low}+" for low, high in DEGREES]
    degrees.bar(names, shares, color=WON)
    degrees.set_xlabel("training queries of a passage in the graph")
    degrees.set_ylabel("share of passages")
    degrees.tick_params(axis="x", labelsize="small")
    for axes in (lengths, degrees):
        open_frame(axes)
    return png(figure)


def training_plot(history: History) -> bytes | None:
    """The loss of each training, and beside it the dev figure after each epoch; None where nothing was trained."""
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
    open_frame(axes)
    if looks := record.curves.get(DEV):
        epochs, figures = zip(*looks, strict=True)
        other = axes.twinx()
        other.plot([epoch * steps[-1] / epochs[-1] for epoch in epochs], figures, "D", color=LOST, markersize=5)
        other.set_ylim(0, 1)
        other.set_ylabel("dev MRR@10", color=LOST, fontsize="small")
        other.spines[["top"]].set_visible(False)
        other.tick_params(length=0)
