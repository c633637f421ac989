"""Computes measures, intervals and p-values of every system's run. Knows no model."""

from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Dataset, Draft, Evaluation, Run
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation import answers
from gnn_encoder.evaluation.collected import JUDGED, Collected
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.remarks import graph_remarks, in_sample_remarks, written_remarks
from gnn_encoder.evaluation.results import (
    block,
    detectable_differences,
    flat,
    headline_of,
    per_query_table,
    split_digest,
)
from gnn_encoder.settings.measures import WARM
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.systems import GNN_ENCODER, UNTRAINED


@step(evaluation="evaluation")
def evaluate(context: Context, settings: Evaluate, dataset: Path, runs: list[Path], evaluation: Draft) -> Metrics:
    """Measures the runs one at a time, to save memory, and compares each with the baseline.

    Queries without a positive label are left out and counted. A query without a hit counts 0, also if a system finds
    nothing for any query.

    Raises:
        UserError: no labelled dev or test query, a measure of documents of data without documents, two runs of one
            system, or no run of the baseline or the candidate.
    """
    data, names = Dataset(dataset), settings.measures
    collected = Collected(data, names, evaluation, settings.run_depth)
    queries, query_rows = collected.queries, collected.evaluated
    if not queries:
        raise UserError(f"{dataset} has no dev or test query with a positive label, so nothing can be evaluated")
    progress = context.progress("systems", len(runs), "systems")
    depth = min(settings.depth, len(data.passages))
    facts: dict[str, dict[str, Any]] = {}
    for path in runs:
        system, run = System.of(path), Run.read(path)
        if not system.name or system.name in facts:
            raise UserError(f"{path}: each run needs a system's name of its own, not {system.name!r}")
        facts[system.name] = system.facts
        mean = collected.add(system.name, run.of(query_rows, depth))
        progress.advance(note=f"{system.name} {mean_name(names[0])} {mean:.3f}")
    collected.finish()
    for role in ("baseline", "candidate"):
        if (name := getattr(settings, role)) not in facts:
            raise UserError(f"evaluate.{role} is {name!r}, which has no run: choose one of {', '.join(facts)}")

    statistics = settings.model_dump(include={"permutations", "resamples", "seed", "test"})
    answered = collected.answer_figures()
    traffic, paired = collected.by_traffic(names)
    choice = context.history.get("choose_encoder")
    chosen = [f"{UNTRAINED} is {choice.metrics['headline']}"] if choice and UNTRAINED in facts else []
    written = [split for split in queries if split in data.written_splits]
    metrics: dict[str, Any] = {
        **block(collected.figures(names), names, baseline=settings.baseline, **statistics),
        "baseline": settings.baseline,
        "candidate": settings.candidate,
        "headline_split": collected.shown,
        "written": written,
        "documents": len(collected.documents.ids) if collected.documents else None,
        "unlabelled_queries": {split: len(data.query_rows(split)) - len(rows) for split, rows in queries.items()},
        "without_hits": {split: systems for split, systems in collected.without_hits.items() if systems},
        "remarks": [
            *chosen,
            *written_remarks(written),
            *(remark for split in queries for remark in collected.remarks(split)),
            *(in_sample_remarks(facts) if "dev" in queries else ()),
            *(graph_remarks(context.history.get("choose_graph")) if {"dev", GNN_ENCODER} <= {*queries, *facts} else ()),
        ],
        "digests": {split: split_digest(data, split) for split in queries},
        "fusions": {system: of_system for system, of_system in facts.items() if "method" in of_system},
        "served": {system: of_system["served"] for system, of_system in facts.items() if "served" in of_system},
        "labels": {system: of_system for system, of_system in facts.items() if "labels" in of_system},
        "judged": block(
            collected.figures((JUDGED,)),
            (JUDGED,),
            baseline=settings.baseline,
            **{**statistics, "permutations": 0},
        ),
        "strata": {
            name: {
                **block(figures, names, baseline=settings.baseline, **statistics),
                "labels": {split: collected.strata[split].labels[name] for split in figures},
            }
            for name, figures in collected.figures_of_strata(names).items()
        },
        "recurrence": {
            name: block(figures, names[:1], baseline=settings.baseline, **statistics)
            for name, figures in collected.recurrence(names[:1]).items()
        },
        "traffic": block(traffic, names, baseline=settings.baseline, paired=paired, **statistics),
        "detectable": {
            split: detectable_differences(systems, names[:1], baseline=settings.baseline)
            for split, systems in collected.figures(names[:1]).items()
        },
        "answers": block(answered, answers.MEASURES, baseline=settings.baseline, **statistics) if answered else None,
        **statistics,
    }
    Evaluation.write(
        evaluation,
        metrics=metrics,
        per_query=per_query_table(
            data,
            queries,
            collected.figures(collected.measured),
            collected.measured,
            warm={split: strata.rows(WARM) for split, strata in collected.strata.items()},
        ),
        answers=per_query_table(data, collected.answered, answered, answers.MEASURES) if answered else None,
        first_hits=collected.hits,
        dev_first=collected.dev_first,
    )
    return {**flat(metrics), "headline": headline_of(metrics)}
