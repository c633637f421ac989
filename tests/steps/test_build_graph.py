"""The graph step against brute force: neighbours, labelled edges, features, self-loops."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, Graph, PairScores, drafting, read_vectors
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.steps import build_graph as module
from gnn_encoder.steps.build_graph import build_graph

K = 3


@pytest.fixture(scope="module")
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("graph")
    torch.manual_seed(0)
    with drafting(folder / "dual_encoder", "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="yes", query_length=32, passage_length=32,
            share_encoders=False,
        ).save(draft.path)  # fmt: skip
    scorer = CrossEncoder.from_backbone(str(tiny_backbone), 48)
    with torch.no_grad():  # larger weights than a fresh BERT's, whose [CLS] hardly depends on the text
        for weight in (p for p in scorer.backbone.parameters() if p.dim() > 1):
            weight.normal_(std=0.3)
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", scorer, draft.path)
    # Scores of some pairs are at hand already; their vectors are recognisable.
    query = np.repeat(tiny_dataset.query_rows("train"), 20).astype(np.int32)
    passage = np.tile(np.arange(20), len(query) // 20).astype(np.int32)
    with drafting(folder / "pair_scores", "pair_scores") as draft:
        PairScores.create_cls(draft, len(query), 32)[:] = 7.0
        PairScores.write(draft, query, passage, *np.zeros((2, len(query)), np.float32))
    names = ("dual_encoder", "cross_encoder", "pair_scores")
    return {"dataset": tiny_dataset.path, **{name: folder / name for name in names}}


def build(inputs: dict[str, Path], folder: Path, **settings: object) -> tuple[Graph, np.ndarray]:
    chosen = BuildGraph.model_validate({"neighbors": K, "precision": "fp32", **settings})
    build_graph(chosen, **inputs, graph=folder / "graph", passage_vectors=folder / "vectors")
    return Graph.read(folder / "graph"), read_vectors(folder / "vectors")


def plain_vector(model: CrossEncoder, first: str, second: str) -> np.ndarray:
    tokens = model.tokenizer(first, second, truncation="only_second", max_length=48, return_tensors="pt")
    with torch.inference_mode():
        return model.eval()(tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])[1][0].numpy()


def test_edges_are_the_nearest_passages_and_labelled_ones_are_added_once(
    inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    graph, vectors = build(inputs, tmp_path, edges="retrieved+labelled", edge_features="none")
    encoders = DualEncoder.load(inputs["dual_encoder"])
    queries = tiny_dataset.query_rows("train")
    query_vectors = encode_texts(encoders.query_encoder, tiny_dataset.query_texts(queries), precision="fp32")
    nearest = np.argsort(-(query_vectors @ vectors.T), axis=1, kind="stable")[:, :K]
    labels = tiny_dataset.split_qrels("train")
    positives = {int(q): int(p) for q, p in zip(labels.query, labels.passage, strict=True)}
    added = 0
    for row, query in enumerate(queries):
        edges, marked = graph.edges[row], graph.labelled[row]
        expected = set(nearest[row].tolist()) | {positives[int(query)]}
        assert sorted(edges[edges >= 0]) == sorted(expected)
        assert edges[marked].tolist() == [positives[int(query)]]
        added += len(expected) - K
    assert 0 < added < len(queries)
    retrieved, _ = build(inputs, tmp_path / "control", edge_features="none", retrieved=9)
    assert np.array_equal(np.sort(retrieved.edges), np.sort(nearest)) and not retrieved.labelled.any()
    alone, _ = build(inputs, tmp_path / "labelled", edges="labelled", edge_features="none", retrieved=9)
    labels = tiny_dataset.split_qrels("train")
    for row, query in enumerate(alone.queries):
        assert set(alone.edges[row][alone.edges[row] >= 0]) == set(labels.passage[labels.query == query])
    assert np.array_equal(alone.labelled, alone.edges >= 0) and np.array_equal(alone.retrieved, retrieved.retrieved)
    none, _ = build(inputs, tmp_path / "none", edges="none", retrieved=9)
    assert (none.edges == -1).all() and not none.labelled.any() and not none.indptr.any()
    assert np.array_equal(none.retrieved, retrieved.retrieved)
    assert retrieved.retrieved is not None and np.array_equal(retrieved.retrieved[:, :K], retrieved.edges)
    deeper = np.argsort(-(query_vectors @ vectors.T), axis=1, kind="stable")[:, :9]
    assert np.array_equal(np.sort(retrieved.retrieved), np.sort(deeper))


def test_features_are_reused_or_computed_and_self_loops_are_pairs_with_themselves(
    inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPIED", 16)
    graph, _ = build(inputs, tmp_path, self_loop_features="cross_encoder")
    assert graph.features is not None and graph.query_loops is not None and graph.passage_loops is not None
    model = CrossEncoder.load(inputs["cross_encoder"])
    queries = tiny_dataset.query_texts(graph.queries)
    passages = tiny_dataset.passages.take(np.arange(100)).full_texts()
    known = graph.edges < 20
    assert known.any() and (graph.features[known] == 7.0).all()
    for row, column in np.argwhere(~known)[:12]:
        expected = plain_vector(model, queries[row], passages[graph.edges[row, column]])
        assert np.abs(graph.features[row, column] - expected).max() < 5e-3  # fp16
    assert (graph.features[~known] != 7.0).any(axis=-1).all()
    for row in (0, 17):
        assert np.abs(graph.query_loops[row] - plain_vector(model, queries[row], queries[row])).max() < 5e-3
        assert np.abs(graph.passage_loops[row] - plain_vector(model, passages[row], passages[row])).max() < 5e-3
    assert np.abs(graph.query_loops[0] - graph.query_loops[17]).max() > 0.1


def test_nothing_scored_before_and_eight_bits(inputs: dict[str, Path], tmp_path: Path) -> None:
    fresh = {name: path for name, path in inputs.items() if name != "pair_scores"}
    half, _ = build(fresh, tmp_path / "half")
    byte, _ = build(fresh, tmp_path / "byte", edge_feature_type="int8")
    exact, decoded = (EdgeFeatures(graph).of_queries(np.arange(60)) for graph in (half, byte))
    assert exact is not None and decoded is not None and not (exact == 7.0).any()
    step = np.abs(exact).max(axis=-1, keepdims=True) / 127
    assert (np.abs(decoded - exact) <= 0.51 * step).all()
