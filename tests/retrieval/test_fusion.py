import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Run
from gnn_encoder.evaluation.tuning import first_best
from gnn_encoder.retrieval import fusion
from gnn_encoder.retrieval.fusion import GRID, fuse, min_max, values_by_weight

Lists = dict[int, list[tuple[int, float]]]
"""Of each query its passages and scores, best first."""


@st.composite
def two_rankings(draw: st.DrawFn) -> tuple[Lists, Lists]:
    """Queries that one, both or none has hits for; one hit, all scores equal, negative scores."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.sampled_from([1, 3, 1000]))
    both: tuple[Lists, Lists] = ({}, {})
    for lists in both:
        for query in range(9):
            if generator.random() < 0.2:
                continue
            passages = generator.choice(30, generator.integers(1, 20), replace=False).tolist()
            scores = -np.sort(-(generator.integers(0, levels, len(passages)) - levels / 2).astype(np.float32))
            lists[query] = list(zip(passages, scores.tolist(), strict=True))
    return both


def run_of(lists: Lists) -> Run:
    rows = [(q, p, rank, s) for q, hits in lists.items() for rank, (p, s) in enumerate(hits, start=1)]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    types = (np.int32, np.int32, np.int32, np.float32)
    return Run(*(np.array(c, dtype=t) for c, t in zip(columns, types, strict=True)))


def plain(first: Lists, second: Lists, value: list, depth: int) -> Lists:
    """Fusion query by query in dictionaries; `value[i](hits, rank, score)` is what ranking i gives a hit."""
    out: Lists = {}
    for query in sorted({*first, *second}):
        totals: dict[int, float] = {}
        for lists, of_hit in zip((first, second), value, strict=True):
            hits = lists.get(query, [])
            for rank, (passage, score) in enumerate(hits, start=1):
                totals[passage] = totals.get(passage, 0.0) + of_hit([s for _, s in hits], rank, score)
        single = {passage: float(np.float32(total)) for passage, total in totals.items()}
        out[query] = sorted(single.items(), key=lambda item: (-item[1], item[0]))[:depth]
    return out


def normalised(weight: float):
    def value(scores: list[float], rank: int, score: float) -> float:
        low, high = min(scores), max(scores)
        return weight * ((score - low) / (high - low) if high > low else 1.0)

    return value


def lists_of(run: Run) -> Lists:
    out: Lists = {}
    for q, p, rank, s in zip(*(getattr(run, c).tolist() for c in ("query", "passage", "rank", "score")), strict=True):
        out.setdefault(q, []).append((p, s))
        assert rank == len(out[q])
    return out


@settings(max_examples=80, deadline=None)
@given(two_rankings(), st.sampled_from(GRID), st.sampled_from([1, 4, 50]), st.sampled_from([2, 512]))
def test_fusion_equals_dictionaries(both: tuple[Lists, Lists], weight: float, depth: int, block: int) -> None:
    first, second = map(run_of, both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "QUERIES", block)
        combined, reciprocal = fuse(first, second, weight, depth)
    assert lists_of(combined) == plain(*both, [normalised(1 - weight), normalised(weight)], depth)
    assert lists_of(reciprocal) == plain(*both, [lambda _, rank, __: 1 / (60 + rank)] * 2, depth)


@settings(max_examples=40, deadline=None)
@given(two_rankings(), st.sampled_from(GRID))
def test_the_first_hits_do_not_depend_on_the_depth(both: tuple[Lists, Lists], weight: float) -> None:
    """Passages behind the summed hits follow, by their own scores, from -2 on."""
    near = [{query: hits[:4] for query, hits in lists.items()} for lists in both]
    behind = [{query: hits[4:] for query, hits in lists.items() if hits[4:]} for lists in both]
    whole = [normalised(1 - weight), normalised(weight)]
    first, then = plain(near[0], near[1], whole, 99), plain(behind[0], behind[1], whole, 99)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "DEPTH", 4)
        fused, _ = fuse(*map(run_of, both), weight, 99)
        shorter, _ = fuse(*map(run_of, near), weight, 99)
    assert lists_of(shorter) == first
    for query, hits in lists_of(fused).items():
        summed = first.get(query, [])
        known = {passage for passage, _ in summed}
        assert hits[: len(summed)] == summed
        of_behind = [(passage, score - 2) for passage, score in then.get(query, []) if passage not in known]
        assert sorted(hits[len(summed) :]) == [(p, pytest.approx(s, abs=1e-6)) for p, s in sorted(of_behind)]
        scores = [score for _, score in hits]
        assert scores == sorted(scores, reverse=True)


def test_weights_of_nought_and_one_are_the_systems_themselves() -> None:
    generator = np.random.default_rng(0)
    first, second = (
        run_of({q: [(int(p), float(20 - i)) for i, p in enumerate(generator.permutation(40)[:20])] for q in range(5)})
        for _ in range(2)
    )
    for weight, ranking in ((0.0, first), (1.0, second)):
        top, _ = fuse(first, second, weight, 19)  # the last hit has 0, as has what was not found
        np.testing.assert_array_equal(top.passage, ranking.passage[ranking.rank <= 19])
    assert not np.array_equal(fuse(first, second, 0.5, 19)[0].passage, first.passage[first.rank <= 19])


def test_scores_lie_between_nought_and_one() -> None:
    run = run_of({0: [(1, 7.0), (2, 3.0), (3, -1.0)], 2: [(5, 4.0)], 3: [(1, 2.0), (9, 2.0)]})
    assert min_max(run).tolist() == [1.0, 0.5, 0.0, 1.0, 1.0, 1.0]
    assert min_max(run_of({})).tolist() == []


def test_the_weight_found_is_the_best_of_the_grid() -> None:
    # Query 0's passage 1 is first only where the second system weighs more than a half and less than 0.72.
    first = run_of({0: [(7, 1.0), (1, 0.4), (9, 0.0)]})
    second = run_of({0: [(8, 1.0), (1, 0.84), (7, 0.25), (9, 0.0)]})

    def first_is_right(run: Run) -> np.ndarray:
        return (run.passage == 1).astype(float)

    def expected(weight: float) -> bool:
        right = (1 - weight) * 0.4 + weight * 0.84
        return right > max((1 - weight) + weight * 0.25, weight)

    values = values_by_weight(first, second, first_is_right, depth=1)
    figures = dict(zip(GRID, values[:, 0].tolist(), strict=True))
    assert {w for w, figure in figures.items() if figure} == {w for w in GRID if expected(w)}
    assert 0 < sum(figures.values()) < len(GRID)
    assert GRID[first_best(values)] == min((w for w in GRID if expected(w)), key=lambda w: abs(w - 0.5))
    assert GRID[first_best(np.full((len(GRID), 3), 0.25))] == 0.5
