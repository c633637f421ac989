"""Negatives by chance: the shares of their two sources, what is never drawn, and what replaces an empty source."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, KnownPositives, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.training.corpus_negatives import corpus_negatives

DOCUMENT = np.random.default_rng(0).permutation(np.repeat(np.arange(6), (3, 4, 5, 8, 9, 11)))  # of each passage
POSITIVES = {
    0: [*np.flatnonzero(DOCUMENT == 1)[:2], *np.flatnonzero(DOCUMENT == 3)[:1]],  # in two documents
    1: np.flatnonzero(DOCUMENT == 4)[1:3],
    2: np.flatnonzero(DOCUMENT == 4)[5:7],  # the twin of query 1
    3: np.flatnonzero(DOCUMENT == 0),  # a whole document
}
TWINS = {1: (1, 2), 2: (1, 2)}
WIDTH, BOUND = 20_000, 4.5


def write(path: Path, labels: list[tuple[int, int]]) -> Dataset:
    """40 passages in documents, and four queries."""
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        ids, none = [f"p{i}" for i in range(40)], np.full(40, -1)
        writer.passages(ids, [""] * 40, ["text"] * 40)
        writer.queries([f"q{i}" for i in range(4)], ["a", "b", "b", "c"], ["train"] * 4, [[]] * 4, groups=[0, 1, 1, 3])
        query, passage = zip(*labels, strict=True)
        writer.qrels([f"q{i}" for i in query], [f"p{i}" for i in passage], [1] * len(labels), query, passage)
        nodes = [ids, [""] * 40, DOCUMENT, none, np.arange(40)]
        writer.structure(nodes, [f"d{i}" for i in range(6)], [[], []])
        writer.close()
    return Dataset(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    labels = [(q, p) for q, passages in POSITIVES.items() for p in passages]
    return write(tmp_path_factory.mktemp("data") / "dataset", labels)


def drawn(data: Dataset, query: int, share: float, seed: int = 0) -> np.ndarray:
    """The negatives of a query's first label."""
    labels = data.split_qrels("train").positive()
    return corpus_negatives(data, WIDTH, share, seed)[np.flatnonzero(labels.query == query)[0]]


def expected(query: int, share: float) -> np.ndarray:
    """The probability of each passage [40], by the definition."""
    known = {p for twin in TWINS.get(query, (query,)) for p in POSITIVES[twin]}
    corpus = [p for p in range(40) if p not in known]
    inside = [p for p in corpus if DOCUMENT[p] in {DOCUMENT[q] for q in POSITIVES[query]}]
    return np.array([
        (1 - share) * (p in corpus) / len(corpus) + share * (p in inside) / max(len(inside), 1) for p in range(40)
    ])  # fmt: skip


def deviation(frequencies: np.ndarray, probability: np.ndarray) -> float:
    """The largest distance of a passage's count from its mean, in standard deviations of the binomial distribution."""
    count = np.bincount(frequencies, minlength=40)
    deviations = np.sqrt(WIDTH * probability * (1 - probability))
    return float(np.max(np.abs(count - WIDTH * probability) / np.maximum(deviations, 1e-9)))


@pytest.mark.parametrize("query", [0, 1, 2])
@pytest.mark.parametrize("share", [0.4, 0.0, 1.0])
def test_each_passage_is_drawn_as_often_as_the_shares_say(data: Dataset, query: int, share: float) -> None:
    """So no known positive is drawn, of a twin neither, and the documents alone are drawn from with a share of 1."""
    frequencies = drawn(data, query, share)
    assert deviation(frequencies, expected(query, share)) < BOUND
    for other in {0.0, 0.3, 0.4, 0.5, 1.0} - {share}:  # control
        assert deviation(frequencies, expected(query, other)) > BOUND


def test_control_without_known_positives_they_are_drawn(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, pool = data.split_qrels("train").positive(), corpus_negatives(data, 50, 0.4, 0)
    known = KnownPositives.of(data, "train").contains(labels.query[:, None], pool)
    assert not known[pool >= 0].any()
    monkeypatch.setattr(KnownPositives, "contains", lambda self, query, passage: np.zeros(len(query), bool))
    without = corpus_negatives(data, 50, 0.4, 0)
    monkeypatch.undo()
    assert KnownPositives.of(data, "train").contains(labels.query[:, None], without).any(axis=1).all()


def test_a_document_with_positives_alone_is_replaced_by_the_corpus(data: Dataset) -> None:
    frequencies = drawn(data, 3, 1.0)
    assert deviation(frequencies, expected(3, 0.0)) < BOUND
    assert set(DOCUMENT[drawn(data, 1, 1.0)]) == {4}  # control: another document is not replaced


def test_a_query_without_any_negative_has_none(tmp_path: Path) -> None:
    data = write(tmp_path / "dataset", [(0, p) for p in range(40)] + [(1, p) for p in range(38)])
    query, pool = data.split_qrels("train").positive().query, corpus_negatives(data, 3, 0.4, 0)
    assert (pool[query == 0] == -1).all()
    assert (pool[query == 1] >= -1).all() and set(pool[query == 1].ravel()) >= {38, 39}  # control


def test_the_seed_determines_the_negatives_and_each_is_drawn_by_itself(data: Dataset) -> None:
    one, same, other = (corpus_negatives(data, 50, 0.4, seed) for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    first, second = one[:2]  # of one query
    assert 0 < (first == second).sum() < 25


def test_documents_are_needed_for_their_share_alone(tiny_dataset: Dataset) -> None:
    with pytest.raises(UserError, match="no documents, from which train_reranker"):
        corpus_negatives(tiny_dataset, 1, 0.4, 0)
    assert corpus_negatives(tiny_dataset, 1, 0.0, 0).min() >= 0
