"""Runs, pair scores, generated queries and training sets come back as they were written."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import GeneratedQueries, PairScores, Run, TrainingSet, drafting, pair_keys, read_manifest


def random_run(seed: int, n: int = 9, k: int = 6) -> tuple[Run, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    queries = generator.permutation(50)[:n].astype(np.int32)
    passages = np.stack([generator.permutation(200)[:k] for _ in range(n)]).astype(np.int32)
    passages[np.arange(k) >= generator.integers(0, k + 1, n)[:, None]] = -1
    scores = -np.sort(-generator.normal(size=(n, k)).astype(np.float32), axis=1)
    return Run.from_hits(queries, passages, scores), queries, passages, scores


def rows(run: Run) -> list[tuple[float, ...]]:
    return list(zip(*(getattr(run, name).tolist() for name in ("query", "passage", "rank", "score")), strict=True))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000))
def test_run_from_hits_is_a_loop(seed: int) -> None:
    run, queries, passages, scores = random_run(seed)
    expected = []
    for i in np.argsort(queries):
        for rank, (passage, score) in enumerate(zip(passages[i], scores[i], strict=True), start=1):
            if passage >= 0:
                expected.append((int(queries[i]), int(passage), rank, float(score)))
    assert rows(run) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), depth=st.integers(1, 9))
def test_hits_give_back_what_went_in(seed: int, depth: int) -> None:
    run, queries, passages, _ = random_run(seed)
    padded = np.pad(passages, ((0, 0), (0, 9)), constant_values=-1)
    np.testing.assert_array_equal(run.hits(queries, depth), padded[:, :depth])
    assert (run.hits(np.array([77], np.int32), depth) == -1).all()
    assert set(run.of(queries[:3]).query) <= set(queries[:3])
    assert run.of(queries, depth).rank.max(initial=0) <= depth


def test_run_round_trip_and_concatenation(tmp_path: Path) -> None:
    run = random_run(1)[0]
    with drafting(tmp_path / "run", "run") as draft:
        run.write(draft)
    back = Run.read(tmp_path / "run")
    assert rows(back) == rows(run)
    assert [getattr(back, name).dtype for name in ("query", "passage", "rank", "score")] == [
        *[np.int32] * 3,
        np.float32,
    ]
    assert read_manifest(tmp_path / "run").rows == {"hits": len(run.query), "queries": len(np.unique(run.query))}
    halves = [run.of(np.unique(run.query)[1::2]), run.of(np.unique(run.query)[::2])]
    assert rows(Run.concatenate(halves)) == rows(run)


def test_pair_scores_round_trip_and_find(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    keys = np.sort(generator.permutation(300)[:80])
    query, passage = (keys // 20).astype(np.int32), (keys % 20).astype(np.int32)
    score = generator.normal(0, 5, 80).astype(np.float32)
    vectors = generator.normal(size=(80, 3)).astype(np.float16)
    with drafting(tmp_path / "pairs", "pair_scores") as draft:
        PairScores.create_cls(draft, 80, 3)[:] = vectors
        PairScores.write(draft, query, passage, score, score / 9)
    pairs = PairScores.read(tmp_path / "pairs")
    written = {"query": query, "passage": passage, "score": score, "probability": score / 9, "cls": vectors}
    for name, expected in written.items():
        np.testing.assert_array_equal(getattr(pairs, name), expected)
    assert isinstance(pairs.cls, np.memmap)
    everything = np.arange(320)
    expected_rows = [list(keys).index(key) if key in keys else -1 for key in everything]
    assert pairs.find(everything // 20, everything % 20).tolist() == expected_rows
    empty = PairScores(query[:0], passage[:0], score[:0], score[:0], vectors[:0])
    assert empty.find(np.array([[1, 2]]), np.array([[3, 4]])).tolist() == [[-1, -1]]


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=20))
def test_pair_keys_order_like_pairs(pairs: list[tuple[int, int]]) -> None:
    query, passage = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    keys = pair_keys(query, passage)
    assert [pairs[i] for i in np.argsort(keys, kind="stable")] == sorted(pairs)
    assert (keys >> 32).tolist() == query.tolist() and (keys & 0xFFFFFFFF).tolist() == passage.tolist()


def test_generated_queries_round_trip(tmp_path: Path) -> None:
    passages, texts = np.array([2, 5, 9], np.int32), ["what is ä", "", 'quo"ted\n']
    triples = (np.array([0, 0, 7], np.int32), np.array([5, 2, 9], np.int32), np.array([0.5, -0.1, 1], np.float32))
    for name, count in (("full", 3), ("empty", 0)):
        with drafting(tmp_path / name, "generated_queries") as draft:
            GeneratedQueries(passages[:count], texts[:count], *(column[:count] for column in triples)).write(draft)
        back = GeneratedQueries.read(tmp_path / name)
        assert back.text == texts[:count] and back.passage.tolist() == passages[:count].tolist()
        for mine, expected in zip((back.query, back.negative, back.similarity), triples, strict=True):
            np.testing.assert_array_equal(mine, expected[:count])
            assert mine.dtype == expected.dtype


def test_training_set_round_trip(tmp_path: Path) -> None:
    examples = TrainingSet(
        ["a", "b", "c"],
        np.array([3, -1, 0], np.int32),
        np.array([7, 8, 9], np.int32),
        np.array([[1, 2], [4, -1], [-1, -1]], np.int32),
        np.array([0, 3, 1], np.int8),
    )
    with drafting(tmp_path / "set", "training_set") as draft:
        examples.write(draft)
    back = TrainingSet.read(tmp_path / "set")
    assert back.query_text == examples.query_text
    for name in ("query", "positive", "negatives", "origin"):
        np.testing.assert_array_equal(getattr(back, name), getattr(examples, name))
        assert getattr(back, name).dtype == getattr(examples, name).dtype
