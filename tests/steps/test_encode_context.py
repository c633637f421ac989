"""The steps between documents and their re-ranker's scores: the graph, the context vectors, the scores."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import write_first_run

from gnn_encoder.artifacts import Asked, Dataset, DocumentContext, DocumentGraph, PassageTable, Run, drafting
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.nodes import encode_nodes
from gnn_encoder.errors import UserError
from gnn_encoder.inference.late_interaction import TokenVectors
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.scorers import load_scorer, save_scorer
from gnn_encoder.settings.documents import BuildDocumentGraph, EncodeContext
from gnn_encoder.settings.outcome import Rerank
from gnn_encoder.steps.build_document_graph import build_document_graph
from gnn_encoder.steps.encode_context import encode_context
from gnn_encoder.steps.rerank import rerank


@pytest.fixture
def folders(tiny_documents: Dataset, tiny_backbone: Path, tmp_path: Path) -> dict[str, Path]:
    """A dataset, its graph, and a re-ranker with random weights that has no context yet."""
    build_document_graph(BuildDocumentGraph(), dataset=tiny_documents.path, document_graph=tmp_path / "graph")
    torch.manual_seed(0)
    text = LateInteraction.from_backbone(str(tiny_backbone), LateInteractionLayout(16, 12, 24))
    model = DocumentReranker.of(text, "lim", layers=3, heads=4)
    with drafting(tmp_path / "reranker", "model") as draft:
        save_scorer("lim", model, draft.path)
    return {
        "dataset": tiny_documents.path,
        "document_graph": tmp_path / "graph",
        "reranker": tmp_path / "reranker",
    }


@pytest.mark.parametrize(("stored", "tolerance"), [("fp16", 2e-3), ("int8", 2e-2)])
def test_the_scorer_has_the_vectors_of_all_passages(
    stored: str, tolerance: float, folders: dict[str, Path], tiny_documents: Dataset, tmp_path: Path
) -> None:
    settings = EncodeContext.model_validate({"precision": "fp32", "token_vectors": stored})
    encode_context(settings, **folders, scorer=tmp_path / "scorer")
    context = DocumentContext.of(tmp_path / "scorer")
    assert context is not None
    vectors, graph = TokenVectors(*context.vectors), DocumentGraph.read(folders["document_graph"])
    assert (
        context.graph.edges == graph.edges and context.graph.passages == 100 and len(context.titles) == len(graph) - 100
    )
    model = DocumentReranker.load(folders["reranker"]).eval()
    tokens = encode_nodes(model.text, tiny_documents, np.ones(len(graph), bool), precision="fp32")
    expected = context_vectors(model.context, graph, tokens, np.arange(100), token_vectors="fp32")
    assert np.array_equal(vectors.offsets, expected.offsets) and vectors.values.dtype == stored.replace("fp", "float")
    wide = vectors.values.astype(np.float32) * (1 if vectors.scales is None else vectors.scales[:, None])
    largest = np.abs(expected.values).max()
    assert np.abs(wide - expected.values).max() < tolerance * largest
    # Vectors of other passages would be as far away as the vectors are long.
    assert np.abs(wide - np.roll(expected.values, 40, axis=0)).max() > 0.1 * largest


def test_a_scorer_needs_the_context_of_its_corpus(
    folders: dict[str, Path], tiny_documents: Dataset, tmp_path: Path
) -> None:
    first_run = write_first_run(tiny_documents, tmp_path / "first_run")
    inputs = {"dataset": tiny_documents.path, "first_run": first_run, "run": tmp_path / "run"}
    with pytest.raises(UserError, match="lim scores need context vectors: run encode_context"):
        rerank(Rerank(system="LiM"), **inputs, scorer=folders["reranker"])
    encode_context(EncodeContext(), **folders, scorer=tmp_path / "scorer")
    rerank(Rerank(system="LiM"), **inputs, scorer=tmp_path / "scorer")
    assert len(np.unique(Run.read(tmp_path / "run").score)) > 100
    first = pq.read_table(tiny_documents.path / "corpus.parquet").slice(0, 99)
    with drafting(tmp_path / "fewer", "dataset") as draft:
        pq.write_table(first, draft / "corpus.parquet")
    for passages, fits in (
        (tiny_documents.passages, True),
        (PassageTable(tmp_path / "fewer" / "corpus.parquet"), False),
    ):
        with nullcontext() if fits else pytest.raises(UserError, match="context of other passages"):
            questions = Asked(["a question"], passages)
            assert load_scorer(tmp_path / "scorer").score(questions, np.zeros(1, int), np.zeros(1, int)) != 0


def test_vectors_that_fp16_cannot_hold_are_refused(
    folders: dict[str, Path], tiny_documents: Dataset, tmp_path: Path
) -> None:
    model = DocumentReranker.load(folders["reranker"])
    with torch.no_grad():
        for layer in model.context.network.stack:
            for parameter in layer.parameters():
                parameter.mul_(200.0)
    with drafting(tmp_path / "large", "model") as draft:
        save_scorer("lim", model, draft.path)
    large = folders | {"reranker": tmp_path / "large"}
    with pytest.raises(UserError, match=r"exceeds fp16.*token_vectors to int8"):
        encode_context(EncodeContext(), **large, scorer=tmp_path / "scorer")
    encode_context(EncodeContext(token_vectors="int8"), **large, scorer=tmp_path / "scorer")


def test_data_without_documents_have_no_graph(tiny_dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no documents"):
        build_document_graph(BuildDocumentGraph(), dataset=tiny_dataset.path, document_graph=tmp_path / "graph")
