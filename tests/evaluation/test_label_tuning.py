"""Trials rank as a bundle does; folds keep twins together and hide their own labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelled import USES, best_by_loop, random_labels, scores_by_loop, unit

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.labelled_queries import LabelUse, labelled_pairs
from gnn_encoder.evaluation import label_tuning
from gnn_encoder.evaluation.label_tuning import Trial, candidate_uses, chosen_use, fold_trials
from gnn_encoder.retrieval import labelled_vectors
from gnn_encoder.settings.labels import EncodeWithLabels, settings_of_use


@pytest.mark.parametrize("method", USES)
def test_a_trial_ranks_by_the_equations(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled_vectors, "BLOCK", 7)
    passages, labels = random_labels()
    queries = np.random.default_rng(4).normal(size=(9, passages.shape[1])).astype(np.float32)
    trial = Trial(np.arange(9), queries, labels, passages, 10)
    for use in (USES[method], replace(USES[method], weight=0.0)):
        hits = trial.ranked(use).hits(np.arange(9), 10)
        for question, mine in zip(queries, hits, strict=True):
            plain = replace(use, method="softmax", neighbours=1, temperature=1.0) if not use.weight else use
            assert mine.tolist() == best_by_loop(scores_by_loop(plain, passages, labels, question), 10)


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """20 passages; 40 training queries in twos of one need, the first six of them twins; 12 dev queries."""
    needs = np.repeat(np.arange(20), 2)
    queries = [*(f"q{i}" for i in range(40)), *(f"d{i}" for i in range(12))]
    groups = np.arange(52)
    groups[[1, 3, 5]] = [0, 2, 4]
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        ids = [f"p{i}" for i in range(20)]
        writer.passages(ids, [""] * 20, ids)
        writer.queries(queries, queries, ["train"] * 40 + ["dev"] * 12, [[] for _ in queries], groups)
        rows, passages = np.arange(52), np.concatenate([needs, np.arange(12)])
        writer.qrels(queries, [ids[p] for p in passages], [1] * 52, rows, passages)
        writer.close()
    return Dataset(tmp_path / "dataset")


def vectors(needs: np.ndarray, seed: int) -> np.ndarray:
    """Each query near its need, which says nothing of its passage's vector."""
    of_needs = np.random.default_rng(0).normal(size=(20, 16))
    return (of_needs[needs] + 0.1 * np.random.default_rng(seed).normal(size=(len(needs), 16))).astype(np.float32)


def choose(data: Dataset, **settings: object) -> tuple[LabelUse, dict]:
    train, needs = vectors(np.repeat(np.arange(20), 2), 1), np.arange(12)
    passages = np.random.default_rng(7).normal(size=(20, 16)).astype(np.float32)
    return chosen_use(
        data, EncodeWithLabels.model_validate(settings), passages, train, lambda rows: vectors(needs, 2)[rows - 40]
    )


@pytest.mark.parametrize("kind", ["sum", "memory", "clusters"])
@pytest.mark.parametrize(("smallest", "where"), [(12, "dev"), (13, "training queries in 5 folds")])
def test_labels_that_help_are_chosen(data: Dataset, kind: str, smallest: int, where: str) -> None:
    use, facts = choose(data, kind=kind, smallest_dev=smallest)
    before = next(iter(facts["figures"].values()))
    assert use.weight > 0 and facts["tuned_on"] == where and facts["tuned_queries"] == (12 if where == "dev" else 40)
    kept = [figure for name, figure in facts["figures"].items() if name not in facts["left_out"]]
    assert facts["figure"] == max(kept) > before + 0.3
    again, nothing = choose(data, kind=kind, **settings_of_use(kind, vars(use)))  # type: ignore[arg-type]
    assert again == use and nothing == {}


def test_labels_that_do_not_help_are_left_out(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passages at their queries' vectors: nothing is left to gain."""
    right = vectors(np.arange(20), 5)
    use, facts = chosen_use(
        data, EncodeWithLabels(smallest_dev=0), right, -vectors(np.repeat(np.arange(20), 2), 1),
        lambda rows: vectors(np.arange(12), 2)[rows - 40],
    )  # fmt: skip
    assert use.weight == 0 and facts["figure"] == 1.0


@pytest.mark.parametrize(("lost", "significance", "taken"), [(2, 0.05, False), (2, 1.0, True), (12, 0.05, True)])
def test_a_gain_that_chance_explains_is_left_out(data: Dataset, lost: int, significance: float, taken: bool) -> None:
    """All passages but `lost` are found without labels; two queries of twelve that gain have p = 0.5."""
    passages = vectors(np.arange(20), 5)
    passages[:lost] = np.random.default_rng(7).normal(size=(lost, 16))
    use, facts = chosen_use(
        data, EncodeWithLabels(smallest_dev=12, significance=significance), passages,
        vectors(np.repeat(np.arange(20), 2), 1), lambda rows: vectors(np.arange(12), 2)[rows - 40],
    )  # fmt: skip
    plain, *others = facts["figures"].values()
    assert max(others) > plain and (use.weight > 0) == taken
    assert facts["figure"] == (max(others) if taken else plain)
    assert ("p 0.50" in facts["by_chance"]) == (not taken)


def test_a_use_by_which_cold_queries_lose_is_left_out(tmp_path: Path) -> None:
    """With the whole weight a cold question finds the labelled passage of a need that is like it; a third is enough."""
    random, per_need = np.random.default_rng(0), 40
    needs, cold = unit(random.normal(size=(per_need, 64))), unit(random.normal(size=(per_need, 64)))
    labelled = unit(random.normal(size=(per_need, 64)))
    ids = [
        *(f"t{i}" for i in range(per_need)),
        *(f"w{i}" for i in range(2 * per_need)),
        *(f"c{i}" for i in range(per_need)),
    ]
    passages, splits = [f"p{i}" for i in range(2 * per_need)], ["train"] * per_need + ["dev"] * 3 * per_need
    relevant = np.concatenate([np.arange(per_need)] * 3 + [np.arange(per_need, 2 * per_need)])
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(passages, [""] * len(passages), passages)
        writer.queries(ids, ids, splits, [[] for _ in ids], np.arange(len(ids)))
        writer.qrels(ids, [passages[p] for p in relevant], [1] * len(ids), np.arange(len(ids)), relevant)
        writer.close()
    queries = np.concatenate([needs, needs, needs, unit(0.5 * cold + 0.6 * needs)])

    def choose(**settings: float) -> tuple[LabelUse, dict]:
        tried = EncodeWithLabels.model_validate({"sum_weights": [0.0, 0.3, 1.0], "smallest_dev": 100} | settings)
        vectors = np.concatenate([labelled, cold])
        return chosen_use(Dataset(tmp_path / "dataset"), tried, vectors, needs, lambda rows: queries[rows])

    use, facts = choose()
    assert use.weight == 0.3 and facts["left_out"] == ["weight 1"]
    assert facts["figures"]["weight 1"] > facts["figures"]["weight 0.3"] == facts["figure"]
    # The control: the mean alone chooses the other one.
    use, facts = choose(margin=1.0)
    assert use.weight == 1.0 and facts["left_out"] == []


def test_a_fold_has_all_twins_and_none_of_its_labels(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, train = labelled_pairs(data), vectors(np.repeat(np.arange(20), 2), 1)
    trials = fold_trials(data, 5, pairs, np.zeros((20, 16), np.float32), train, 3)
    assert sorted(np.concatenate([trial.queries for trial in trials]).tolist()) == list(range(40))
    for trial in trials:
        known = {tuple(vector) for vector in trial.labels.vectors}
        assert known == {tuple(train[row]) for row in range(40) if row not in trial.queries}
        assert len(trial.labels.by_passage.values) == 40 - len(trial.queries)
        for twins in ((0, 1), (2, 3), (4, 5)):
            assert len(set(twins) & set(trial.queries.tolist())) in (0, 2)
    # The control: other queries of one need do get into different folds.
    assert any(len({2 * need, 2 * need + 1} & set(t.queries.tolist())) == 1 for need in range(3, 20) for t in trials)
    monkeypatch.setattr(label_tuning, "QUERIES", 10)
    some = fold_trials(data, 5, pairs, np.zeros((20, 16), np.float32), train, 3)
    assert sum(len(trial.queries) for trial in some) == 10 and len(some[0].labels.by_passage.values) >= 30


def test_uses_in_order() -> None:
    uses = candidate_uses(EncodeWithLabels(kind="memory"))
    assert [use.weight for use in uses] == sorted(use.weight for use in uses)
    assert sum(use.weight == 0 for use in uses) == 1 and len(set(uses)) == len(uses) == 260
    (one,) = candidate_uses(EncodeWithLabels(kind="clusters", cluster_weights=(0.5,), clusters=(2,)))
    assert str(one) == "weight 0.5, up to 2 clusters"
