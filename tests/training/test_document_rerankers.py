"""Re-rankers in documents: each kind is trained on the tiny documents, resumed, saved and loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_first_run
from ordered_sums import OrderedSums
from safetensors.numpy import load_file
from saved_states import wait_for_each

from gnn_encoder.artifacts import Dataset, DocumentGraph, drafting, read_manifest
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.nodes import encode_nodes
from gnn_encoder.inference.document_scores import document_scores
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import DOCUMENT_KINDS
from gnn_encoder.steps import train_reranker as module
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training import loop
from gnn_encoder.training.document_rerankers import document_reranker
from gnn_encoder.training.pairs import PairBatch
from gnn_encoder.training.passage_cache import NAME


def tiny_graph(data: Dataset) -> DocumentGraph:
    of = data.structure
    assert of is not None
    return document_graph(of.passages, of.document, of.parent, of.place, *of.citations)


@pytest.fixture
def inputs(tiny_documents: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with drafting(tmp_path / "graph", "document_graph") as draft:
        tiny_graph(tiny_documents).write(draft)
    paths = {"first_run": write_first_run(tiny_documents, tmp_path / "first_run"), "document_graph": tmp_path / "graph"}
    return {"dataset": tiny_documents.path, **paths}


def settings_of(backbone: Path, kind: str, **settings: Any) -> TrainReranker:
    values = {
        "kind": kind, "backbone": str(backbone), "batch_size": 24, "epochs": 2, "learning_rate": 3e-3,
        "head_learning_rate": 3e-3, "precision": "fp32", "dev_queries": 20, "token_width": 16, "query_length": 24,
        "passage_length": 40, "graph_dropout": 0.1, "graph_heads": 4,
    }  # fmt: skip
    return TrainReranker.model_validate(values | settings)


def train(inputs: dict[str, Path], out: Path, backbone: Path, kind: str, **settings: Any) -> dict[str, np.ndarray]:
    train_reranker(settings_of(backbone, kind, **settings), **inputs, reranker=out)
    return {name: array for file in sorted(out.glob("*.safetensors")) for name, array in load_file(file).items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_every_kind_trains(kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    with OrderedSums():
        weights = train(inputs, tmp_path / "out", tiny_backbone, kind)
    assert np.isfinite(read_manifest(tmp_path / "out").metrics["final_loss"])
    assert all(np.abs(weights[f"network.layers.{layer}.type_weights"]).max() > 0 for layer in range(3))
    assert kind == "mim" or weights["mixture"] != 0
    before = load_file(tiny_backbone / "model.safetensors")
    # The vocabulary gets two markers at its end.
    moved = {
        name
        for name in before
        if name in weights and not np.array_equal(before[name], weights[name][: len(before[name])])
    }
    assert not [name for name in moved if "embeddings." in name or "layer.0." in name]
    assert any("layer.1." in name for name in moved)


def interrupted(after: int, monkeypatch: pytest.MonkeyPatch, *inputs_of: Any, **settings: Any) -> None:
    """A training that ends at a step, with a checkpoint of each step before."""
    real = loop.linear_schedule

    def schedule(step: int, *arguments: Any) -> float:
        if step == after:
            raise KeyboardInterrupt
        return real(step, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "linear_schedule", schedule)
        with pytest.raises(KeyboardInterrupt):
            train(*inputs_of, **settings)


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_resumed_equals_undisturbed(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an epoch, between two, and with neighbours' vectors of the epoch's start; five steps are an epoch."""
    wait_for_each(monkeypatch)
    often = {"checkpoint_seconds": 1e-6, "keep": "last", "dev_queries": 0, "max_neighbours": 2}
    whole = train(inputs, tmp_path / "whole", tiny_backbone, "lim", **often)
    assert not equal(whole, train(inputs, tmp_path / "other", tiny_backbone, "lim", **often, seed=1))
    for after in (3, 5, 7):
        arguments = inputs, tmp_path / f"resumed{after}", tiny_backbone, "lim"
        interrupted(after, monkeypatch, *arguments, **often)
        assert equal(whole, train(*arguments, **often))
    # Control: neighbours' vectors of another moment give other weights.
    arguments = inputs, tmp_path / "forgotten", tiny_backbone, "lim"
    interrupted(7, monkeypatch, *arguments, **often)
    (file,) = (tmp_path / "checkpoints").rglob(NAME.format(2))
    file.unlink()
    assert not equal(whole, train(*arguments, **often))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_a_trained_reranker_scores_as_it_did_when_it_is_loaded(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorers = []
    monkeypatch.setattr(
        module,
        "document_reranker",
        lambda *arguments, _real=document_reranker: scorers.append(_real(*arguments)) or scorers[-1],
    )
    train(inputs, tmp_path / "out", tiny_backbone, kind)
    data, graph, rows = Dataset(inputs["dataset"]), DocumentGraph.read(inputs["document_graph"]), np.arange(100)
    loaded, query = DocumentReranker.load(tmp_path / "out").eval(), np.repeat(data.query_rows("dev")[:5], 20)
    tokens = encode_nodes(loaded.text, data, np.ones(len(graph), bool), precision="fp32")

    def scores() -> np.ndarray:
        contexts = context_vectors(loaded.context, graph, tokens, rows, token_vectors="fp32")
        return document_scores(loaded, data, contexts, query, rows, rows, precision="fp32")

    before = scorers[0].rank(query, rows)
    assert np.array_equal(before, scores())
    with torch.no_grad():
        next(loaded.context.network.parameters()).mul_(1.1)
    assert not np.array_equal(before, scores())  # control


@pytest.mark.slow
def test_a_learned_question_is_trained_and_hears_nothing_of_its_passage(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    data, graph, rows = Dataset(inputs["dataset"]), DocumentGraph.read(inputs["document_graph"]), np.array([1, 40])
    moved = {}
    for asks in ("learned", "content"):
        weights = train(inputs, tmp_path / asks, tiny_backbone, "lim", context_asks=asks, dev_queries=0, keep="last")
        loaded = DocumentReranker.load(tmp_path / asks).eval()
        with torch.no_grad():
            for parameter in loaded.context.network.parameters():
                parameter.mul_(10)  # the tiny network's attention is nearly uniform, whatever asks
        tokens = encode_nodes(loaded.text, data, np.ones(len(graph), bool), precision="fp32")
        before = context_vectors(loaded.context, graph, tokens, rows, token_vectors="fp32")
        other = tokens.values.copy()
        for row in rows:  # far from each other, so that neither hears the other
            other[tokens.offsets[row] : tokens.offsets[row + 1]] *= -1
        after = context_vectors(loaded.context, graph, tokens._replace(values=other), rows, token_vectors="fp32")
        moved[asks] = np.abs(before.values - after.values).max() / np.abs(before.values).max()
        if asks == "learned":
            assert np.diff(before.offsets).tolist() == [32, 32]
            settings = settings_of(tiny_backbone, "lim", context_asks=asks)
            fresh = document_reranker(settings, data, graph, rows, Context("test", StepLog(), "key")).model
            frozen = "embeddings.position_embeddings.weight"
            assert np.array_equal(weights[frozen], fresh.text.backbone.state_dict()[frozen].numpy())
            assert not np.allclose(weights["network.asking"], fresh.context.network.asking.detach().numpy())
    assert moved["learned"] < 1e-5 and moved["content"] > 0.1  # content is the control


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_live_neighbours_have_gradient_and_score_as_stored_ones_before_training(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path
) -> None:
    data, graph = Dataset(inputs["dataset"]), DocumentGraph.read(inputs["document_graph"])
    query, passage = np.array([0, 1, 0, 1]), np.array([5, 20, 61, 62])
    batch = PairBatch(query, passage, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    scores, later, words = {}, {}, {}
    for neighbours in ("live", "cached"):
        settings = settings_of(tiny_backbone, kind, neighbours=neighbours, frozen_layers=0, max_neighbours=2)
        trained = document_reranker(settings, data, graph, passage, Context("test", StepLog(), kind))
        model = trained.model.eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.context.network.parameters():
                parameter.normal_(0, 0.3, generator=generator)  # a new network makes little of what it reads
        assert trained.before is not None
        trained.before(batch)
        stored_scores = trained.score(query, passage)
        scores[neighbours] = stored_scores.detach().numpy()
        stored_scores.sum().backward()
        gradient = model.text.backbone.get_input_embeddings().weight.grad
        words[neighbours] = set(np.flatnonzero(gradient.abs().sum(dim=1).numpy()))
        with torch.no_grad():
            model.text.projection.weight.normal_(0, 0.1, generator=generator)
        trained.before(batch)  # the same edges
        later[neighbours] = trained.score(query, passage).detach().numpy()
    close = {"rtol": 1e-3, "atol": 1e-3}  # stored ones are fp16
    np.testing.assert_allclose(scores["live"], scores["cached"], **close)
    assert not np.allclose(later["live"], later["cached"], **close)  # control: stored ones are of the epoch's start
    assert words["cached"] < words["live"]


@pytest.mark.slow
def test_a_fixed_share_of_the_context_stays(inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    for share in (0.0, 0.3, 1.0, None):
        out = tmp_path / str(share)
        train(inputs, out, tiny_backbone, "lim", context_weight=share, dev_queries=0, keep="last")
        figures, loaded = read_manifest(out).metrics, DocumentReranker.load(out)
        assert np.isfinite(figures["final_loss"])
        if share is None:  # control: it starts at a half
            assert 1e-4 < abs(loaded.context.share.item() - 0.5) < 0.5
        else:
            assert loaded.context.share.item() == pytest.approx(share, abs=1e-7)
            content, context = torch.tensor(3.0), torch.tensor(5.0)
            assert loaded.context.relevance(content, context).item() == pytest.approx(3 + 2 * share)


@pytest.mark.slow
def test_frozen_layers_are_in_eval_mode_in_every_step(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout in them would be noise. Stored vectors and dev figures put the model into eval mode in between."""
    models, modes, real = [], set(), module.pair_loss
    monkeypatch.setattr(
        module,
        "document_reranker",
        lambda *arguments, _real=document_reranker: models.append(_real(*arguments)) or models[-1],
    )

    def watched(*arguments: Any, **options: Any) -> Any:
        bert = models[-1].model.text.backbone
        parts = (bert.embeddings, *bert.encoder.layer, models[-1].model.context)
        modes.add(tuple(frozenset(layer.training for layer in part.modules()) for part in parts))
        return real(*arguments, **options)

    monkeypatch.setattr(module, "pair_loss", watched)
    on, off = frozenset({True}), frozenset({False})
    for layers, expected in ((1, (off, off, on, on)), (0, (on, on, on, on))):
        modes.clear()
        train(inputs, tmp_path / f"{layers}", tiny_backbone, "lim", frozen_layers=layers)
        assert modes == {expected}


@pytest.mark.slow
def test_all_kinds_train_on_the_same_triples_of_documents(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = module.pair_loss, []
    monkeypatch.setattr(
        module, "pair_loss", lambda *arguments, **options: (seen.append(arguments[2]), real(*arguments, **options))[1]
    )

    def epochs(kind: str, **settings: Any) -> list[set[tuple[int, int]]]:
        """The pairs of a query and a negative in each epoch."""
        seen.clear()
        train(inputs, tmp_path / f"{kind}-{len(settings)}", tiny_backbone, kind, dev_queries=0, keep="last", **settings)
        assert len(seen) == 10
        return [
            {pair for b in half for pair in zip(b.query[b.column > 0], b.passage[b.column > 0], strict=True)}
            for half in (seen[:5], seen[5:])
        ]

    corpus = {"negatives_from": "corpus", "document_negatives": 1.0}
    lim = epochs("lim", **corpus)
    assert lim == epochs("colbert", **corpus) and lim[0] == lim[1] and len(lim[0]) == 60
    labels = Dataset(inputs["dataset"]).split_qrels("train")
    positive = dict(zip(labels.query, labels.passage, strict=True))

    def beside(pairs: set[tuple[int, int]]) -> bool:
        """Whether each negative is in the document of the positive; a document has four passages."""
        return all(p != positive[q] and p // 4 == positive[q] // 4 for q, p in pairs)

    assert beside(lim[0]) and not beside(epochs("colbert")[0])
    again = epochs("colbert", **corpus, redraw_negatives=True)
    assert again[0] != again[1] and beside(again[0] | again[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["colbert", "lim"])
def test_a_trained_encoder_goes_on_at_its_own_rate(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    """A linear map that was trained with the encoder is no new head; a new one is (control)."""
    train(inputs, tmp_path / "first", tiny_backbone, "colbert", epochs=1)
    known = load_file(tmp_path / "first" / "projection.safetensors")["weight"]
    rates = {"epochs": 1, "learning_rate": 1e-7, "head_learning_rate": 1e-2}
    for backbone, moved in ((tmp_path / "first", False), (tiny_backbone, True)):
        out = tmp_path / f"{kind}-{moved}"
        weight = train(inputs, out, backbone, kind, **rates)["weight"]
        assert (np.abs(weight - known).max() > 1e-3) == moved
