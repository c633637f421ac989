"""Writes one page with the results of every system, charts, and the hits of every query in files beside it.

It computes no measure, except of M_de's first components if it was trained with `matryoshka`, as no system has them,
and means of short, middle and long queries, and of those with some value of a field.
"""

from pathlib import Path
from typing import Any

import numpy as np

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
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.confidence import FEWEST, answered, curve, threshold
from gnn_encoder.evaluation.embedding import figures_by_dimension
from gnn_encoder.evaluation.measures import labelled_queries, mean_name
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.report.charts import gains_chart, profile_charts
from gnn_encoder.report.cost import costs, reranking_costs
from gnn_encoder.report.examples import Example, examples, explained_by_graph, explained_by_scorer, most_changed
from gnn_encoder.report.page import commands, render_page, report_charts
from gnn_encoder.report.picture import systems_picture
from gnn_encoder.report.profile import data_profile
from gnn_encoder.report.queries import source_of, write_queries
from gnn_encoder.report.study import learned
from gnn_encoder.report.systems import (
    best_first,
    chosen,
    drawn,
    field_strata,
    is_explained,
    length_strata,
    of_parts,
    rerankers,
)
from gnn_encoder.retrieval.scorers import load_scorer
from gnn_encoder.settings import outcome
from gnn_encoder.settings.measures import COLD, WARM, Parts
from gnn_encoder.settings.presets import yaml_of
from gnn_encoder.settings.systems import SYSTEMS

EXAMPLES, EXPLAINED = 5, 3
"""Number of won queries that are explained, and of lost queries; and of hits of each."""
RECURRING = "recurring"
RISK = 0.1
"""Share of wrong answers whose threshold the page shows."""


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
    bundles: list[Path] | None = None,
) -> Metrics:
    """Writes the page.

    The candidate's hits are explained by the graph, models and bundle if these are given, else by the scorer if it is
    given. A question is asked of each of the `bundles`, for what it costs.
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
        "latency": Latency.read(latency).facts if latency else None,
        "profile": profile.facts,
        "recommendation": Recommended.read(recommendation).facts if recommendation else None,
        "graph_choice": GraphChoice.read(graph_choice).facts if graph_choice else None,
    }
    shown, baseline, candidate = metrics["headline_split"], metrics["baseline"], metrics["candidate"]
    first = metrics["measures"][0]
    relevant = Parts.of_name(first).rel
    history = joined(inputs.values())
    metrics["learned"] = learned(history)
    if passage_vectors:
        training = read_history(passage_vectors).get("train_dual_encoder", Record())
        if dimensions := training.settings.get("matryoshka"):
            metrics["dimensions"] = figures_by_dimension(passage_vectors, data, dimensions, first)
    rows = labelled_queries(data.judged(shown).positive())
    questions = data.query_texts(rows)
    metrics["costs"] = costs(bundles, metrics["fusions"], questions) if bundles else reranking_costs(history)
    of_all, names = evaluated.figures_of(shown, first), best_first(metrics)
    lengths = length_strata(np.array([len(text.split()) for text in questions]))
    fields = field_strata(data.manifest.settings.get("query_field", ""), data.query_values(rows))
    of_drawn = {name: of_all[name] for name in dict.fromkeys([*drawn(metrics), baseline])}
    metrics["lengths"], metrics["fields"] = (
        of_parts(parts, of_drawn, shown, first, metrics) for parts in (lengths, fields)
    )
    best = chosen(metrics)
    hits_on_dev = evaluated.dev_first(best)
    if len(hits_on_dev.score) >= FEWEST and "dev" not in data.written_splits:
        share = answered(hits_on_dev, threshold(hits_on_dev, RISK))
        metrics["answered"] = {"system": best, "risk": RISK, "curve": curve(hits_on_dev), **share._asdict()}
    charts = report_charts(metrics, history) | profile_charts(profile)
    charts["gains"] = gains_chart(of_all[best] - of_all[baseline], mean_name(first))

    # The queries that the candidate won and lost most, if the artifacts can explain its hits.
    figures = {system: of_all[system] for system in (baseline, candidate)}
    hits = {system: evaluated.first_hits(system) for system in names}
    few = {system: evaluated.first_hits(system)[:, :EXPLAINED] for system in figures}
    won, lost = list[Example](), list[Example]()
    by_graph = {"graph", "gnn_encoder", "passage_vectors", "encoding", "bundle"} <= set(inputs)
    if by_graph or scorer:
        changed = most_changed(of_all[candidate] - of_all[baseline], EXAMPLES)
        won, lost = (examples(data, shown, positions, figures, few, relevant) for positions in changed)
        if by_graph:
            groups = zip((won, lost), (few[candidate][positions] for positions in changed), strict=True)
            won, lost = explained_by_graph(inputs, candidate, groups, settings.speed)
        elif scorer:
            won, lost = (explained_by_scorer(load_scorer(scorer), data, candidate, group) for group in (won, lost))

    warm = warm_strata(data.judged(shown), data.seen_labels)
    strata = (
        {name: warm.rows(name) for name in (WARM, COLD)} | {RECURRING: np.isin(rows, data.recurring)} | lengths | fields
    )
    browsed = write_queries(
        Report.queries_folder(report),
        data,
        shown,
        {name: of_all[name] for name in names},
        hits,
        {name: inside for name, inside in strata.items() if inside.any()},
        source_of(history.get("ingest", Record())),
        measure=mean_name(first),
        relevant=relevant,
        one=best,
        other=next((name for name in (baseline, candidate, *names) if name in names and name != best), best),
        simple=[name for name in names if name in SYSTEMS and SYSTEMS[name].fusion not in ("linear", "trees")],
    )
    compared, rung = [] if bundles else rerankers(metrics), context.title.partition(": ")[2]
    printed = commands(report.target, history, rung, compared, is_explained(metrics, best))
    page = render_page(
        metrics,
        headline=evaluated.manifest.metrics["headline"],
        drawn=charts,
        won=won,
        lost=lost,
        manifests={name: read_manifest(path) for name, path in inputs.items()},
        history=history,
        browsed=browsed,
        commands=printed if bundles or compared else {},
        changed=settings.changed,
    )
    evaluated.copy_to(report)
    picture, preset = systems_picture(metrics), yaml_of(settings.changed)
    Report.write(report, metrics=metrics, plots=charts, page=page, picture=picture, changed=preset)
    context.log.artifact(report.path, "report")
    return {
        key: value for key, value in evaluated.manifest.metrics.items() if key not in ("seconds", "peak_memory_gib")
    }
