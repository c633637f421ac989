"""Computes all passages' vectors in their context, which depend on no query (Albarede et al. 2022, section 2.2)."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, DocumentContext, DocumentGraph, Draft
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.neighbourhoods import within
from gnn_encoder.document_graph.nodes import encode_nodes, structure_of
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.settings.documents import EncodeContext


@step(scorer="model")
def encode_context(
    context: Context, settings: EncodeContext, dataset: Path, document_graph: Path, reranker: Path, scorer: Draft
) -> Metrics:
    """Copies the re-ranker, and adds the context vectors of all passages, the graph and the sections' titles."""
    data, graph = Dataset(dataset), DocumentGraph.read(document_graph)
    model = DocumentReranker.load(reranker).to(device()).eval()
    passages, network = np.arange(graph.passages), model.context.network.config
    wanted = within(graph, passages, network.layers, network.edge_types)
    progress = context.progress("encoding", int(wanted.sum()), "nodes")
    tokens = encode_nodes(model.text, data, wanted, progress=progress, **settings.speed)
    progress = context.progress("reading neighbours", graph.passages, "passages")
    values, offsets, scales = context_vectors(
        model.context, graph, tokens, passages, token_vectors=settings.token_vectors, progress=progress
    )
    scorer.copy(reranker)
    titles = structure_of(data).sections.cast(pa.string())
    DocumentContext.write(scorer.path, values, offsets, scales, graph, titles, data.corpus_digests)
    scorer.rows(passages=graph.passages, tokens=int(offsets[-1]))
    return {
        "nodes": int(wanted.sum()),
        "tokens": int(offsets[-1]),
        "headline": f"{graph.passages:,} passages in their context, {progress.rate:,.0f} passages/s",
    }
