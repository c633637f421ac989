"""Weights that dev queries choose, and figures of queries that had no part in the choice."""

import numpy as np

from gnn_encoder.artifacts import Run, drafting
from gnn_encoder.artifacts.tables import System
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.tuning import FOLDS, first_best, folds_of, held_out_places
from gnn_encoder.retrieval.fusion import GRID, convex
from gnn_encoder.settings.outcome import Fuse
from gnn_encoder.steps.fuse import fuse


def test_held_out_places_equal_a_loop_over_folds():
    generator = np.random.default_rng(0)
    values, group = generator.random((7, 40)), generator.integers(0, 25, 40)
    places, fold = held_out_places(values, group), folds_of(group, FOLDS, np.random.default_rng(0))
    for query in range(40):
        others = [other for other in range(40) if fold[other] != fold[query]]
        assert not set(group[others]) & {group[query]}  # a twin has no part in the choice
        assert places[query] == max(range(7), key=lambda place: values[place, others].mean())
    # Of figures that are chance alone, the chosen ones are too high, those of the others' choice are not.
    noise = generator.random((200, 400))
    chosen, held_out = first_best(noise), held_out_places(noise, np.arange(400))
    assert noise[chosen].mean() > 0.53 and abs(noise[held_out, np.arange(400)].mean() - 0.5) < 0.03


def test_a_query_without_others_has_the_first_weight():
    assert held_out_places(np.array([[0.0], [1.0]]), np.array([3])).tolist() == [0]


def test_dev_queries_are_ranked_by_weights_that_the_others_choose(tiny_dataset, tmp_path):
    data, generator = tiny_dataset, np.random.default_rng(1)
    queries, m = np.arange(len(data.queries)), len(data.passages)
    paths = [tmp_path / name for name in ("lexical_run", "dense_run")]
    for path in paths:
        hits = np.stack([generator.permutation(m)[:20] for _ in queries])
        with drafting(path, "run") as draft:
            Run.from_hits(queries, hits, -np.sort(-generator.random(hits.shape))).write(draft, path.name)
    outputs = {name: tmp_path / name for name in ("convex_run", "reciprocal_run")}
    fuse(Fuse(measure="RR@10"), dataset=data.path, lexical_run=paths[0], dense_run=paths[1], **outputs)

    lexical, dense = (Run.read(path) for path in paths)
    fused, weight = Run.read(outputs["convex_run"]), System.of(outputs["convex_run"]).facts["weight"]
    qrels = data.judged("dev")
    dev = labelled_queries(qrels)
    fold = folds_of(data.groups[dev], FOLDS, np.random.default_rng(0))

    def best(some: np.ndarray) -> float:
        figures = [
            per_query(
                convex(lexical.of(some), dense.of(some), w, 10), qrels, some, data.judged_ids(), ("RR@10",)
            ).mean()
            for w in GRID
        ]
        return GRID[int(np.argmax(np.round(figures, 12)))]

    weights = {query: best(dev[fold != of]) for query, of in zip(dev.tolist(), fold.tolist(), strict=True)}
    assert weight == best(dev) and any(other != weight for other in weights.values())
    for query in np.unique(fused.query).tolist():
        one = np.array([query])
        expected = convex(lexical.of(one), dense.of(one), weights.get(query, weight), Fuse().depth)
        np.testing.assert_array_equal(fused.of(one).passage, expected.passage)
