"""Training queries of one text, from raw data on: no loss, no negative and no round tells one from the other."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from beir_folder import ingested, lines, write_beir
from small_training import two_encoders

from gnn_encoder.artifacts import Dataset, Graph, TrainingSet, reverse_csr
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.masked_graph import MaskedGraphTraining
from gnn_encoder.training.prefetch import batches_of

N, M = 30, 40
TEXTS = [f"what is the old stone number {i}" for i in range(20)]
TEXTS += [f"What is the  OLD stone Number {i} " for i in range(10)]
"""Queries 20 to 29 ask what 0 to 9 ask."""
UNLABELLED = 29
"""A query of the graph that no example trains: its twin is 9."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("twins")
    queries = [*TEXTS, "dev question", "test question"]
    source = write_beir(
        folder / "source",
        corpus=lines([{"_id": f"d{i}", "text": f"text of passage {i}"} for i in range(M)]),
        queries=lines([{"_id": f"q{i}", "text": text} for i, text in enumerate(queries)]),
        qrels={
            "train": [(f"q{i}", f"d{i}", int(i != UNLABELLED)) for i in range(N)],
            "dev": [(f"q{N}", "d0", 1)],
            "test": [(f"q{N + 1}", "d1", 1)],
        },
    )
    return ingested(Ingest(dataset=str(source)), folder / "dataset")[0]


def asking(query: int) -> list[int]:
    """The queries of its text."""
    return [query % 20, query % 20 + 20] if query % 20 < 10 else [query]


def answers(query: int) -> set[int]:
    """Passage i answers query i, and so its twin."""
    return {q for q in asking(query) if q != UNLABELLED}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Each query retrieved its text's passages, and six others."""
    generator = np.random.default_rng(0)
    rows = []
    for query in range(N):
        labelled = [passage for passage in (query % 20, query % 20 + 20) if passage < N]
        rows.append([*labelled, *(p for p in generator.permutation(M) if p not in labelled)][:8])
    edges = np.array(rows, dtype=np.int32)
    features = generator.standard_normal((*edges.shape, 6)).astype(np.float16)
    queries = np.arange(N, dtype=np.int32)
    return Graph(queries, edges, edges < -1, features, *reverse_csr(edges, M), retrieved=edges)


@pytest.fixture(scope="module")
def examples(dataset: Dataset) -> TrainingSet:
    labels = dataset.split_qrels("train").positive()
    negatives = np.random.default_rng(1).integers(0, M, (N - 1, 4)).astype(np.int32)
    texts = dataset.query_texts(labels.query)
    return TrainingSet(texts, labels.query, labels.passage, negatives, np.zeros(N - 1, np.int8))


def training(dataset: Dataset, graph: Graph, examples: TrainingSet, backbone: Path, mask: str) -> MaskedGraphTraining:
    encoders = two_encoders(backbone, 16)
    model = GnnEncoder(encoders, GNN(GnnConfig(width=32, edge_width=EdgeFeatures(graph).width))).eval()
    vectors = np.random.default_rng(2).standard_normal((M, 32)).astype(np.float32)
    settings = TrainGnn.model_validate({"mask": mask, "mask_fraction": 0.2, "batch_size": 4, "negatives": 1})
    return MaskedGraphTraining(model, dataset, examples, graph, vectors, settings)


@pytest.mark.parametrize("mask", ["folds", "sample", "none"])
def test_no_gradient_from_a_trained_querys_text_into_any_passage_of_its_loss(
    mask: str, dataset: Dataset, graph: Graph, examples: TrainingSet, tiny_backbone: Path
) -> None:
    job = training(dataset, graph, examples, tiny_backbone, mask)
    leaks, reached = 0, 0
    for batch in batches_of(job.plan(), 0):
        vectors, hood = torch.randn(N, 32, requires_grad=True), job.neighbourhood(batch)
        passages = torch.ones(len(batch.passages), 32)
        nodes = torch.from_numpy(hood.nodes)
        job.interactive_passages(hood, vectors[nodes], passages, batch.passages).sum().backward()
        assert vectors.grad is not None
        flows = set(np.flatnonzero(vectors.grad.abs().sum(1).numpy() > 0).tolist())
        twins = {twin for query in examples.query[batch.examples].tolist() for twin in asking(query)}
        leaks, reached = leaks + len(flows & twins), reached + len(flows)
    assert reached > 0 and (leaks > 0) == (mask == "none")


@pytest.mark.parametrize("mask", ["folds", "sample"])
def test_a_round_masks_whole_groups_and_an_epoch_of_folds_every_query_once(
    mask: str, dataset: Dataset, graph: Graph, examples: TrainingSet, tiny_backbone: Path
) -> None:
    plan = training(dataset, graph, examples, tiny_backbone, mask).plan()
    rounds = {batch.masked.tobytes(): batch.masked for batch in batches_of(plan, 0)}
    for masked in rounds.values():
        out = set(np.flatnonzero(masked).tolist())
        assert out == {twin for query in out for twin in asking(query)} and 0 < len(out) < N / 2
    times = np.sum(list(rounds.values()), axis=0)
    assert (times == 1).all() == (mask == "folds")
    seen = np.bincount(np.concatenate([batch.examples for batch in batches_of(plan, 0)]), minlength=N - 1)
    assert (seen == 1).all() == (mask == "folds")


def test_a_twins_positive_is_no_in_batch_negative(
    dataset: Dataset, graph: Graph, examples: TrainingSet, tiny_backbone: Path
) -> None:
    """A batch without masking has both of a group; what is left out is the twin's positive and nothing else."""
    of_twins = 0
    for batch in batches_of(training(dataset, graph, examples, tiny_backbone, "none").plan(), 0):
        passages = batch.passages.tolist()
        expected = [
            (row, passages.index(passage))
            for row, query in enumerate(examples.query[batch.examples].tolist())
            for passage in sorted(answers(query) - {query})
            if passage in passages
        ]
        assert sorted(map(tuple, batch.excluded.T.tolist())) == expected
        of_twins += len(expected)
    assert of_twins > 3


def test_edges_to_a_twins_positive_are_dropped_as_its_own_are(
    dataset: Dataset, graph: Graph, examples: TrainingSet, tiny_backbone: Path
) -> None:
    dropped = training(dataset, graph, examples, tiny_backbone, "drop_positives").dropped
    assert dropped is not None
    assert dropped.tolist() == [[p in answers(q) for p in graph.edges[q].tolist()] for q in range(N)]


def test_an_example_that_was_denoised_for_one_is_known_for_both(
    dataset: Dataset, graph: Graph, examples: TrainingSet, tiny_backbone: Path
) -> None:
    positive = examples.positive.copy()
    positive[0] = 35  # of query 0, whose twin is 20
    more = dataclasses.replace(examples, positive=positive)
    known = training(dataset, graph, more, tiny_backbone, "folds").known
    assert known.contains(np.array([0, 20, 1]), np.array([35, 35, 35])).tolist() == [True, True, False]
