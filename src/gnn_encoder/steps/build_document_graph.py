"""Builds the graph of structured documents (Albarede et al. 2022, section 2.1)."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.document_graph.building import document_graph as graph_of
from gnn_encoder.document_graph.nodes import structure_of
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.settings.documents import BuildDocumentGraph


@step(document_graph="document_graph")
def build_document_graph(
    context: Context, settings: BuildDocumentGraph, dataset: Path, document_graph: Draft
) -> Metrics:
    """Derives the typed edges between passages and sections from parents, reading order and citations.

    Raises UserError if the dataset has no documents.
    """
    structure = structure_of(Dataset(dataset))
    graph = graph_of(structure.passages, structure.document, structure.parent, structure.place, *structure.citations)
    graph.write(document_graph)
    edges = graph.edges
    return {
        "nodes": len(graph),
        "sections": len(graph) - graph.passages,
        **{f"edges_{name}": count for name, count in edges.items()},
        "headline": f"{graph.passages:,} passages, {len(graph) - graph.passages:,} sections, "
        f"{sum(edges.values()):,} edges",
    }
