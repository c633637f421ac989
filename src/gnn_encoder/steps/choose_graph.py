"""Tries graphs and trainings with frozen encoders on dev, and chooses what `train_gnn` trains jointly.

The trainings take seconds to a minute each, because no text is encoded. A frozen variant ranks settings as the joint
training does only roughly; docs/notebook.md says how well.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import (
    Dataset,
    Draft,
    Graph,
    GraphChoice,
    TrainingSet,
    read_manifest,
    read_vectors,
)  # fmt: skip
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.measures import labelled_queries, mean_name, measured_by
from gnn_encoder.evaluation.recommendation import Rule, falls
from gnn_encoder.evaluation.significance import paired
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.query_graph.narrowing import narrowed
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.settings.graph import BuildGraph, ChooseGraph, GraphShape, TrainGnn
from gnn_encoder.settings.measures import COLD, depth_of
from gnn_encoder.settings.studies import with_seeds
from gnn_encoder.settings.systems import DUAL_ENCODER
from gnn_encoder.training.variants import train_variant

DEV, PERMUTATIONS = "dev", 2000


@step(chosen_graph="graph", graph_choice="graph_choice")
def choose_graph(
    context: Context,
    settings: ChooseGraph,
    dataset: Path,
    training_set: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    chosen_graph: Draft,
    graph_choice: Draft,
) -> Metrics:
    """Chooses the best variant among those that do not fall on cold dev queries; if all fall, the best of all.

    Without variants the graph is passed on. Without a labelled dev query the first variant is chosen.
    """
    whole, built = Graph.read(graph), BuildGraph.model_validate(read_manifest(graph).settings)
    if not settings.tried:
        GraphChoice.write(graph_choice, {})
        whole.save(chosen_graph, whole, graph)
        return {"headline": "as the settings have it"}
    trial = _Trial(context, settings, Dataset(dataset), DualEncoder.load(dual_encoder), passage_vectors)
    figures = trial.figures(TrainingSet.read(training_set), whole, built) if len(trial.query_rows) else {}
    chosen, standings = _chosen(trial, figures)
    variant = next(tried for tried in settings.tried if tried.variant == chosen)
    facts = {
        "variant": chosen,
        "measure": settings.measure,
        "queries": len(trial.query_rows),
        "training": {name: getattr(variant, name) for name in TrainGnn.model_fields},
        "standings": standings,
    }
    shape = BuildGraph(**built.model_dump() | {name: getattr(variant, name) for name in GraphShape.model_fields})
    narrowed(whole, built, shape).save(chosen_graph, whole, graph)
    chosen_graph.manifest.settings = shape.model_dump()
    GraphChoice.write(graph_choice, facts)
    means = {f"{DEV}/{standing['variant']}/{settings.measure}": standing["mean"] for standing in standings}
    return {**means, "headline": _headline(facts)}


class _Trial:
    """The dev queries, and the vectors that every variant starts from."""

    def __init__(
        self, context: Context, settings: ChooseGraph, data: Dataset, encoders: DualEncoder, embedding: Path
    ) -> None:
        self.context, self.settings, self.data = context, settings, data
        self.encoders, self.embedding, self.passages = encoders, embedding, read_vectors(embedding)
        qrels = data.judged(DEV)
        self.query_rows, self.measured = labelled_queries(qrels), measured_by(settings.measure, data, qrels)
        strata = warm_strata(qrels, data.seen_labels)
        self.cold = strata.rows(COLD)

    def figures(self, examples: TrainingSet, whole: Graph, built: GraphShape) -> dict[str, np.ndarray]:
        """Returns {the dual encoder and each variant: the mean over seeds of each dev query's figure, float64 [n]}."""
        rows = np.union1d(whole.queries, self.query_rows)
        queries = scratch(len(self.data.queries), self.passages.shape[1])
        queries[rows] = vectors_of_queries(self.embedding, self.data, rows)
        figures = {DUAL_ENCODER: self._measured(self.passages, queries[self.query_rows])}
        for variant in self.settings.tried:
            cut, values = narrowed(whole, built, variant), []
            for seeded in with_seeds(variant, self.settings.seeds):
                part = self.context.part(f"{seeded.variant}, {seeded.seed}")
                passages, of_queries, _ = train_variant(
                    part, seeded, self.data, examples, self.encoders, cut, queries, self.passages
                )
                values.append(self._measured(passages, of_queries(self.query_rows)))
                part.checkpoints().drop()
            figures[variant.variant] = np.mean(values, axis=0)
        return figures

    def _measured(self, passages: np.ndarray, query_vectors: np.ndarray) -> np.ndarray:
        depth = min(depth_of(self.settings.measure), len(passages))
        left_out = self.data.identical[self.query_rows]
        run = run_by(partial(exact.search, passages, query_vectors), self.query_rows, left_out, depth)
        return self.measured(run, self.query_rows)

    def falls(self, gains: np.ndarray) -> Iterator[str]:
        """Yields the objection to a variant with these gains [n] over the dual encoder, if its cold queries fall."""
        p_value = partial(paired, test="randomization", permutations=PERMUTATIONS, seed=0)
        return falls(gains, DUAL_ENCODER, {COLD: self.cold}, p_value, Rule())


def _chosen(trial: _Trial, figures: dict[str, np.ndarray]) -> tuple[str, list[dict[str, Any]]]:
    """Returns the chosen variant, and every tried system: its name, its mean, and the objections to it."""
    standings: list[dict[str, Any]] = [
        {
            "variant": name,
            "mean": float(values.mean()),
            "objections": list(trial.falls(values - figures[DUAL_ENCODER])),
        }
        for name, values in figures.items()
    ]
    variants = [standing for standing in standings if standing["variant"] != DUAL_ENCODER]
    if not variants:
        return trial.settings.tried[0].variant, standings
    best = max(
        [standing for standing in variants if not standing["objections"]] or variants,
        key=lambda standing: standing["mean"],
    )
    return str(best["variant"]), standings


def _headline(facts: dict[str, Any]) -> str:
    if not facts["standings"]:
        return f"{facts['variant']}: the data have no labelled dev query to choose by"
    means = {standing["variant"]: standing["mean"] for standing in facts["standings"]}
    return (
        f"{facts['variant']} of {len(means) - 1} variants: {mean_name(facts['measure'])} {means[facts['variant']]:.3f} "
        f"on {facts['queries']:,} dev queries with frozen encoders, {means[DUAL_ENCODER]:.3f} the dual encoder"
    )
