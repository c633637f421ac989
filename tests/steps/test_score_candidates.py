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
    found = merge_candidates(runs, queries, 5)
    expected |= {(int(q), int(p)) for q, row in zip(queries, found, strict=True) for p in row if p >= 0}
    assert list(zip(query.tolist(), passage.tolist(), strict=True)) == sorted(expected)
    assert query.dtype == passage.dtype == np.int32
