"""Late interaction over a data set: vectors and scores against plain loops, and against sentence-transformers."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.inference import late_interaction
from gnn_encoder.inference.late_interaction import (
    TokenVectors,
    encode_passages,
    encode_queries,
    late_scores,
    max_similarities,
)
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.scorers import LateInteractionScorer
from gnn_encoder.tracking.progress import Progress


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Passages of one to many tokens, with punctuation, and longer than the model reads; an empty query."""
    texts = ["river", "the old river , and the stone !", ". . .", "cloud " * 60, "", "a bright stone"]
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(len(texts))], ["", "garden"] * 3, texts)
        questions = ["what is the river", "", "stone " * 40]
        writer.queries(["q0", "q1", "q2"], questions, ["test"] * 3, [[] for _ in questions])
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    return Dataset(tmp_path / "data")


def model_of(backbone: Path, **layout: bool) -> LateInteraction:
    torch.manual_seed(0)
    model = LateInteraction.from_backbone(str(backbone), LateInteractionLayout(16, 12, 20, **layout))
    torch.nn.init.normal_(model.projection.weight)
    # The tiny vocabulary has no punctuation; these words take its place.
    model.punctuation = frozenset(model.tokenizer.convert_tokens_to_ids(["the", "stone"]))
    return model.eval()


def by_hand(model: LateInteraction, query: str, passage: str) -> float:
    """MaxSim of one pair in float64, from the tokenizer's own ids."""

    def vectors(ids: list[int], read: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([ids]), torch.tensor([read]))[0].double().numpy()

    tokenizer, layout = model.tokenizer, model.layout
    first, *rest = tokenizer(query, truncation=True, max_length=layout.query_length - 1)["input_ids"]
    query_ids = [first, model.markers[0], *rest]
    missing = layout.query_length - len(query_ids) if layout.expand_queries else 0
    read = [1] * len(query_ids) + [int(layout.attend_to_masks)] * missing
    queries = vectors([*query_ids, *[tokenizer.mask_token_id] * missing], read)
    first, *rest = tokenizer(passage, truncation=True, max_length=layout.passage_length - 1)["input_ids"]
    answering = [first, model.markers[1], *rest]
    passages = vectors(answering, [1] * len(answering))
    compared = [p for p, i in zip(passages, answering, strict=True) if tokenizer.decode(i) not in ("the", "stone")]
    return sum(max(float(q @ p) for p in compared) for q in queries)


def test_the_shares_of_the_tokens_add_up_to_the_score(dataset: Dataset, tiny_backbone: Path) -> None:
    model = model_of(tiny_backbone)
    parts = LateInteractionScorer(model).explain(dataset, "what is the river", 1)
    assert sum(part.amount for part in parts) == pytest.approx(
        by_hand(model, "what is the river", "garden the old river , and the stone !"), abs=1e-4
    )
    assert [part.amount for part in parts] == sorted((part.amount for part in parts), reverse=True)
    assert len(parts) == 12 and any(part.source.startswith("river ~ ") for part in parts)


def random_vectors(lengths: list[int]) -> TokenVectors:
    """Vectors whose products with positive vectors are negative, so that a padded token would have the maximum."""
    values = -np.random.default_rng(1).random((sum(lengths), 8)).astype(np.float16)
    return TokenVectors(values, np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.usefixtures("on_cpu")
def test_max_similarities_are_those_of_a_loop_over_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    passages, queries = random_vectors([3, 1, 7, 2, 5, 1, 4]), generator.random((5, 4, 8)).astype(np.float32)
    queries[1, 2:] = 0  # a query of two tokens
    query, passage = (axis.ravel()[generator.permutation(35)[:30]] for axis in np.indices((5, 7)))

    def loop(padding: int) -> list[float]:
        texts = [t.astype(np.float64) for t in np.split(passages.values, passages.offsets[1:-1])]
        texts = [np.concatenate([t, np.zeros((padding, 8))]) for t in texts]
        plain = [q[: 2 if i == 1 else 4].astype(np.float64) for i, q in enumerate(queries)]
        return [sum(max(t @ p for p in texts[j]) for t in plain[i]) for i, j in zip(query, passage, strict=True)]

    expected = loop(padding=0)
    for passages_per_chunk, queries_per_product, block in ((64, 64, 0), (2, 3, 0), (1, 1, 20), (1, 1, 10**6)):
        monkeypatch.setattr(late_interaction, "TOKENS_BY_BLOCK", {"cpu": block})  # above 0: as on a GPU
        monkeypatch.setattr(late_interaction, "PASSAGES_PER_CHUNK", passages_per_chunk)
        monkeypatch.setattr(late_interaction, "QUERIES_PER_PRODUCT", queries_per_product)
        np.testing.assert_allclose(max_similarities(queries, passages, query, passage), expected, atol=1e-5)
    # Control: a padded token would have every maximum.
    assert np.abs(np.array(expected) - loop(padding=1)).min() > 0.1


def peer_of(folder: Path, layout: LateInteractionLayout, skipped: list[str]) -> Any:
    """sentence-transformers' late interaction with the weights that a `LateInteraction` wrote into a folder."""
    from safetensors.torch import load_file
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion = {"strategy": "fixed", "attend": layout.attend_to_masks, "length": layout.query_length}
    lengths = {"query_length": layout.query_length, "document_length": layout.passage_length}
    encoder = Transformer(str(folder), query_expansion=expansion if layout.expand_queries else None, **lengths)
    weight = load_file(folder / "projection.safetensors")["weight"]
    projection = Dense(
        weight.shape[1], weight.shape[0], bias=False, activation_function=None, init_weight=weight,
        module_input_name="token_embeddings",
    )  # fmt: skip
    modules = [encoder, projection, MultiVectorMask(skipped), Normalize(module_input_name="token_embeddings")]
    return MultiVectorEncoder(modules=modules, prompts={"query": "[Q] ", "document": "[D] "}, device="cpu")


@pytest.fixture
def backbone_with_marks(tiny_backbone: Path, tmp_path: Path) -> Path:
    """A tiny random BERT whose vocabulary has punctuation."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = (tiny_backbone / "vocab.txt").read_text("utf-8").split()
    (tmp_path / "vocab.txt").write_text("\n".join([*words, *string.punctuation]), encoding="utf-8")
    BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "backbone")
    config = BertConfig.from_pretrained(tiny_backbone, vocab_size=len(words) + len(string.punctuation))
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "backbone")
    return tmp_path / "backbone"


@pytest.mark.parametrize(
    "layout", [{}, {"attend_to_masks": True}, {"expand_queries": False}], ids=["masks", "attended masks", "no masks"]
)
def test_vectors_and_scores_are_those_of_sentence_transformers(
    layout: dict[str, bool], dataset: Dataset, backbone_with_marks: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = LateInteraction.from_backbone(str(backbone_with_marks), LateInteractionLayout(16, 12, 20, **layout)).eval()
    torch.nn.init.normal_(model.projection.weight)
    model.save(tmp_path / "model")
    peer = peer_of(tmp_path / "model", model.layout, list(string.punctuation))
    questions, texts = dataset.query_texts(np.arange(3)), dataset.passages.take(np.arange(6)).full_texts()
    peer_queries, answering = peer.encode_query(questions), peer.encode_document(texts)

    queries = encode_queries(model, questions, "fp32")
    passages = encode_passages(model, dataset.passages, np.arange(6), precision="fp32")
    for vectors, other in zip(queries, peer_queries, strict=True):
        np.testing.assert_allclose(vectors[: len(other)], other.numpy(), atol=1e-5)
        assert not vectors[len(other) :].any()
    assert np.diff(passages.offsets).tolist() == [len(text) for text in answering]
    np.testing.assert_allclose(passages.values, torch.cat(answering).numpy(), atol=5e-4)  # fp16
    order = np.random.default_rng(0).permutation(18)
    query, passage = (axis.ravel()[order] for axis in np.indices((3, 6)))
    progress = Progress("rerank", "scoring", 18, "pairs")
    scores = late_scores(model, dataset, query, passage, precision="fp32", tokens_per_batch=64, progress=progress)
    warnings = capsys.readouterr().err
    assert "rerank: encoding 6/6 passages" in warnings and "rerank: scoring 18/18 pairs" in warnings
    expected = peer.similarity(peer_queries, answering).numpy().ravel()[order]
    np.testing.assert_allclose(scores, expected, atol=5e-3)
    # Control: punctuation counts.
    every = peer_of(tmp_path / "model", model.layout, []).encode_document(texts)
    assert np.abs(scores - peer.similarity(peer_queries, every).numpy().ravel()[order]).max() > 5e-2


def test_vectors_of_8_bits(dataset: Dataset, tiny_backbone: Path) -> None:
    model, where = model_of(tiny_backbone), torch.device("cpu")
    exact, small = (
        encode_passages(model, dataset.passages, np.arange(6), token_vectors=kind, precision="fp32")
        for kind in ("fp16", "int8")
    )
    assert (small.values.dtype, exact.values.dtype) == (np.int8, np.float16)
    assert small.offsets.tolist() == exact.offsets.tolist()
    for row in range(6):
        # Half of a step of the largest component in 127 steps, and fp16's rounding.
        step = exact.of(row, where).abs().amax(dim=1, keepdim=True) / 127
        error = (small.of(row, where) - exact.of(row, where)).abs()
        assert (error <= step / 2 + 5e-4).all() and (error > 5e-4).any()
    query, passage = (axis.ravel() for axis in np.indices((3, 6)))
    scores, rounded = (
        late_scores(model, dataset, query, passage, token_vectors=kind, precision="fp32") for kind in ("fp16", "int8")
    )
    np.testing.assert_allclose(rounded, scores, atol=0.05)
    assert (rounded != scores).any()
