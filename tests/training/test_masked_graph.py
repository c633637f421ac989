"""Masked Graph Training leaks nothing: shown by gradient and by perturbation, with the unmasked control."""

import dataclasses

import numpy as np
import pytest
import torch
from small_training import examples_of, two_encoders

from gnn_encoder.artifacts import Dataset, Graph, reverse_csr
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.masked_graph import MaskedGraphTraining
from gnn_encoder.training.prefetch import batches_of


@pytest.fixture(scope="module")
def parts(tiny_dataset: Dataset, tiny_backbone):
    """A model and a random graph over the tiny dataset, in which each query retrieved its own positive."""
    encoders = two_encoders(tiny_backbone)
    generator = np.random.default_rng(0)
    queries, labels = tiny_dataset.query_rows("train"), tiny_dataset.split_qrels("train")
    edges = np.stack([generator.permutation(100)[:8] for _ in queries]).astype(np.int32)
    edges[np.searchsorted(queries, labels.query), 0] = labels.passage
    features = generator.standard_normal((*edges.shape, 6)).astype(np.float16)
    graph = Graph(queries, edges, edges < -1, features, *reverse_csr(edges, 100))
    examples = examples_of(tiny_dataset, generator.integers(0, 100, (len(labels.query), 4)).astype(np.int32))
    gnn = GNN(GnnConfig(width=32, edge_width=EdgeFeatures(graph).width))
    vectors = generator.standard_normal((100, 32)).astype(np.float32)
    return GnnEncoder(encoders, gnn).eval(), tiny_dataset, examples, graph, vectors


def training(parts, mask: str, graph: Graph | None = None) -> MaskedGraphTraining:
    model, dataset, examples, own_graph, vectors = parts
    settings = TrainGnn(mask=mask, mask_fraction=0.2, batch_size=4, negatives=1)
    return MaskedGraphTraining(model, dataset, examples, graph or own_graph, vectors, settings)


def interactive(job: MaskedGraphTraining, batch, node_vectors: torch.Tensor) -> torch.Tensor:
    """h'_p of the batch's passages, as a function of all queries' vectors [n, d]."""
    hood = job.neighbourhood(batch)
    width = node_vectors.shape[1]
    passages = torch.ones(len(batch.passages), width)
    return job.interactive_passages(hood, node_vectors[torch.from_numpy(hood.nodes)], passages, batch.passages)


@pytest.mark.parametrize("mask", ["folds", "sample", "drop_positives", "none"])
def test_no_gradient_from_a_training_query_into_any_passage_of_its_loss(parts, mask):
    job = training(parts, mask)
    leaks = 0
    for batch in list(batches_of(job.plan(), 0))[:6]:
        vectors = torch.randn(60, 32, requires_grad=True)
        interactive(job, batch, vectors).sum().backward()
        leaks += int((vectors.grad[torch.from_numpy(job.node[batch.examples])].abs().sum(1) > 0).sum())
    # Unmasked, a query still reaches the in-batch negatives it retrieved: the control that leaks.
    assert (leaks > 0) == (mask in ("drop_positives", "none"))


def test_what_is_dropped_is_the_edges_to_positives(parts):
    """Against a plain search, on retrieved edges; without masking and dropping a positive still sees its query."""
    _, dataset, examples, graph, _ = parts
    labels = dataset.split_qrels("train")
    known = {*zip(labels.query, labels.passage, strict=True), *zip(examples.query, examples.positive, strict=True)}
    expected = [
        [(query, passage) in known for passage in row] for query, row in zip(graph.queries, graph.edges, strict=True)
    ]
    dropping, whole = training(parts, "drop_positives"), training(parts, "none")
    assert np.array_equal(dropping.dropped, expected) and 0 < dropping.dropped.sum() < graph.edges.size
    for job, sees in ((dropping, False), (whole, True)):
        seen = set()
        for batch in batches_of(job.plan(), 0):
            hood = job.neighbourhood(batch)
            reached = zip(graph.queries[hood.nodes[hood.edges[0]]], batch.passages[hood.edges[1]], strict=True)
            seen |= {pair in known for pair in reached}
        assert (True in seen) == sees
    # Eq. 6 too: what those edges say reaches no query.
    features = np.array(graph.features)
    features[dropping.dropped] += 3.0
    other, vectors = dataclasses.replace(graph, features=features), torch.randn(60, 32)
    for mask, changes in (("drop_positives", False), ("none", True)):
        jobs = [training(parts, mask, used) for used in (graph, other)]
        with torch.no_grad():
            batches = [[interactive(job, batch, vectors) for batch in batches_of(job.plan(), 0)] for job in jobs]
        assert any(not torch.equal(*pair) for pair in zip(*batches, strict=True)) == changes


@pytest.mark.parametrize("mask", ["folds", "drop_positives"])
def test_perturbing_a_training_querys_embedding_edges_and_features_changes_nothing(parts, mask):
    *_, graph, _ = parts
    job = training(parts, mask)
    changed = 0
    for batch in list(batches_of(job.plan(), 0))[:6]:
        trained = job.node[batch.examples]
        features, edges = np.array(graph.features), np.array(graph.edges)
        features[trained] += 3.0
        # Other neighbours; the labelled one stays, so that the unmasked variant drops the same edge.
        edges[trained, 1:] = (edges[trained, 1:] + 41) % 100
        other = Graph(graph.queries, edges, edges < -1, features, *reverse_csr(edges, 100))
        vectors = torch.randn(60, 32)
        moved = vectors.clone()
        moved[torch.from_numpy(trained)] += 5.0
        with torch.no_grad():
            before = interactive(job, batch, vectors)
            after = interactive(training(parts, mask, other), batch, moved)
        changed += int(not torch.equal(before, after))
    assert (changed > 0) == (mask == "drop_positives")


@pytest.mark.usefixtures("on_cpu")
def test_loss_equals_equation_12_from_its_parts(parts):
    job = training(parts, "folds")
    model, _, examples, graph, cached = parts
    batch = next(batches_of(job.plan(), 0))
    with torch.no_grad():
        loss = job.loss(batch).item()
        # By hand: a graph without the masked queries, propagated whole, in other code.
        encoders = model.dual_encoder
        node_vectors, passage_vectors = (
            torch.cat(
                [encoder(*(torch.from_numpy(a) for a in tokens.padded(np.array([i]), 0))) for i in range(len(tokens))]
            ).numpy()
            for encoder, tokens in (
                (encoders.query_encoder, job.queries.tokens.take(graph.queries)),
                (encoders.passage_encoder, job.passages.tokens),
            )
        )
        edges = np.where(batch.masked[:, None], -1, graph.edges)
        rest = Graph(graph.queries, edges, edges < -1, graph.features, *reverse_csr(edges, 100))
        passages = Propagation(model.gnn, rest, node_vectors, cached).passages(np.arange(100), passage_vectors)
    total = 0.0
    for example in batch.examples:
        scores = {p: float(node_vectors[job.node[example]].astype(float) @ passages[p]) for p in batch.passages}
        positive = examples.positive[example]
        mine = {examples.positive[e] for e in range(60) if examples.query[e] == examples.query[example]}
        rivals = [s for p, s in scores.items() if p == positive or p not in mine]
        total -= scores[positive] - np.log(np.sum(np.exp(rivals)))
    assert abs(loss - total / len(batch.examples)) < 1e-4
    unmasked = training(parts, "none")
    with torch.no_grad():
        whole = dataclasses.replace(batch, masked=np.zeros_like(batch.masked))
        assert abs(unmasked.loss(whole).item() - loss) > 1e-4


def test_encoding_does_not_depend_on_chunk_size_or_passage_order(parts):
    model, _, _, graph, cached = parts
    generator = np.random.default_rng(1)
    h_q, h_p = (generator.standard_normal((n, 32)).astype(np.float32) for n in (60, 100))
    whole = Propagation(model.gnn, graph, h_q, cached).passages(np.arange(100), h_p)
    chunked = Propagation(model.gnn, graph, h_q, cached, chunk=7)
    parts_ = [chunked.passages(rows, h_p[rows]) for rows in np.array_split(np.arange(100), 9)]
    assert np.abs(np.concatenate(parts_) - whole).max() < 1e-5
    # Another order of passages: rename row p to order[p] everywhere.
    order = generator.permutation(100)
    edges = order[graph.edges].astype(np.int32)
    renamed = Graph(graph.queries, edges, edges < -1, graph.features, *reverse_csr(edges, 100))
    moved_p, moved_cached = np.empty_like(h_p), np.empty_like(cached)
    moved_p[order], moved_cached[order] = h_p, cached
    out = Propagation(model.gnn, renamed, h_q, moved_cached).passages(np.arange(100), moved_p)
    assert np.abs(out[order] - whole).max() < 1e-5
    assert np.abs(out - whole).max() > 1e-2


@pytest.mark.usefixtures("on_cpu")
def test_a_batch_whose_passages_have_no_neighbour_left(parts):
    graph = parts[3]
    edges = np.full_like(graph.edges, -1)
    alone = training(parts, "folds", Graph(graph.queries, edges, edges < -1, graph.features, *reverse_csr(edges, 100)))
    batch = next(batches_of(alone.plan(), 0))
    assert len(alone.neighbourhood(batch).nodes) == 0
    loss = alone.loss(batch)
    loss.backward()
    assert torch.isfinite(loss)
