"""The frozen sum against a plain loop over queries, passages and labels, in float64."""

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.forecast import sample as sampling
from gnn_encoder.forecast.frozen_sum import WEIGHTS, labels_of, reciprocal_ranks, training_pairs
from gnn_encoder.forecast.sample import Sample, draw
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.tracking.progress import Progress

M, TRAIN, DEV, WIDTH = 60, 80, 30, 8


def progress(stage: str, total: int, unit: str) -> Progress:
    return Progress("test", stage, total, unit)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Labels by chance, half of them on ten passages. Training queries 40 to 59 are twins of 0, 2, … 38."""
    generator, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "dataset"
    n = TRAIN + DEV
    groups = np.arange(n)
    groups[40:60] = np.arange(0, 40, 2)
    query = np.concatenate([np.arange(n), generator.integers(0, n, 40)])
    passage = np.where(generator.random(len(query)) < 0.5, generator.integers(0, 10, len(query)), 0)
    passage = np.where(passage == 0, generator.integers(0, M - 5, len(query)), passage)
    pairs = np.unique(np.stack([query, passage]), axis=1)
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(M)], [""] * M, [f"w{i} w{i % 7} w{i % 3}" for i in range(M)])
        texts = [f"w{i % M} w{i % 5}" for i in range(n)]
        writer.queries([f"q{i}" for i in range(n)], texts, ["train"] * TRAIN + ["dev"] * DEV, [[]] * n, groups)
        ids = [[f"q{i}" for i in pairs[0]], [f"p{i}" for i in pairs[1]]]
        writer.qrels(*ids, generator.integers(0, 3, pairs.shape[1]), *pairs)
        writer.close()
    return Dataset(path)


def vectors() -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the passages and of the queries, at unit length; two passages have the same."""
    both = np.random.default_rng(1).standard_normal((M + TRAIN + DEV, WIDTH)).astype(np.float32)
    both[7] = both[3]
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    return both[:M], both[M:]


def plain(data: Dataset, sample: Sample, weight: float, own_labels: bool = False) -> tuple[list[float], list[bool]]:
    """RR@10 and warmth of each query, by loops; `own_labels`: with the query's own labels in the sums."""
    of_passages, of_queries = (one.astype(np.float64) for one in vectors())
    every, train = data.qrels.positive(), data.split_qrels("train").positive()
    labels = list(zip(train.query.tolist(), train.passage.tolist(), strict=True))
    ranks, warmth = [], []
    for query in sample.queries.tolist():
        same = {other for other in range(TRAIN + DEV) if data.groups[other] == data.groups[query]}
        relevant = {p for q, p in zip(every.query.tolist(), every.passage.tolist(), strict=True) if q in same}
        scores = {}
        for passage in sample.passages.tolist():
            vector = of_passages[passage].copy()
            for q, p in labels:
                if p == passage and (own_labels or q not in same):
                    vector += weight * of_queries[q]
            scores[passage] = float(of_queries[query] @ vector / np.linalg.norm(vector))
        best = max(scores[passage] for passage in relevant)
        weights = dict(zip(sample.passages.tolist(), sample.weight.tolist(), strict=True))
        rank = 1 + sum(weights[p] for p, score in scores.items() if p not in relevant and score > best + 1e-6)
        ranks.append(1 / rank if rank <= 10 else 0.0)
        warmth.append(any(p in relevant and q not in same for q, p in labels))
    return ranks, warmth


def computed(data: Dataset, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    of_passages, of_queries = vectors()
    asking = np.unique(training_pairs(data, sample)[0])
    labels = labels_of(data, sample, asking, of_queries[asking])
    query_vectors = of_queries[sample.queries]
    return reciprocal_ranks(sample, of_passages[sample.passages], query_vectors, labels), labels.warm


@pytest.mark.parametrize("split", ["dev", "train"])
@pytest.mark.parametrize("most", [0, 40])
@pytest.mark.parametrize("chunk", [256, 7])
def test_the_ranks_are_those_of_a_plain_loop(
    data: Dataset, split: str, most: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_encoder.forecast.frozen_sum.CHUNK", chunk)
    monkeypatch.setattr(sampling, "FEWEST", 10 if split == "dev" else 1000)
    monkeypatch.setattr(sampling, "QUERIES_OF_SAMPLE", 12)
    sample = draw(data, most, 0, progress)
    assert sample.split == split
    values, warm = computed(data, sample)
    for column, weight in enumerate((0.0, *WEIGHTS)):
        expected, warmth = plain(data, sample, weight)
        assert values[:, column].tolist() == pytest.approx(expected)
        assert warm.tolist() == warmth
    if split == "train":  # control: with the query's own labels in the sums, the ranks are others
        assert values[:, 2].mean() < np.mean(plain(data, sample, 2.0, own_labels=True)[0]) - 0.1
    if not most:
        assert 0 < warm.mean() < 1 and len(set(values[:, 1]) ^ set(values[:, 2]))


def test_a_sample_has_what_the_queries_need_and_counts_for_the_corpus(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "FEWEST", 10)
    monkeypatch.setattr(sampling, "QUERIES_OF_SAMPLE", 5)
    whole = draw(data, 0, 0, progress)
    assert whole.passages.tolist() == list(range(M)) and (whole.weight == 1).all() and len(whole.queries) > 10
    assert draw(data, M, 0, progress).weight.tolist() == whole.weight.tolist()
    for seed in range(3):
        sample = draw(data, 30, seed, progress)
        assert len(sample.queries) == 5 and len(sample.passages) == 30
        assert sample.weight.sum() == pytest.approx(M)
        labels = data.split_qrels("dev").positive()
        of_sample = np.isin(labels.query, sample.queries)
        assert (sample.weight[np.isin(sample.passages, labels.passage[of_sample])] == 1).all()
        pairs = {(sample.queries[i], sample.passages[j]) for i, j in zip(sample.row, sample.relevant, strict=True)}
        assert pairs >= set(zip(labels.query[of_sample], labels.passage[of_sample], strict=True))
        hits = Bm25.build(data.passages, IndexBm25()).search(data.query_texts(sample.queries), 1)[1]
        certain = sample.passages[sample.weight == 1]
        assert np.isin(hits, certain).all() and len(certain) == 15
    assert not np.array_equal(draw(data, 30, 0, progress).passages, draw(data, 30, 1, progress).passages)


def test_few_dev_queries_give_way_to_train(data: Dataset) -> None:
    assert draw(data, 0, 0, progress).split == "train"
