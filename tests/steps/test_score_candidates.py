"""Which pairs the cross-encoder scores."""

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.retrieval.first_stage import merge_candidates
from gnn_encoder.steps.score_candidates import candidate_pairs


def test_candidates_and_labels_each_pair_once_and_in_order(tiny_dataset: Dataset) -> None:
    queries, rng = tiny_dataset.query_rows("train"), np.random.default_rng(3)
    hits = np.stack([rng.permutation(100)[:6] for _ in queries])
    hits[::7, 4:] = -1  # fewer hits
    labels = tiny_dataset.split_qrels("train").positive()
    hits[3] = labels.passage[labels.query == queries[3]][0]  # found, and labelled too
    runs = [Run.from_hits(queries, part, np.zeros(part.shape)) for part in (hits[:, :4], hits[:, 2:])]
    query, passage = candidate_pairs(tiny_dataset, runs, 5)
    expected = {(int(q), int(p)) for q, p in zip(labels.query, labels.passage, strict=True)}
    assert not expected <= {(int(q), int(p)) for q, row in zip(queries, hits, strict=True) for p in row}
    candidates = merge_candidates(runs, queries, 5)
    expected |= {(int(q), int(p)) for q, row in zip(queries, candidates, strict=True) for p in row if p >= 0}
    assert list(zip(query.tolist(), passage.tolist(), strict=True)) == sorted(expected)
    assert query.dtype == passage.dtype == np.int32


def test_without_any_negative_there_are_some_by_chance(tiny_dataset: Dataset) -> None:
    labels = tiny_dataset.trained_labels
    run = Run.from_hits(labels.query, labels.passage[:, None], np.zeros((len(labels.query), 1)))
    query, _ = candidate_pairs(tiny_dataset, [run], 5)
    assert (np.bincount(query)[labels.query] == 6).all(), "the label and five others"
    some = Run.concatenate([run, Run.from_hits(labels.query[:1], np.array([[labels.passage[1]]]), np.zeros((1, 1)))])
    assert len(candidate_pairs(tiny_dataset, [some], 5)[0]) == len(labels.query) + 1, "one query has a negative"
