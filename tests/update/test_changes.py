"""What is found again by content, against plain loops and a whole search."""

from dataclasses import replace

import numpy as np
import pytest

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.artifacts.digests import find, text_digests
from gnn_encoder.retrieval import exact
from gnn_encoder.update import former as former_graph
from gnn_encoder.update.changes import carry_over, neighbourhood_digests
from gnn_encoder.update.former import FormerGraph

DEPTH, NEEDED = 8, 4


def graph_of(edges: np.ndarray, passages: int, retrieved: np.ndarray | None = None) -> Graph:
    nodes = np.arange(len(edges), dtype=np.int32)
    return Graph(nodes, edges, np.zeros(edges.shape, bool), None, *reverse_csr(edges, passages), retrieved=retrieved)


def test_find_and_carry_over() -> None:
    known, wanted = text_digests(["a", "b", "c"]), text_digests(["c", "x", "a", "c"])
    assert find(known, wanted).tolist() == [2, -1, 0, 2]
    assert find(known[:0], wanted).tolist() == [-1] * 4
    half = wanted.copy()
    half[:, 1] += np.uint64(1)  # the same first word alone is no match
    assert find(known, half).tolist() == [-1] * 4
    out = np.zeros((4, 1))
    assert carry_over(find(known, wanted), np.array([[1.0], [2.0], [3.0]]), out).tolist() == [1]
    assert out[:, 0].tolist() == [3, 0, 1, 3]


def test_copies_of_a_text_are_told_apart_by_their_own_label() -> None:
    # Passages 0 and 1 have one text; both are reached by both queries, each is labelled with another.
    graph = graph_of(np.array([[0, 1, 2], [0, 1, 2]], np.int32), 3)
    labelled = np.array([[True, False, False], [False, True, False]])
    queries, passages = text_digests("uv"), text_digests("aab")
    same = neighbourhood_digests(graph, queries, passages)
    apart = neighbourhood_digests(replace(graph, labelled=labelled), queries, passages)
    assert (same[0] == same[1]).all() and (apart[0] != apart[1]).all()


def test_a_neighbourhood_is_its_text_and_its_queries_with_all_their_passages() -> None:
    edges = np.array([[0, 1], [1, 2], [3, -1]], np.int32)
    queries, passages = text_digests("uvw"), text_digests("abcde")
    before = neighbourhood_digests(graph_of(edges, 5), queries, passages)

    def differ(edges: np.ndarray = edges, queries: np.ndarray = queries, passages: np.ndarray = passages) -> list[int]:
        after = neighbourhood_digests(graph_of(edges, 5), queries, passages)
        return np.flatnonzero((before != after).any(axis=1)).tolist()

    assert differ() == []
    assert differ(queries=text_digests("uxw")) == [1, 2]
    assert differ(passages=text_digests("abxde")) == [1, 2]  # 1 by its query's other passage
    assert differ(passages=text_digests("abcdx")) == [4]
    assert differ(edges=np.array([[1, 0], [1, 2], [3, -1]], np.int32)) == [0, 1]
    assert differ(edges=np.array([[0, 1], [1, -1], [3, -1]], np.int32)) == [1, 2]
    order = [2, 0, 1]  # the queries' rows are no part of it
    assert differ(edges=edges[order], queries=queries[order]) == []


@pytest.mark.parametrize("seed", range(4))
def test_search_carried_over(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former_graph, "CHUNK", 7)
    generator = np.random.default_rng(seed)
    vectors, queries = generator.standard_normal((90, 6)).astype(np.float32), generator.standard_normal((40, 6))
    queries, texts = queries.astype(np.float32), np.array([f"text {i}" for i in range(90)])
    texts[50], vectors[50] = texts[0], vectors[0]  # one text twice, also among what is new
    texts[80], vectors[80] = texts[3], vectors[3]
    old, new = np.arange(70), np.concatenate([generator.permutation(np.arange(4, 90)), [3]])
    before, after = text_digests(texts[old]), text_digests(texts[new])
    retrieved = exact.search(vectors[old], queries[:30], DEPTH)[1]
    former = FormerGraph(
        graph_of(retrieved[:, :NEEDED], len(old), retrieved), vectors[old], queries[:30],
        np.where(np.arange(40) < 30, np.arange(40), -1), find(before, after), find(after, before), True, np.arange(40),
        queries[:0], np.arange(0),
    )  # fmt: skip
    expected_scores, expected = exact.search(vectors[new], queries, DEPTH)
    hits = former.search(vectors[new], queries, DEPTH, NEEDED)
    assert (hits[:, :NEEDED] >= 0).all() and (hits >= 0).mean() > 0.8
    for query, row in enumerate(hits):
        known = row >= 0
        scores = vectors[new][row[known]] @ queries[query]
        np.testing.assert_allclose(scores, expected_scores[query][known], atol=1e-5)
        assert len(set(row[known])) == known.sum()
    assert (hits == expected).mean() > 0.8
    places = former.feature_rows(np.array([0, 0, 39]), np.array([hits[0, 0], 85, 0]))
    slots = former.graph.edges[0].tolist()
    assert places[0] == (slots.index(old_row) if (old_row := former.passages[hits[0, 0]]) in slots else -1)
    assert places[2] == -1
