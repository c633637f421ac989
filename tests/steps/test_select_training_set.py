"""The whole step against plain loops over random candidates and triples, rule by rule."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from gnn_encoder.artifacts import (
    Dataset,
    DatasetWriter,
    GeneratedQueries,
    PairScores,
    Run,
    TrainingSet,
    drafting,
    read_manifest,
)
from gnn_encoder.artifacts.training_examples import ORIGINS
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import SelectTrainingSet
from gnn_encoder.steps.select_training_set import counts_table, select_training_set

TRAIN, PASSAGES, WIDTH = 14, 40, 3
TWINS = {9: 2, 11: 2, 12: 7}
"""Queries that ask what an earlier one asks."""


@dataclass
class World:
    """Inputs on disk and, for the loops, as dictionaries."""

    paths: dict[str, Path]
    scores: dict[tuple[int, int], float]
    judged: dict[tuple[int, int], int]
    written: dict[int, str]
    similarity: dict[tuple[int, int], float]
    groups: list[int]

    def twins(self, query: int) -> list[int]:
        """The queries of its group, itself among them."""
        return [q for q in range(TRAIN) if self.groups[q] == self.groups[query]]

    def probability(self, pair: tuple[int, int]) -> float:
        return 1 / (1 + np.exp(-self.scores[pair]))

    def positives(self, query: int) -> list[int]:
        return sorted(p for (q, p), relevance in self.judged.items() if q == query and relevance >= 1)

    def negatives(self, query: int) -> list[int]:
        candidates = [p for q, p in self.scores if q == query and self.probability((q, p)) < 0.1]
        candidates = [
            p for p in candidates if not any(p in self.positives(q) or p in self.denoised(q) for q in self.twins(query))
        ]
        return sorted(candidates, key=lambda p: (-self.scores[query, p], p))

    def denoised(self, query: int) -> list[int]:
        candidates = [p for q, p in self.scores if q == query and self.probability((q, p)) > 0.9]
        return [p for p in candidates if not any((q, p) in self.judged for q in self.twins(query))]


@pytest.fixture(scope="module", params=[0, 1, 2])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    generator = np.random.default_rng(request.param)
    folder = tmp_path_factory.mktemp("select")
    judged = {
        (int(q), int(p)): int(generator.integers(0, 3))
        for q in range(TRAIN)
        for p in generator.permutation(PASSAGES)[: generator.integers(1, 4)]
    }
    with drafting(folder / "dataset", "dataset") as draft:
        writer, queries = DatasetWriter(draft), TRAIN + 2
        writer.passages([f"p{i}" for i in range(PASSAGES)], [""] * PASSAGES, [f"passage {i}" for i in range(PASSAGES)])
        splits = ["train"] * TRAIN + ["dev", "test"]
        names, texts = [f"q{i}" for i in range(queries)], [f"query {i}" for i in range(queries)]
        groups = [TWINS.get(i, i) for i in range(queries)]
        writer.queries(names, texts, splits, [[]] * queries, groups)
        rows = [(q, p, r) for (q, p), r in judged.items()] + [(TRAIN, 1, 1), (TRAIN + 1, 2, 1)]
        q, p, r = (list(column) for column in zip(*rows, strict=True))
        writer.qrels([f"q{i}" for i in q], [f"p{i}" for i in p], r, q, p)
        writer.close()

    pairs = set(judged) | {(int(q), int(p)) for q in range(TRAIN) for p in generator.permutation(PASSAGES)[:12]}
    scores = {pair: float(np.float32(generator.choice([-4, -3.5, -1, 0, 3.5]))) for pair in sorted(pairs)}
    for pair in [pair for pair in scores if pair[0] == 5]:
        scores[pair] = 0.0  # a query without any hard negative
    columns = np.array(list(scores), dtype=np.int32)
    with drafting(folder / "pairs", "pair_scores") as draft:
        PairScores.create_cls(draft, len(scores), 2)[:] = 0
        score = np.array(list(scores.values()), np.float32)
        PairScores.write(draft, columns[:, 0], columns[:, 1], score, expit(score))

    world = World({"dataset": folder / "dataset", "candidates": folder / "pairs"}, scores, judged, {}, {}, groups)
    for query in range(TRAIN):
        for passage in world.negatives(query)[:6]:
            if generator.random() < 0.9:
                world.similarity[query, passage] = float(np.float32(generator.choice([-0.2, 0.05, 0.1, 0.2, 0.3, 0.8])))
    # A triple about a passage that is no hard negative here, as from other thresholds: neither rule may use it.
    stranger = next(pair for pair in scores if scores[pair] == 0.0 and pair[0] != 5 and pair not in judged)
    world.similarity[stranger] = 0.01
    world.written.update({p: f"what about {p}" for p in sorted({p for _, p in world.similarity})})
    silent = next(n for (q, n), s in world.similarity.items() if s < 0.1 and world.positives(q) and (q, n) != stranger)
    world.written[silent] = ""  # a generator may write nothing: that asks for no passage
    triples = np.array(list(world.similarity), dtype=np.int32)
    with drafting(folder / "generated", "generated_queries") as draft:
        GeneratedQueries(
            np.array(list(world.written), np.int32),
            list(world.written.values()),
            triples[:, 0],
            triples[:, 1],
            np.array(list(world.similarity.values()), np.float32),
        ).write(draft)
    world.paths["generated_queries"] = folder / "generated"
    return world


Example = tuple[str, int, int, tuple[int, ...]]


def run(world: World, path: Path, **changes: object) -> TrainingSet:
    settings = SelectTrainingSet.model_validate({"negatives_per_example": WIDTH, **changes})
    select_training_set(settings, **world.paths, training_set=path)
    return TrainingSet.read(path)


def listed(examples: TrainingSet, origin: str) -> Counter[Example]:
    assert examples.negatives.shape[1] == WIDTH
    rows = np.flatnonzero(examples.origin == ORIGINS.index(origin))
    return Counter(
        (
            examples.query_text[row],
            int(examples.query[row]),
            int(examples.positive[row]),
            tuple(int(n) for n in examples.negatives[row] if n >= 0),
        )
        for row in rows
    )


def originals(world: World, kind: str) -> list[Example]:
    return [
        (f"query {q}", q, p, tuple(world.negatives(q)[:WIDTH]))
        for q in range(TRAIN)
        for p in (world.positives(q) if kind == "labelled" else world.denoised(q))
    ]


def test_labelled_and_denoised_equal_a_loop(world: World, tmp_path: Path) -> None:
    examples = run(world, tmp_path / "out")
    assert listed(examples, "labelled") == Counter(originals(world, "labelled"))
    assert listed(examples, "denoised") == Counter(originals(world, "denoised"))
    assert len(originals(world, "denoised")) > 0
    # Control: without twins the same labels and scores give other examples.
    alone = replace(world, groups=list(range(TRAIN)))
    assert any(set(originals(world, kind)) != set(originals(alone, kind)) for kind in ("labelled", "denoised"))


def test_selected_are_as_many_as_the_originals(world: World, tmp_path: Path) -> None:
    examples = run(world, tmp_path / "out")
    every = originals(world, "labelled") + originals(world, "denoised")
    usable = {}
    for text, q, p, _ in every:
        alike = [n for n in world.negatives(q) if world.similarity.get((q, n), -1) >= np.float32(0.3)]
        if alike:
            usable[text, q, p, tuple(alike[:WIDTH])] = 0
    selected = listed(examples, "selected")
    assert 0 < len(usable) < len(every)
    assert set(selected) == set(usable)
    assert selected.total() == len(every), "1:1"
    assert max(selected.values()) - min(selected.values()) <= 1, "repeated evenly"


def test_generated_turn_unlike_triples_round(world: World, tmp_path: Path) -> None:
    expected = Counter(
        (world.written[n], -1, n, tuple(world.positives(q)[:WIDTH]))
        for (q, n), similarity in world.similarity.items()
        if similarity < np.float32(0.1) and world.written[n] and world.positives(q) and n in world.negatives(q)
    )
    assert expected
    assert listed(run(world, tmp_path / "out"), "generated") == expected


def test_a_query_without_negatives_keeps_its_example_and_is_counted(world: World, tmp_path: Path) -> None:
    examples = run(world, tmp_path / "out")
    empty = (examples.negatives < 0).all(axis=1)
    assert set(examples.query[empty]) >= ({5} if world.positives(5) else set())
    metrics = read_manifest(tmp_path / "out").metrics
    assert metrics["without_negatives"] == empty.sum()
    assert [metrics[name] for name in ORIGINS] == np.bincount(examples.origin, minlength=4).tolist()
    assert metrics["examples"] == len(examples.query)
    table = counts_table({name: metrics[name] for name in ("examples", *ORIGINS)})
    assert all(f"| {name} | {metrics[name]:,} |" in table for name in ORIGINS)


def test_ablations_leave_their_origin_out_and_nothing_else(world: World, tmp_path: Path) -> None:
    full = run(world, tmp_path / "full")
    for setting, origin in (("selection", "selected"), ("augmentation", "generated")):
        without = run(world, tmp_path / setting, **{setting: False})
        assert not listed(without, origin)
        assert all(listed(without, other) == listed(full, other) for other in ORIGINS if other != origin)


def test_thresholds_move_examples(world: World, tmp_path: Path) -> None:
    strict, loose = run(world, tmp_path / "a", selection_threshold=0.8), run(world, tmp_path / "b")
    assert set(listed(strict, "selected")) != set(listed(loose, "selected"))
    few, many = run(world, tmp_path / "c", augmentation_threshold=0.0), run(world, tmp_path / "d")
    assert listed(few, "generated").total() < listed(many, "generated").total()


def test_the_draw_is_seeded(world: World, tmp_path: Path) -> None:
    one, two, *others = (run(world, tmp_path / str(i), seed=seed) for i, seed in enumerate((0, 0, *range(1, 9))))
    assert listed(one, "selected") == listed(two, "selected")
    # Repeated evenly, the seed chooses who is repeated once more, if anyone is.
    repeats = set(listed(one, "selected").values())
    assert any(listed(one, "selected") != listed(other, "selected") for other in others) == (len(repeats) > 1)
    assert all(listed(one, "labelled") == listed(other, "labelled") for other in others)


def test_nothing_alike_selects_nothing(world: World, tmp_path: Path) -> None:
    examples = run(world, tmp_path / "out", selection_threshold=1.0, augmentation=False)
    assert not listed(examples, "selected") and listed(examples, "labelled")


def test_dev_and_test_labels_train_nothing(world: World, tmp_path: Path) -> None:
    assert run(world, tmp_path / "out").query.max() < TRAIN


def test_without_any_positive_is_one_line(tmp_path: Path, world: World) -> None:
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(PASSAGES)], [""] * PASSAGES, ["text"] * PASSAGES)
        names = [f"q{i}" for i in range(TRAIN)]
        writer.queries(names, names, ["train"] * TRAIN, [[]] * TRAIN)
        writer.qrels(["q0"], ["p0"], [0], [0], [0])
        writer.close()
    world_without = {**world.paths, "dataset": tmp_path / "dataset"}
    settings = SelectTrainingSet(positive_above=1.0)
    with pytest.raises(UserError, match="no training query has a positive"):
        select_training_set(settings, **world_without, training_set=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dataset_rows_are_stored(world: World, tmp_path: Path) -> None:
    examples, data = run(world, tmp_path / "out"), Dataset(world.paths["dataset"])
    known = examples.query >= 0
    assert data.query_texts(examples.query[known]) == [t for t, k in zip(examples.query_text, known, strict=True) if k]


def test_the_hits_of_a_run_are_negatives_if_no_label_says_otherwise(world: World, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    hits = np.stack([generator.permutation(PASSAGES)[:9] for _ in range(TRAIN + 2)])
    with drafting(tmp_path / "run", "run") as draft:
        Run.from_hits(np.arange(TRAIN + 2), hits, np.zeros(hits.shape)).write(draft)
    alone = replace(world, paths=world.paths | {"candidates": tmp_path / "run"})
    examples = run(alone, tmp_path / "out", negatives_per_example=8, negative_depth=8)
    rows = np.flatnonzero(examples.origin == ORIGINS.index("labelled"))
    assert len(rows) == len(originals(world, "labelled"))
    for row in rows:
        known = {p for q in world.twins(int(examples.query[row])) for p in world.positives(q)}
        wanted = set(hits[examples.query[row], :8].tolist()) - known
        assert {n for n in examples.negatives[row].tolist() if n >= 0} == wanted
    assert not (examples.origin == ORIGINS.index("denoised")).any()
    added = examples.take(np.flatnonzero(examples.origin == ORIGINS.index("selected")))
    for q, row in zip(added.query.tolist(), added.negatives.tolist(), strict=True):
        assert all(n < 0 or (n in hits[q] and world.similarity[q, n] >= np.float32(0.3)) for n in row)
