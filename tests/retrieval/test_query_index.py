"""Training queries near a question: through every index as by a full scan, also after labels have come and gone."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from labelled import USES, random_labels, unit

from gnn_encoder.artifacts.labelled_queries import QUERY_INDEX, LabelledQueries, LabelUse
from gnn_encoder.artifacts.parts import stored_parts
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.query_index import build_query_index, nearest_queries, open_query_index
from gnn_encoder.settings import outcome
from gnn_encoder.settings.outcome import IndexKind

M, N, D, NEW, K = 60, 400, 16, 5, 20
KINDS = [IndexKind(), IndexKind(index="flat_fp16"), IndexKind(index="flat_fp16", index_parts=3),
         IndexKind(index="sq8"), IndexKind(index="ivf"), IndexKind(index="hnsw")]  # fmt: skip
GONE = np.array([2, 3, 11])
"""Queries that lose their labels, among them the nearest of `questions`."""


def pairs_of(labels: LabelledQueries, passages: np.ndarray) -> set[tuple[int, int]]:
    row, query = labels.by_passage.into(passages)
    return set(zip(passages[row].tolist(), query.tolist(), strict=True))


def changed(labels: LabelledQueries) -> tuple[LabelledQueries, set[tuple[int, int]], np.ndarray]:
    """Labels of which the queries `GONE` lost all and new queries came, the pairs, and the new queries' vectors."""
    random = np.random.default_rng(5)
    added = unit(random.normal(size=(NEW, D)))
    pairs = {pair for pair in pairs_of(labels, np.arange(M)) if pair[1] not in GONE.tolist()}
    pairs |= {(int(random.integers(M)), N + number) for number in range(NEW)} | {(M - 1, 0)}
    now, before = (
        {p: {q for row, q in some if row == p} for p in range(M)} for some in (pairs, pairs_of(labels, np.arange(M)))
    )
    passages = np.array([p for p in range(M) if now[p] != before[p]])
    indptr = np.cumsum([0, *(len(now[p]) for p in passages.tolist())])
    query = np.array([q for p in passages.tolist() for q in sorted(now[p])], np.int32)
    return labels.with_pairs(passages, indptr, query, added), pairs, added


def questions(labels: LabelledQueries) -> np.ndarray:
    """Vectors near some queries, the first of them near queries that will lose their labels, the last near new ones."""
    random = np.random.default_rng(6)
    near = np.concatenate([labels.vectors[GONE], labels.vectors[:20], changed(labels)[2]])
    return unit(near + 0.1 * random.normal(size=near.shape)).astype(np.float32)


def written(labels: LabelledQueries, folder: Path, kind: IndexKind) -> tuple[LabelledQueries, float | None]:
    names = pa.array([f"q{i}" for i in range(len(labels))])
    labels.write(folder, names, names, None, LabelUse("fusion", 1.0))
    return LabelledQueries.read(folder), build_query_index(labels, folder, kind)


def by_loop(vectors: np.ndarray, labelled: list[int], question: np.ndarray, k: int) -> list[int]:
    return sorted(labelled, key=lambda row: (-(vectors[row].astype(float) @ question), row))[:k]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.index}-{kind.index_parts}")
def test_the_index_equals_a_full_scan_and_so_it_does_after_changes(kind: IndexKind, tmp_path: Path) -> None:
    _, labels = random_labels(M, N, 700, D)
    stored, recall = written(labels, tmp_path / "labels", kind)
    index = open_query_index(stored, tmp_path / "labels")
    assert (index is None) == (recall is None) == (kind.index == "flat") and (recall is None or recall > 0.95)
    after, pairs, added = changed(stored)
    assert after.unlabelled == len(GONE)
    every = np.concatenate([labels.vectors, added])
    for of, labelled in ((stored, list(range(N))), (after, sorted({query for _, query in pairs}))):
        vectors = questions(labels)
        scores, rows = nearest_queries(of, index, vectors, K)
        for question, hits, values in zip(vectors, rows.tolist(), scores, strict=True):
            expected = by_loop(every, labelled, question, K)
            assert hits == expected or (kind.index in ("sq8", "hnsw") and len(set(hits) & set(expected)) >= K - 1)
            np.testing.assert_allclose(values, every[hits] @ question, atol=1e-6)
    assert not np.isin(GONE, rows).any() and np.isin(np.arange(N, N + NEW), rows).all()
    assert np.isin(GONE, nearest_queries(stored, index, vectors, K)[1]).all(), "the control: they were near before"
    if index is not None:  # the control: an index over other queries finds others
        other, _ = written(replace(labels, stored=labels.stored[::-1].copy()), tmp_path / "other", kind)
        wrong = nearest_queries(stored, open_query_index(other, tmp_path / "other"), vectors, K)[1]
        assert (wrong != rows).mean() > 0.5


def test_fewer_labelled_queries_than_wanted_are_all_found(tmp_path: Path) -> None:
    _, labels = random_labels(M, 7, 9, D)
    stored, _ = written(labels, tmp_path / "labels", IndexKind(index="flat_fp16"))
    index, vectors = open_query_index(stored, tmp_path / "labels"), labels.stored[:2]
    assert np.sort(nearest_queries(stored, index, vectors, 50)[1]).tolist() == [list(range(7))] * 2
    held = stored.without(np.arange(7) == 3)
    assert np.sort(nearest_queries(held, index, vectors, 50)[1]).tolist() == [[-1, 0, 1, 2, 4, 5, 6]] * 2
    nobody = stored.without(np.ones(7, bool))
    assert (nearest_queries(nobody, index, vectors, 50)[1] == -1).all() and not len(nobody.passages)
    passages = random_labels(M, 7, 9, D)[0]
    hits = exact.search(passages, vectors, 5)
    np.testing.assert_array_equal(Memory(nobody, USES["softmax"], index).search(passages, vectors, hits)[0], hits[0])


def test_changed_pairs_equal_grouping_anew_and_copy_nothing() -> None:
    _, labels = random_labels(M, N, 700, D)
    after, pairs, added = changed(labels)
    passage, query = np.array(sorted(pairs)).T
    fresh = LabelledQueries.grouped(query, passage, M, np.concatenate([labels.vectors, added]))
    assert pairs_of(after, np.arange(M)) == pairs_of(fresh, np.arange(M)) == pairs != pairs_of(labels, np.arange(M))
    np.testing.assert_array_equal(after.passages, fresh.passages)
    np.testing.assert_array_equal(after.by_passage.sizes, fresh.by_passage.sizes)
    for rows in (np.arange(N + NEW), np.array([N + 1, 2, 0, N + NEW, -1])):
        for mine, other in zip(after.by_query.into(rows), fresh.by_query.into(rows), strict=True):
            np.testing.assert_array_equal(mine, other)
    assert after.unlabelled == fresh.unlabelled and len(after) == len(fresh) and after.scale == labels.scale
    assert after.stored is labels.stored and after.by_query.values is labels.by_query.values
    held = np.arange(N) % 3 == 0
    rest = LabelledQueries.grouped(*_kept(labels, held), M, labels.stored)
    assert pairs_of(labels.without(held), np.arange(M)) == pairs_of(rest, np.arange(M))
    assert labels.without(held).unlabelled == rest.unlabelled > 0


def _kept(labels: LabelledQueries, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    passage, query = labels.by_passage.into(np.arange(M))
    return query[~held[query]], passage[~held[query]]


def test_a_memory_with_an_index_ranks_as_without(tmp_path: Path) -> None:
    passages, labels = random_labels(M, N, 700, D)
    stored, _ = written(labels, tmp_path / "labels", IndexKind(index="ivf"))
    index, vectors = open_query_index(stored, tmp_path / "labels"), questions(labels)
    for of in (stored, changed(stored)[0]):
        hits = exact.search(passages, vectors, 10)
        for use in (USES["softmax"], USES["threshold"]):
            (scores, rows), (plain_scores, plain) = (
                Memory(of, use, through).search(passages, vectors, hits) for through in (index, None)
            )
            np.testing.assert_array_equal(rows, plain)
            np.testing.assert_allclose(scores, plain_scores, atol=1e-6)
            assert (rows != hits[1]).any(), "the control: the memory changes the ranking"


def test_many_vectors_have_lists_even_if_the_passages_are_searched_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, labels = random_labels(M, N, 700, D)
    write = partial(written, labels, kind=IndexKind())
    assert write(tmp_path / "few")[1] is None and not stored_parts(tmp_path / "few" / QUERY_INDEX)
    monkeypatch.setattr(outcome, "SCANNED", 4 * N * D - 1)
    assert write(tmp_path / "many")[1] is not None and stored_parts(tmp_path / "many" / QUERY_INDEX)
