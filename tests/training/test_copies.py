"""No negative of a query has the text of one of its positives: in what is stored, in each batch and in each loss."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from beir_folder import ingested, lines, write_beir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from gnn_encoder.artifacts import (
    Dataset,
    GeneratedQueries,
    Graph,
    KnownPositives,
    PairScores,
    Run,
    TrainingSet,
    drafting,
    reverse_csr,
)
from gnn_encoder.artifacts.training_examples import ORIGINS
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.settings.foundation import Ingest, SelectTrainingSet
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.steps.select_training_set import select_training_set
from gnn_encoder.steps.train_dpr import lexical_examples
from gnn_encoder.training.batches import ExampleBatches
from gnn_encoder.training.denoising import denoised_positives, hard_negatives
from gnn_encoder.training.masked_graph import training_examples

N, M = 20, 30
"""Queries, and passages that differ; passages M to 2M - 1 are copies of these, in other forms of the characters."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("copies")
    texts = [f"text of passage number {i}" for i in range(M)]
    forms = [f"\ufeffTEXT of  passage num\u00adber {i}\u200b" for i in range(M)]
    source = write_beir(
        folder / "source",
        corpus=lines([{"_id": f"d{i}", "text": text} for i, text in enumerate(texts + forms)]),
        queries=lines([{"_id": f"q{i}", "text": f"question {i}"} for i in range(N + 2)]),
        qrels={
            "train": [(f"q{i}", f"d{i}", 1) for i in range(N)],
            "dev": [(f"q{N}", "d0", 1)],
            "test": [(f"q{N + 1}", "d1", 1)],
        },
    )
    return ingested(Ingest(dataset=str(source)), folder / "dataset")[0]


@pytest.fixture(scope="module")
def hits() -> np.ndarray:
    """Of each query its positive, the copy of that, and eight others, int32 [N, 10]."""
    generator = np.random.default_rng(0)
    rows = [[q, q + M, *(p for p in generator.permutation(2 * M) if p % M != q)][:10] for q in range(N)]
    return np.array([generator.permutation(row) for row in rows], np.int32)


@pytest.fixture(scope="module")
def expected(hits: np.ndarray) -> list[list[int]]:
    return [[-1 if p % M == q else p for p in row] for q, row in enumerate(hits.tolist())]


def equal_texts(text: np.ndarray, negatives: np.ndarray) -> int:
    """Negatives [e, s] with the text of passages [e]; query i has the text i as its positive."""
    return int(((negatives >= 0) & (negatives % M == text[:, None])).sum())


def test_no_hit_of_a_first_stage(dataset: Dataset, hits: np.ndarray, expected: list[list[int]]) -> None:
    """Of BM25 for DPR, of several for the cross-encoder and the re-rankers, and of M_de for the GNN."""
    run = Run.from_hits(np.arange(N, dtype=np.int32), hits, np.zeros(hits.shape))
    examples = lexical_examples(dataset, run, 10)
    assert examples.negatives.tolist() == expected
    assert negative_pool(dataset, [run], 10).tolist() == expected
    graph = Graph(np.arange(N, dtype=np.int32), hits, hits < -1, None, *reverse_csr(hits, 2 * M), retrieved=hits)
    negatives = training_examples(TrainGnn(hard_negatives="retrieved"), dataset, examples, graph)
    assert negatives.negatives.tolist() == expected


@pytest.fixture(scope="module")
def scored(hits: np.ndarray) -> PairScores:
    """Every hit, with a probability near 0 or near 1."""
    query = np.repeat(np.arange(N, dtype=np.int32), 10)
    passage = np.sort(hits, axis=1).ravel()
    score = np.random.default_rng(1).choice([-6.0, 6.0], len(query)).astype(np.float32)
    return PairScores(query, passage, score, expit(score), np.zeros((len(query), 1), np.float16))


def test_no_hard_negative_and_no_denoised_positive(dataset: Dataset, scored: PairScores) -> None:
    """A copy of a labelled positive is neither: the label says what it is."""
    labels = dataset.split_qrels("train")
    negatives = hard_negatives(scored, KnownPositives.of(dataset, "train"), 0.1)
    denoised = denoised_positives(scored, labels, 0.9, dataset.groups, dataset.passage_groups)
    for passages, likely in ((negatives, scored.score < 0), (denoised, scored.score > 0)):
        wanted = likely & (scored.passage % M != scored.query)
        pairs = sorted(zip(passages.query.tolist(), passages.passage.tolist(), strict=True))
        assert pairs == list(zip(scored.query[wanted].tolist(), scored.passage[wanted].tolist(), strict=True))


def test_no_negative_of_the_training_set(dataset: Dataset, scored: PairScores, tmp_path: Path) -> None:
    """Neither a copy of a labelled positive, nor one of a denoised positive; examples of generated queries too."""
    negatives = hard_negatives(scored, KnownPositives.of(dataset, "train"), 0.1)
    passages = np.unique(negatives.passage)
    with drafting(tmp_path / "scores", "pair_scores") as draft:
        PairScores.create_cls(draft, len(scored.query), 1)[:] = 0
        PairScores.write(draft, scored.query, scored.passage, scored.score, scored.probability)
    with drafting(tmp_path / "generated", "generated_queries") as draft:
        similarity = np.tile(np.array([0.0, 1.0], np.float32), len(negatives))[: len(negatives)]
        unusable = ["", "\u200b", f"Question\u00ad {N}", f"\ufeffquestion {N + 1}"]  # empty, of dev, of test
        texts = [unusable[p % 8] if p % 8 < len(unusable) else f"written {p}" for p in passages.tolist()]
        GeneratedQueries(passages, texts, negatives.query, negatives.passage, similarity).write(draft)
    settings = SelectTrainingSet(selection=True, augmentation=True)
    select_training_set(
        settings, dataset=dataset.path, candidates=tmp_path / "scores", generated_queries=tmp_path / "generated",
        training_set=tmp_path / "set",
    )  # fmt: skip
    examples = TrainingSet.read(tmp_path / "set")
    assert set(examples.origin.tolist()) == set(range(len(ORIGINS)))
    positives = {q: {q} for q in range(N)}
    for q, p in zip(examples.query.tolist(), examples.positive.tolist(), strict=True):
        positives.setdefault(q, set()).add(p % M)
    pairs = [(q, n) for q, row in zip(examples.query.tolist(), examples.negatives.tolist(), strict=True) for n in row]
    assert not [n for q, n in pairs if q >= 0 and n >= 0 and n % M in positives[q]]
    generated = examples.query < 0
    assert {text[:7] for text, new in zip(examples.query_text, generated, strict=True) if new} == {"written"}
    assert equal_texts(examples.positive[generated] % M, examples.negatives[generated]) == 0


def test_no_in_batch_negative(dataset: Dataset, hits: np.ndarray) -> None:
    """Positives of a batch that are copies of another query's positive; and of a generated query's own."""
    query = np.concatenate([np.arange(N), np.arange(N), np.full(N, -1)]).astype(np.int32)
    positive = np.concatenate([np.arange(N), np.arange(N) + M, np.arange(N) + 2]).astype(np.int32)
    negatives = np.full((len(query), 1), -1, np.int32)
    examples = TrainingSet([""] * len(query), query, positive, negatives, np.zeros(len(query), np.int8))
    known = KnownPositives.of(dataset, "train", examples.query, examples.positive)
    plan = ExampleBatches(dataclasses.replace(examples, negatives=hits[np.maximum(query, 0)]), 30, 3, known, 0)
    left_out = 0
    for drawn in plan.draws(0):
        batch = plan.batch(drawn)
        wanted = {
            (row, column)
            for row, example in enumerate(batch.examples.tolist())
            for column, passage in enumerate(batch.passages.tolist())
            if passage % M == positive[example] % M and passage != positive[example]
        }
        pairs = list(map(tuple, batch.excluded.T.tolist()))
        assert set(pairs) == wanted and len(set(pairs)) == len(pairs)
        left_out += len(wanted)
    assert left_out > N


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_known_positives_equal_a_loop(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n, m, count = 6, 12, int(generator.integers(0, 9))
    groups, texts = (np.sort(generator.integers(0, k, k)) for k in (n, m))
    query, passage = generator.integers(-1, n, count), generator.integers(0, m, count)
    known = KnownPositives(query, passage, groups, texts)
    pairs = {(groups[q], texts[p]) for q, p in zip(query, passage, strict=True) if q >= 0}
    every = np.array([[(groups[q], texts[p]) in pairs for p in range(m)] for q in range(n)])
    assert np.array_equal(known.contains(np.arange(n)[:, None], np.arange(m)[None]), every)
    assert not known.contains(np.arange(n), np.full(n, -1)).any()
    passages = np.sort(generator.permutation(m)[: generator.integers(1, m)])
    queries = generator.integers(-1, n, 5)
    positive = generator.integers(0, len(passages), 5)
    own_text = np.where(queries >= 0, -1, texts[passages[positive]])  # of a generated query, the text of its positive
    wanted = sorted(
        (row, column)
        for row in range(5)
        for column, p in enumerate(passages.tolist())
        if column != positive[row] and ((queries[row] >= 0 and every[queries[row], p]) or texts[p] == own_text[row])
    )
    assert sorted(map(tuple, known.excluded(queries, passages, positive).T.tolist())) == wanted
