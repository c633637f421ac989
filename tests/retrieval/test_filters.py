"""A filter is exact: every part of a ranking, over every kind of index, against brute force over what fits."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from labelled import unit
from parts_world import SOME, D, World, random_texts
from random_filters import columns, fits, random_filter, random_records

from gnn_encoder.artifacts.labelled_queries import LabelUse
from gnn_encoder.data.fields import FieldColumns
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import index_file, learned_search, parts, passage_index
from gnn_encoder.retrieval.filters import Filters, Selection, filter_of
from gnn_encoder.retrieval.index_file import ChangedIndex, Index, build_index, load_index, search_index
from gnn_encoder.retrieval.learned_fusion import Alone, Fusion, Linear, Trees
from gnn_encoder.retrieval.learned_search import LearnedSearch
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.parts import FEATURES, Parts
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import ranking
from gnn_encoder.settings.outcome import IndexKind

M = 300
MANY = [8, pytest.param(1000, marks=pytest.mark.slow)]
"""Random filters."""


class Filtered:
    """Random fields of `M` passages; `selections` gives some random filters' passages."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(6)
        self.records = random_records(np.random.default_rng(5), M)
        self.filters = Filters(columns(self.records), M)

    @staticmethod
    @cache
    def selections(count: int) -> list[tuple[Selection, np.ndarray]]:
        """The selections, and the passages that fit in plain Python, bool [m]."""
        filtered, generator, pairs = Filtered(), np.random.default_rng(7), []
        for _ in range(count):
            wanted = random_filter(generator, filtered.records)
            selection = filtered.filters.select(wanted)
            assert selection
            pairs.append((selection, np.array([fits(record, wanted) for record in filtered.records])))
        return pairs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def ladder(world: World) -> Parts:
    parts_of_world = world.parts()
    return replace(parts_of_world, search=partial(search_index, parts_of_world.vectors))


def assert_best(scores: np.ndarray, rows: np.ndarray, of_all: np.ndarray, mask: np.ndarray, ties: bool = True) -> None:
    """The hits [k] are the best by `of_all` [m] among those in `mask`; without `ties`, up to equal scores.

    At the cut-off FAISS's own indexes keep arbitrary ones of equal scores, with a filter or without.
    """
    best = np.flatnonzero(mask)
    best = best[np.argsort(-of_all[best], kind="stable")][: len(rows)]
    assert (rows[len(best) :] == -1).all() and mask[rows[: len(best)]].all()
    assert len(set(rows[: len(best)].tolist())) == len(best)
    assert np.allclose(scores[: len(best)], of_all[best], atol=1e-4)
    assert np.allclose(of_all[rows[: len(best)]], of_all[best], atol=1e-4)
    if ties:
        assert rows[: len(best)].tolist() == best.tolist()


def test_what_fits_is_what_plain_python_says() -> None:
    filtered = Filtered()
    pairs = filtered.selections(400)
    for selection, mask in pairs:
        assert np.array_equal(selection.mask, mask) and np.array_equal(selection.rows, np.flatnonzero(mask))
    sizes = np.array([mask.sum() for _, mask in pairs])
    assert (sizes == 0).sum() > 5 and (sizes == M).sum() > 0 and ((sizes > 5) & (sizes < M - 5)).sum() > 200


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("index_parts", [1, 3])
@pytest.mark.parametrize("kind", ["flat", "flat_fp16", "sq8", "ivf", "hnsw", "links", "changed"])
def test_every_kind_of_index_equals_brute_force(
    kind: str, index_parts: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small integers: equal scores are really equal, and there are many. `links`: hnsw never compares all."""
    if kind == "links":
        monkeypatch.setattr(index_file, "PER_CANDIDATE", 0)
    filtered = Filtered()
    vectors = filtered.generator.integers(-3, 4, (M, 8)).astype(np.float32)
    queries = filtered.generator.integers(-3, 4, (3, 8)).astype(np.float32)
    stored = {"changed": "flat_fp16", "links": "hnsw"}.get(kind, kind)
    how = IndexKind(index=stored, ivf_lists=10, ivf_probes=40, hnsw_breadth=512, index_parts=index_parts)  # type: ignore[arg-type]
    former = vectors.copy()
    if kind == "changed":
        rows = np.sort(filtered.generator.choice(M, 40, replace=False))
        former[rows] = filtered.generator.integers(-3, 4, (40, 8))
    build_index(former, tmp_path / "index.faiss", how)
    index: Index = former if kind == "flat" else load_index(tmp_path / "index.faiss", former.shape)
    if kind == "changed":
        index = ChangedIndex(index, rows, vectors[rows])  # type: ignore[arg-type]
    stored_vectors = vectors
    if kind == "sq8":
        indexes = index.parts if index_parts > 1 else [index]  # type: ignore[union-attr]
        stored_vectors = np.concatenate([one.reconstruct_n(0, one.ntotal) for one in indexes])  # type: ignore[union-attr]
    of_all = queries @ stored_vectors.T
    for number, (selection, mask) in enumerate(filtered.selections(count)):
        k = (1, 7, M + 20)[number % 3]
        for scores, rows, every in zip(*search_index(index, queries, k, selection), of_all, strict=True):
            assert_best(scores, rows, every, mask, ties=kind == "flat")


@pytest.mark.parametrize("index_parts", [1, 3])
def test_an_index_that_finds_fewer_than_it_could_compares_all(index_parts: int, tmp_path: Path) -> None:
    filtered = Filtered()
    vectors = filtered.generator.integers(-3, 4, (M, 8)).astype(np.float32)
    queries = filtered.generator.integers(-3, 4, (3, 8)).astype(np.float32)
    how = IndexKind(index="ivf", ivf_lists=10, ivf_probes=1, index_parts=index_parts)
    build_index(vectors, tmp_path / "index.faiss", how)
    index, of_all = load_index(tmp_path / "index.faiss", vectors.shape), queries @ vectors.T
    for selection, mask in filtered.selections(40):
        for scores, rows, every in zip(*search_index(index, queries, M, selection), of_all, strict=True):
            assert_best(scores, rows, every, mask, ties=False)
    _, rows = search_index(index, queries, M)
    assert (rows < 0).any(), "without a filter it misses some"


def test_a_part_with_one_passage_of_many_is_compared(tmp_path: Path) -> None:
    """The candidates that hnsw would keep, if it looked at as many as without the filter, have no bound."""
    vectors = Filtered().generator.normal(size=(M, 8)).astype(np.float32)
    how = IndexKind(index="hnsw", hnsw_breadth=2**24, index_parts=2)
    build_index(vectors, tmp_path / "index.faiss", how)
    mask = np.arange(M) <= M // 2
    _, rows = search_index(load_index(tmp_path / "index.faiss", vectors.shape), vectors[:1], M, Selection(mask))
    assert sorted(rows[rows >= 0].tolist()) == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_few_passages_are_compared_by_their_vectors(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a search misses none, and their precision is that of the vectors."""
    filtered = Filtered()
    vectors = unit(filtered.generator.normal(size=(M, 8)))
    queries = unit(filtered.generator.normal(size=(3, 8)))
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index=kind, ivf_lists=10, ivf_probes=1))  # type: ignore[arg-type]
    index = PassageIndex(load_index(tmp_path / "index.faiss", vectors.shape), vectors)
    of_all, selections = queries @ vectors.T, [*filtered.selections(40)]
    for selection, mask in selections:
        for scores, rows, every in zip(*index.search(queries, 7, selection), of_all, strict=True):
            assert_best(scores, rows, every, mask)
    monkeypatch.setattr(passage_index, "FEW", 0)
    by_index = np.stack([index.search(queries, 7, selection)[0] for selection, _ in selections])
    by_vectors = np.stack(
        [PassageIndex(vectors, vectors).search(queries, 7, selection)[0] for selection, _ in selections]
    )
    assert (by_index != by_vectors).any()


@pytest.mark.parametrize("count", MANY)
def test_passages_with_several_vectors_equal_brute_force(count: int) -> None:
    filtered = Filtered()
    generator = filtered.generator
    of = np.repeat(np.arange(M), generator.integers(1, 5, M)).astype(np.int32)
    vectors, queries = (generator.integers(-3, 4, (n, 6)).astype(np.float32) for n in (len(of), 3))
    changed_of = np.repeat(generator.choice(M, 20, replace=False), 2)
    changed_of.sort()
    changed = generator.integers(-3, 4, (40, 6)).astype(np.float32)
    stays = ~np.isin(of, changed_of)
    plain, other = np.full((3, M), -np.inf), np.full((3, M), -np.inf)
    for i, query in enumerate(queries):
        np.maximum.at(plain[i], of, vectors @ query)
        np.maximum.at(other[i], of[stays], vectors[stays] @ query)
        np.maximum.at(other[i], changed_of, changed @ query)
    for selection, mask in filtered.selections(count):
        for index, of_all in (
            (PassageIndex(vectors, vectors, of), plain),
            (PassageIndex(vectors, vectors, of, changed=(changed, changed_of)), other),
        ):
            for scores, rows, every in zip(*index.search(queries, 9, selection), of_all, strict=True):
                assert_best(scores, rows, every, mask)


def test_a_selection_of_several_vectors_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    selections, real = [], Selection.at
    monkeypatch.setattr(Selection, "at", lambda self, places: selections.append(self) or real(self, places))
    vectors, of = np.eye(4, dtype=np.float32), np.array([0, 0, 1, 2], np.int32)
    index, some = PassageIndex(vectors, vectors, of), [Selection(np.arange(3) == row) for row in range(3)]
    for only in (*some, *some):
        _, rows = index.search(vectors[:1], 2, only)
        assert rows.tolist() == [[*only.rows.tolist(), -1]]
    assert selections == some


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("part", ["dense", "words", "both", "memory", "adapted", "labelled", "linear", "trees"])
def test_every_part_equals_brute_force(
    part: str, count: int, world: World, ladder: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small `KEPT`, so that the candidates of parts differ, and hits behind the candidates follow."""
    filtered = Filtered()
    questions = random_texts(filtered.generator, SOME)
    queries, vectors = unit(filtered.generator.normal(size=(SOME, D))), ladder.vectors
    monkeypatch.setattr(parts, "KEPT", M)
    every = ladder.candidates(questions, queries)
    monkeypatch.setattr(parts, "KEPT", 4)
    features = np.full((SOME, M, len(FEATURES)), np.nan, np.float32)
    features[every.query, every.passage] = every.features
    assert not np.isnan(features).any(), "every passage is a candidate"
    raw = {name: features[:, :, FEATURES.index(name)].astype(np.float64) for name in FEATURES}
    fusion: Fusion | None = {
        "adapted": Alone("adapted", FEATURES.index("adapted")),
        "labelled": Alone("labelled", FEATURES.index("labelled")),
        "linear": Linear(filtered.generator.normal(size=len(FEATURES)), 0.5),
        "trees": Trees.fit(every.features, every.features[:, 0] > 0.3, np.diff(every.starts), smallest_leaf=5),
    }.get(part)
    index = PassageIndex(vectors, vectors)
    if fusion:
        index = replace(index, learned=LearnedSearch(ladder, fusion))
    if part == "memory":
        use = LabelUse("softmax", 0.7, neighbours=12, temperature=0.1, threshold=0.2)
        index = replace(index, memory=Memory(world.labels, use))
        raw["memory"] = _with_memory(world, queries, raw["dense"], use)
    weight = {"words": 0.0, "both": 0.3}.get(part)
    for selection, mask in filtered.selections(count):
        run = ranking(index, ladder.words, np.arange(SOME), questions, queries, 12, weight, only=selection)
        for i in range(SOME):
            mine = run.query == i
            scores, rows = run.score[mine], run.passage[mine]
            if part in ("linear", "trees"):
                assert fusion
                expected = _by_fusion(fusion, raw, i, mask, 4)
            elif part == "both":
                expected = _hybrid(raw["words"][i], raw["dense"][i], mask, 0.3)
            else:
                expected = np.where(mask & ((part not in ("words", "labelled")) | (raw[part][i] > 0)), raw[part][i], -9)
            inside = expected > -9 if part in ("words", "labelled", "both") else mask
            assert len(rows) == min(12, inside.sum()) and (run.rank[mine] == np.arange(1, len(rows) + 1)).all()
            assert_best(scores, rows, expected, inside, ties=False)


def test_a_fusion_has_as_many_hits_as_are_asked_for(ladder: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more than `DEPTH`; up to `DEPTH`, scores do not depend on how many are asked for."""
    generator = np.random.default_rng(0)
    questions, queries = random_texts(generator, SOME), unit(generator.normal(size=(SOME, D)))
    search = LearnedSearch(ladder, Linear(generator.normal(size=len(FEATURES)), 0.5))
    monkeypatch.setattr(parts, "KEPT", 2)
    monkeypatch.setattr(learned_search, "DEPTH", 20)
    left_out = generator.integers(-1, M, SOME)
    runs = {k: search.run(np.arange(SOME), questions, queries, k, left_out) for k in (5, 20, 21, 60)}
    for k, run in runs.items():
        assert np.bincount(run.query, minlength=SOME).tolist() == [k] * SOME
        assert not (run.passage == left_out[run.query]).any()
    first = runs[20].where(runs[20].rank <= 5)
    assert (first.passage == runs[5].passage).all() and (first.score == runs[5].score).all()


def _with_memory(world: World, queries: np.ndarray, dense: np.ndarray, use: LabelUse) -> np.ndarray:
    scores = dense.copy()
    for i, query in enumerate(queries):
        near = sorted(range(len(world.queries)), key=lambda q: -(world.queries[q] @ query))[: use.neighbours]
        similar = np.array([world.queries[q] @ query for q in near])
        shares = np.exp((similar - similar[0]) / (use.temperature * world.labels.scale))
        shares *= use.weight * world.labels.scale / shares.sum()
        for q, share, similarity in zip(near, shares, similar, strict=True):
            if similarity >= use.threshold * world.labels.scale:
                scores[i, np.unique(world.passage[world.query == q])] += share
    return scores


def _min_max(scores: np.ndarray, inside: np.ndarray) -> np.ndarray:
    low, high = scores[inside].min(initial=np.inf), scores[inside].max(initial=-np.inf)
    return np.where(inside, (scores - low) / (high - low) if high > low else 1.0, 0.0)


def _hybrid(words: np.ndarray, dense: np.ndarray, mask: np.ndarray, weight: float) -> np.ndarray:
    matching = mask & (words > 0)
    total = (1 - weight) * _min_max(words, matching) + weight * _min_max(dense, mask)
    return np.where(mask, total, -9)


def _by_fusion(fusion: Fusion, raw: dict[str, np.ndarray], i: int, mask: np.ndarray, kept: int) -> np.ndarray:
    """Scores [m] by a fusion of the candidates among the passages in `mask`, and behind them by the hybrid."""
    inside = np.flatnonzero(mask)
    candidates: set[int] = set()
    for name in ("dense", "words", "labelled", "adapted", "memory"):
        best = inside[np.argsort(-raw[name][i][inside], kind="stable")]
        positive = name in ("words", "labelled", "memory")
        candidates |= set([row for row in best.tolist() if not positive or raw[name][i][row] > 0][:kept])
    rows = np.array(sorted(candidates), int)
    expected = np.where(mask, 0.0, -9)
    hybrid = _hybrid(raw["words"][i], raw["dense"][i], mask, 0.5)
    if len(rows):
        values = []
        for name in FEATURES:
            part = raw[name.split()[0]][i][rows] if name.split()[0] in raw else raw[name][i][rows]
            if name.endswith("below best"):
                values.append(part - part.max())
            elif name.endswith("of best"):
                values.append(part / max(part.max(), 1e-9))
            elif name.endswith("rank"):
                values.append([1 / (1 + (part.astype(np.float32) > one).sum()) for one in part.astype(np.float32)])
            else:
                values.append(raw[name][i][rows])
        of_candidates = fusion.scores(np.array(values, np.float32).T)
        expected = np.where(mask, of_candidates.min() - 2 + hybrid, -9)
        expected[rows] = of_candidates
    return expected


def test_a_selection_is_computed_once_and_few_are_kept() -> None:
    filtered = Filtered()
    first = filtered.filters.select({"product": "pump", "year": {">": 2003}})
    assert filtered.filters.select({"year": {">": 2003}, "product": "pump"}) is first
    assert filtered.filters.select(None) is None
    small = Filters(columns(filtered.records), 2**26)
    assert small._selected.cache_parameters()["maxsize"] == 2, "each takes some 400 MB"


def test_facets_count_each_passage_once_among_those_selected() -> None:
    filtered = Filtered()
    for selection, mask in filtered.selections(50):
        facets = filtered.filters.facets(selection, without="product")
        assert facets.keys() <= {"groups", "public"}
        inside = [record for record, kept in zip(filtered.records, mask, strict=True) if kept]
        counted = {
            name: Counter(value for record in inside for value in _values(record, name))
            for name in ("groups", "public")
        }
        for name, expected in counted.items():
            counts = {row["value"]: row["passages"] for row in facets.get(name, [])}
            assert counts == expected
            assert [row["passages"] for row in facets.get(name, [])] == sorted(counts.values(), reverse=True)


def _values(record: dict[str, Any], name: str) -> list[Any]:
    value = record.get(name)
    return value if isinstance(value, list) else [] if value is None else [value]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"prodcut": "pump"}, "no field 'prodcut', but .*product \\(text\\)"),
        ({"product": {"~": "pump"}}, "product: unknown operator '~': use =, !=, <, <=, >, >="),
        ({"product": 7}, "product has values of the type text, and 7 is none"),
        ({"product": ["pump", {"=": "pump"}]}, "and {.*} is none"),
        ({"year": "2001"}, 'year has values of the type number, and "2001" is none'),
        ({"year": True}, "and true is none"),
        ({"year": {">": None}}, "and null is none"),
        ({"year": 2**80}, "is none"),
        ({"product": "\ud800"}, "is none"),
        ({"day": {">=": "yesterday"}}, 'type date, and "yesterday" is none'),
        ({"public": 1}, "type truth, and 1 is none"),
        ({"product": object()}, "no text, number, truth value or date"),
        (["product"], "give an object"),
    ],
)
def test_a_wrong_filter_is_one_line(wanted: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Filtered().filters.select(wanted)
    assert str(caught.value).startswith("filter: ") and "\n" not in str(caught.value)


def test_numbers_of_any_size() -> None:
    """Integers that fp64 rounds, and floats that are no integers, are compared without an error."""
    big, values = 2**62 + 1, [2**62 + 1, 5, -3, 2**62]
    taken = FieldColumns()
    taken.add({"whole": pa.array(values), "real": pa.array([2.5, 1e300, None, -1.0])}, 4)
    table = taken.columns()
    assert table is not None
    filters = Filters(table.combine_chunks().to_batches()[0], 4)
    for wanted, rows in (
        ({"whole": big}, [0]),
        ({"whole": [big, 2.5, 1e300, float("nan"), 5.0]}, [0, 1]),
        ({"whole": {">": 4.5}}, [0, 1, 3]),
        ({"whole": {"<": 1e300, ">": big - 1}}, [0]),
        ({"real": {"<": big}}, [0, 3]),
        ({"real": [big, -1]}, [3]),
        ({"real": {">": float("inf")}}, []),
        ({"real": {"!=": None}}, [0, 1, 3]),
    ):
        selection = filters.select(wanted)
        assert selection and selection.rows.tolist() == rows, wanted


def test_without_fields_and_without_json() -> None:
    with pytest.raises(UserError, match="no field 'a', nor any other field"):
        Filters(None, 3).select({"a": 1})
    assert filter_of(None) is None and filter_of('{"a": 1}') == {"a": 1}
    with pytest.raises(UserError, match=r"filter: '\{a' is no JSON"):
        filter_of("{a")
    with pytest.raises(UserError, match="no field 'year' with texts"):
        Filtered().filters.require("year")
    Filtered().filters.require("groups")


def test_control_a_selection_that_is_ignored_is_noticed() -> None:
    filtered = Filtered()
    vectors = filtered.generator.integers(-3, 4, (M, 8)).astype(np.float32)
    ((_, mask),) = filtered.selections(1)
    with pytest.raises(AssertionError):
        for scores, rows, every in zip(*search_index(vectors, vectors[:9], 5), vectors[:9] @ vectors.T, strict=True):
            assert_best(scores, rows, every, mask)
