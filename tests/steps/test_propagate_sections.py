"""The propagation of sections' scores against a plain loop in float64, on random runs and trees."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting, read_manifest
from gnn_encoder.artifacts.tables import System
from gnn_encoder.errors import UserError
from gnn_encoder.settings.reranking import PropagateSections
from gnn_encoder.steps.propagate_sections import propagate_sections

PASSAGES, SECTIONS, QUERIES, HITS, DEPTH = 40, 6, 30, 25, 18
WEIGHTS = (0.1, 0.3, 0.5, 0.7, 1.0)


def write_dataset(path: Path, parent: np.ndarray | None) -> Dataset:
    """10 train, 10 dev and 10 test queries with a positive each."""
    generator, splits = np.random.default_rng(5), np.repeat(["train", "dev", "test"], 10).tolist()
    ids, queries = [f"p{i}" for i in range(PASSAGES)], [f"q{i}" for i in range(QUERIES)]
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(ids, [""] * PASSAGES, ids)
        writer.queries(queries, queries, splits, [[] for _ in queries])
        positives = generator.integers(0, PASSAGES, QUERIES).tolist()
        writer.qrels(queries, [ids[p] for p in positives], [1] * QUERIES, list(range(QUERIES)), positives)
        if parent is not None:
            nodes = len(parent)
            names, zeros = [*ids, *(f"s{i}" for i in range(nodes - PASSAGES))], np.zeros(nodes, np.int32)
            columns = [names, names, zeros, parent.astype(np.int32), np.arange(nodes, dtype=np.int32)]
            writer.structure(columns, ["D"], [np.zeros(0, np.int32)] * 2)
        writer.close()
    return Dataset(path)


def random_parents(seed: int) -> np.ndarray:
    """Parents among the sections and the first two passages; some passages have none."""
    generator = np.random.default_rng(seed)
    possible = np.array([-1, 0, 1, *range(PASSAGES, PASSAGES + SECTIONS)])
    parent = generator.choice(possible, PASSAGES + SECTIONS)
    parent[[0, 1, *range(PASSAGES, PASSAGES + SECTIONS)]] = -1
    parent[1] = PASSAGES  # a heading in a section
    return parent


def random_run(seed: int, queries: np.ndarray) -> Run:
    """A run of which the first `DEPTH` hits have a re-ranker's scores, below 0 too."""
    generator = np.random.default_rng(seed)
    hits = np.stack([generator.permutation(PASSAGES)[:HITS] for _ in queries])
    hits[3, DEPTH - 5 :] = -1  # fewer hits than are re-ranked
    run = Run.from_hits(queries, hits, np.zeros(hits.shape))
    return run.reordered(DEPTH, generator.normal(size=int((run.rank <= DEPTH).sum())))


@pytest.fixture(params=range(3))
def inputs(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Path]:
    write_dataset(tmp_path / "data", random_parents(request.param))
    with drafting(tmp_path / "ranking", "run") as draft:
        random_run(request.param, np.arange(10, QUERIES)).write(draft, "ColBERT")
    return {"dataset": tmp_path / "data", "ranking": tmp_path / "ranking"}


def propagate(inputs: dict[str, Path], out: Path, **settings: Any) -> Run:
    propagate_sections(PropagateSections.model_validate({"depth": DEPTH, **settings}), **inputs, run=out)
    return Run.read(out)


def by_hand(before: Run, query: int, weight: float, parent: list[int], alone: bool = False) -> list[tuple[float, int]]:
    """(score, passage) of the query's first hits, best first; `alone`: the wrong mean, without p itself."""
    rows = np.flatnonzero((before.query == query) & (before.rank <= DEPTH))
    scores = dict(zip(before.passage[rows].tolist(), before.score[rows].tolist(), strict=True))
    mixed = []
    for passage, score in scores.items():
        others = [p for p in scores if p != passage and parent[p] >= 0 and parent[p] == parent[passage]]
        values = [scores[p] for p in others] + ([] if alone and others else [score])
        mixed.append(((1 - weight) * score + weight * sum(values) / len(values), passage))
    return sorted(mixed, key=lambda pair: -pair[0])


def test_scores_are_mixed_with_the_means_of_sections(inputs: dict[str, Path], tmp_path: Path) -> None:
    before, structure = Run.read(inputs["ranking"]), Dataset(inputs["dataset"]).structure
    assert structure is not None
    parent, after = structure.parent.tolist(), propagate(inputs, tmp_path / "run", propagation_weights=(0.4,))
    moved = noticed = 0
    for query in range(10, QUERIES):
        of_query, old = after.query == query, before.passage[before.query == query].tolist()
        expected = by_hand(before, query, 0.4, parent)
        first = len(expected)
        assert after.passage[of_query][:first].tolist() == [passage for _, passage in expected]
        np.testing.assert_allclose(
            after.score[of_query][:first], [score for score, _ in expected], rtol=1e-5, atol=1e-6
        )
        assert after.passage[of_query][first:].tolist() == old[first:] and (np.diff(after.score[of_query]) < 0).all()
        wrong = [score for score, _ in by_hand(before, query, 0.4, parent, alone=True)]
        noticed += not np.allclose(after.score[of_query][:first], wrong, atol=1e-2)
        moved += after.passage[of_query].tolist() != old
    assert len(after.query) == len(before.query) and moved > 10 and noticed > 15
    assert 0.2 < read_manifest(tmp_path / "run").metrics["share_with_others_of_their_section"] < 1


def test_a_weight_of_0_leaves_the_run_and_a_weight_of_1_makes_sections_equal(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    before = Run.read(inputs["ranking"])
    runs = {weight: propagate(inputs, tmp_path / str(weight), propagation_weights=(weight,)) for weight in (0.0, 1.0)}
    for name in ("query", "passage", "rank", "score"):
        np.testing.assert_array_equal(getattr(runs[0.0], name), getattr(before, name))
    assert not np.array_equal(runs[1.0].passage, before.passage)
    structure = Dataset(inputs["dataset"]).structure
    assert structure is not None
    of_query = (runs[1.0].query == 12) & (runs[1.0].rank <= DEPTH)
    parents, scores = structure.parent[runs[1.0].passage[of_query]], runs[1.0].score[of_query]
    assert all(len(set(scores[parents == parent])) == 1 for parent in set(parents.tolist()) - {-1})


def test_the_weight_is_the_best_one_on_dev_queries(inputs: dict[str, Path], tmp_path: Path) -> None:
    before, data = Run.read(inputs["ranking"]), Dataset(inputs["dataset"])
    assert data.structure is not None
    parent, means = data.structure.parent.tolist(), dict[str, list[float]]()
    propagate(inputs, tmp_path / "run", propagation_weights=WEIGHTS[:4], measure="RR@5")
    for split in ("dev", "test"):
        labels = data.split_qrels(split)
        for weight in WEIGHTS[:4]:
            total = 0.0
            for query, positive in zip(labels.query.tolist(), labels.passage.tolist(), strict=True):
                order = [passage for _, passage in by_hand(before, query, weight, parent)][:5]
                total += 1 / (order.index(positive) + 1) if positive in order else 0.0
            means.setdefault(split, []).append(total / len(labels.query))
    facts, best = System.of(tmp_path / "run").facts, WEIGHTS[int(np.argmax(np.round(means["dev"], 12)))]
    assert list(facts["figures"].values()) == pytest.approx(means["dev"])
    assert facts["propagation_weight"] == read_manifest(tmp_path / "run").metrics["propagation_weight"] == best
    assert list(facts["figures"].values()) != pytest.approx(means["test"])


def test_without_dev_queries_the_middle_weight_is_taken(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Dataset.split_qrels
    monkeypatch.setattr(Dataset, "split_qrels", lambda self, split: real(self, "none" if split == "dev" else split))
    propagate(inputs, tmp_path / "run", propagation_weights=WEIGHTS)
    assert System.of(tmp_path / "run").facts == {"propagation_weight": 0.5}


def test_data_without_documents_are_refused_in_one_line(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", None)
    with drafting(tmp_path / "ranking", "run") as draft:
        random_run(0, np.arange(10, QUERIES)).write(draft, "ColBERT")
    with pytest.raises(UserError, match="has no documents, so passages have no sections: leave out QSF") as caught:
        propagate({"dataset": tmp_path / "data", "ranking": tmp_path / "ranking"}, tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_the_weight_may_be_chosen_by_a_measure_within_documents(inputs: dict[str, Path], tmp_path: Path) -> None:
    propagate(inputs, tmp_path / "run", measure="MAP(D)")
    facts = System.of(tmp_path / "run").facts
    assert facts["tuned_by"] == "MAP(D)" and len(set(facts["figures"].values())) > 1
