"""Writes one page with the results of every system, plots and explained examples.

It computes no measure, except those of M_de's first components if it was trained with `matryoshka`: no system has them.
"""

from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import (
    Dataset,
    Draft,
    Evaluation,
    Graph,
    GraphChoice,
    Latency,
    Recommended,
    Report,
    read_manifest,
)
from gnn_encoder.artifacts.history import Record, joined, read_history
from gnn_encoder.engines.step import Metrics, step
from gnn_encoder.evaluation.embedding import figures_by_dimension
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report.examples import examples, explained_by_graph, explained_by_scorer, most_changed
from gnn_encoder.report.page import Plot, render_page
from gnn_encoder.report.plots import gains_plot, profile_plot, scatter_plot, systems_plot, training_plot
from gnn_encoder.report.profile import data_profile
from gnn_encoder.report.study import learned
from gnn_encoder.retrieval.scorers import load_scorer
from gnn_encoder.settings import outcome
from gnn_encoder.tracking.context import Context

EXAMPLES = 5
"""Number of won queries shown, and of lost queries."""


@step(report="report")
def report(
    context: Context,
    settings: outcome.Report,
    dataset: Path,
    evaluation: Path,
    report: Draft,
    latency: Path | None = None,
    graph: Path | None = None,
    gnn_encoder: Path | None = None,
    passage_vectors: Path | None = None,
    encoding: Path | None = None,
    bundle: Path | None = None,
    scorer: Path | None = None,
    recommendation: Path | None = None,
    graph_choice: Path | None = None,
) -> Metrics:
    """Writes the page.

    The candidate's hits are explained by the graph, models and bundle if these are given, else by the scorer if it is
    given.
    """
    data, evaluated = Dataset(dataset), Evaluation.read(evaluation)
    paths = {
        "dataset": dataset, "evaluation": evaluation, "latency": latency, "graph": graph, "gnn_encoder": gnn_encoder,
        "passage_vectors": passage_vectors, "encoding": encoding, "bundle": bundle, "scorer": scorer,
        "recommendation": recommendation, "graph_choice": graph_choice,
    }  # fmt: skip
    inputs = {name: path for name, path in paths.items() if path}
    profile = data_profile(data, Graph.read(graph) if graph else None)
    metrics: dict[str, Any] = {
        **evaluated.metrics,
        "latency": Latency.read(latency).metrics if latency else None,
        "profile": profile.facts,
        "recommendation": Recommended.read(recommendation).facts if recommendation else None,
        "graph_choice": GraphChoice.read(graph_choice).facts if graph_choice else None,
    }
    shown, baseline, candidate = metrics["headline_split"], metrics["baseline"], metrics["candidate"]
    first = metrics["measures"][0]
    figures = {system: evaluated.figures(shown, system, first) for system in (baseline, candidate)}
    plain, better = figures[baseline], figures[candidate]
    gains, mean = better - plain, mean_name(first)
    plots = {
        "systems": Plot(systems_plot(metrics, shown), f"Mean of every measure for every system, {shown} queries."),
        "gains": Plot(
            gains_plot(gains, first, candidate, baseline),
            f"Gain or loss of {candidate} against {baseline} in {mean}, for each {shown} query.",
        ),
        "queries": Plot(
            scatter_plot(plain, better, first, baseline, candidate),
            f"{mean} of each {shown} query under both systems; the area of a circle is its number of queries.",
        ),
        "data": Plot(profile_plot(profile), "Text lengths, and numbers of training queries with an edge to a passage."),
    }
    history = joined(inputs.values())
    metrics["learned"] = learned(history)
    if passage_vectors:
        training = read_history(passage_vectors).get("train_dual_encoder", Record())
        if dimensions := training.settings.get("matryoshka"):
            metrics["dimensions"] = figures_by_dimension(passage_vectors, data, dimensions, first)
    if drawn := training_plot(history):
        plots["training"] = Plot(drawn, "Training losses, and the measure on a pool of dev passages after each epoch.")
    hits = {system: evaluated.first_hits(system) for system in figures}
    changed = most_changed(gains, EXAMPLES)
    won, lost = (examples(data, shown, positions, figures, hits) for positions in changed)
    if {"graph", "gnn_encoder", "passage_vectors", "encoding", "bundle"} <= set(inputs):
        groups = zip((won, lost), (hits[candidate][positions] for positions in changed), strict=True)
        won, lost = explained_by_graph(inputs, candidate, groups, settings.speed)
    elif scorer:
        won, lost = (explained_by_scorer(load_scorer(scorer), data, candidate, group) for group in (won, lost))
    headline = evaluated.manifest.metrics["headline"]
    page = render_page(
        metrics,
        headline=headline,
        plots=plots,
        won=won,
        lost=lost,
        manifests={name: read_manifest(path) for name, path in inputs.items()},
        history=history,
    )
    evaluated.copy_to(report)
    Report.write(report, metrics=metrics, plots={name: plot.image for name, plot in plots.items()}, page=page)
    context.log.artifact(report.path, "report")
    return {
        key: value for key, value in evaluated.manifest.metrics.items() if key not in ("seconds", "peak_memory_gib")
    }
