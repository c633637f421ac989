"""Splits never share a query, and missing ones are set apart the same way each time."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gnn_encoder.data.splits import DEV, NONE, TEST, TRAIN, complete, drawn, highest, leaked, share

TEXTS = pa.chunked_array([[f"query number {i}" for i in range(2000)]])
ANSWERED = np.ones(2000, dtype=bool)


def test_shares_are_even_and_do_not_mind_case() -> None:
    places = np.array([share(text.as_py()) for text in TEXTS])
    counts = np.histogram(places, bins=10, range=(0, 1))[0]
    assert counts.min() > 150 and counts.max() < 250
    assert share(" What is IT ") == share("what is it") != share("what is that")


def test_dev_is_set_apart_from_train_alone() -> None:
    split = np.array([TRAIN] * 1500 + [TEST] * 500, dtype=np.int8)
    out, remarks = complete(split, TEXTS, ANSWERED, 0.1)
    assert (out[1500:] == TEST).all()
    assert 100 < (out == DEV).sum() < 200 and len(remarks) == 1
    assert np.array_equal(out, complete(split, TEXTS, ANSWERED, 0.1)[0])
    assert np.array_equal(complete(out, TEXTS, ANSWERED, 0.5)[0], out)


def test_without_test_dev_is_the_test_and_without_both_each_is_set_apart() -> None:
    out, _ = complete(np.array([TRAIN] * 1500 + [DEV] * 500, dtype=np.int8), TEXTS, ANSWERED, 0.1)
    assert (out[1500:] == TEST).all() and 100 < (out == DEV).sum() < 200
    out, _ = complete(np.full(2000, TRAIN, dtype=np.int8), TEXTS, ANSWERED, 0.1)
    assert 140 < (out == DEV).sum() < 260 and 140 < (out == TEST).sum() < 260


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from([NONE, TRAIN, DEV, TEST])), max_size=20))
def test_leaked_are_those_of_earlier_splits(rows: list[tuple[int, int]]) -> None:
    texts = pa.chunked_array([[f"T{text}" for text, _ in rows]], pa.string())
    expected = [
        s != NONE and any(other == text and later > s for other, later in rows) for text, s in rows
    ]  # fmt: skip
    assert leaked(texts, np.array([s for _, s in rows], dtype=np.int8)).tolist() == expected


def test_twins_are_set_apart_together() -> None:
    """Query i has twins that differ in blanks, in case and composition, and (with a threshold) in a word more."""
    kinds = ("w{} caf\u00e9 a b c", "W{}  cafe\u0301\ta B c", "w{} caf\u00e9 a b c d")
    texts = pa.chunked_array([[kind.format(i) for kind in kinds for i in range(500)]])
    train = np.full(1500, TRAIN, dtype=np.int8)
    for similarity, together in ((0.0, 2), (0.8, 3)):
        split = complete(train, texts, ANSWERED[:1500], 0.2, similarity)[0].reshape(3, 500)
        assert (split[:together] == split[0]).all()
        assert (split == split[0]).all() == (together == 3)
        assert 60 < (split[0] == DEV).sum() < 140 and 60 < (split[0] == TEST).sum() < 140
        backwards = complete(train, texts.take(np.arange(1500)[::-1]), ANSWERED[:1500], 0.2, similarity)[0][::-1]
        assert np.array_equal(backwards, split.ravel())


def test_of_several_splits_the_latest_counts() -> None:
    query_splits = np.array([NONE, NONE, TRAIN, NONE], dtype=np.int8)
    query, split = np.array([0, 0, 1, 2]), np.array([TEST, TRAIN, DEV, TRAIN], dtype=np.int8)
    assert highest(query_splits, query, split).tolist() == [TEST, DEV, TRAIN, NONE]


def test_a_draw_is_of_training_queries_and_those_with_an_answer_come_first() -> None:
    split = np.array([TRAIN] * 1500 + [DEV] * 300 + [TEST] * 200, dtype=np.int8)
    answered = np.arange(2000) % 3 > 0
    keep = drawn(split, TEXTS, answered, {TRAIN: 800}, seed=0)
    assert keep[1500:].all() and keep.sum() == 800 + 500
    assert answered[:1500][keep[:1500]].all()
    assert 330 < keep[:750].sum() < 470  # from all over, not from the front
    assert np.array_equal(keep, drawn(split, TEXTS, answered, {TRAIN: 800}, seed=0))
    other = drawn(split, TEXTS, answered, {TRAIN: 800}, seed=1)
    assert 550 < (keep & other)[:1500].sum() < 720  # 800 × 800 / 1000 for two draws that know nothing of each other
    filled = drawn(split, TEXTS, answered, {TRAIN: 1200}, seed=0)[:1500]
    assert filled[answered[:1500]].all() and filled.sum() == 1200
    assert all(drawn(split, TEXTS, answered, {TRAIN: most}, seed=0).all() for most in (0, 1500))
    both = drawn(split, TEXTS, answered, {TRAIN: 800, DEV: 50}, seed=0)
    assert np.array_equal(both[:1500], keep[:1500]) and both[1800:].all()
    assert both[1500:1800].sum() == 50 == (both & answered)[1500:1800].sum()


def test_a_draw_changes_by_what_came_and_not_as_a_whole() -> None:
    split, answered = np.full(2000, TRAIN, dtype=np.int8), np.ones(2000, dtype=bool)
    before = drawn(split[:1900], TEXTS.slice(0, 1900), answered[:1900], {TRAIN: 500}, seed=0)
    after = drawn(split[::-1], TEXTS.take(np.arange(2000)[::-1]), answered, {TRAIN: 500}, seed=0)[::-1]
    assert not (after[:1900] & ~before).any() and after[:1900].sum() > 450


def test_a_draw_does_not_follow_from_where_dev_was_set_apart() -> None:
    split, _ = complete(np.array([TRAIN] * 1500 + [TEST] * 500, dtype=np.int8), TEXTS, ANSWERED, 0.5)
    places = np.array([share(text.as_py()) for text in TEXTS])
    train = np.flatnonzero(split == TRAIN)
    keep = drawn(split, TEXTS, np.ones(2000, dtype=bool), {TRAIN: len(train) // 2}, seed=0)[train]
    assert abs(places[train][keep].mean() - places[train][~keep].mean()) < 0.05


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=50), st.sampled_from([0.0, 0.1, 0.5]), st.booleans())
def test_few_queries_are_set_apart_so_that_both_sides_have_some(names: set[int], fraction: float, test: bool) -> None:
    """Chance alone would set apart none of a few queries, or nearly all. Every third query has no relevant passage."""
    texts = pa.chunked_array([[f"question {name}" for name in sorted(names)]])
    answered = np.arange(len(names)) % 3 > 0
    split = np.full(len(names), TRAIN, dtype=np.int8)
    if test:
        texts = pa.chunked_array([[*texts.to_pylist(), "a test query"]])
        answered, split = np.append(answered, True), np.append(split, np.int8(TEST))
    before = int((answered & (split == TRAIN)).sum())
    out, _ = complete(split, texts, answered, fraction)
    train, dev, tests = (int((answered & (out == part)).sum()) for part in (TRAIN, DEV, TEST))
    assert train >= min(before, 2) and train + dev + tests == before + test
    if fraction:
        spare = before - 2
        assert (tests > 0) == (test or spare > 0) and (dev > 0) >= (test and spare > 0)
    else:
        assert (out == split).all()
