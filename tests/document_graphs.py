"""Random structured documents, their graph, and networks over it, that several tests share."""

from dataclasses import replace

import numpy as np
import torch

from gnn_encoder.artifacts import DocumentGraph
from gnn_encoder.artifacts.document_graph import KINDS
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.inference.late_interaction import TokenVectors
from gnn_encoder.models.document_gat import DocumentGatConfig, TokenMatrices
from gnn_encoder.models.document_reranker import ContextMatching

PASSAGES, SECTIONS, DOCUMENTS = 18, 7, 3
WIDTH = 16


def random_structure(seed: int = 0) -> dict[str, np.ndarray]:
    """Three documents: sections with passages and sections, headings that are passages, a passage without anything."""
    generator = np.random.default_rng(seed)
    nodes = PASSAGES + SECTIONS
    document = generator.integers(0, DOCUMENTS - 1, nodes)
    document[PASSAGES - 1] = DOCUMENTS - 1  # alone in its document
    order = generator.permutation(nodes)
    parent = np.full(nodes, -1)
    for node in range(nodes):
        # A parent comes before its parts; it is a section, or passage 0 or 1.
        above = [p for p in (0, 1, *range(PASSAGES, nodes)) if document[p] == document[node] and order[p] < order[node]]
        if above and generator.random() < 0.9:
            parent[node] = generator.choice(above)
    pairs = generator.integers(0, PASSAGES - 1, (9, 2))
    pairs = np.concatenate([pairs, pairs[:2], [[3, 3]]])  # a citation twice, and one of itself
    arrays = {
        "document": document,
        "parent": parent,
        "reading_order": order,
        "citing": pairs[:, 0],
        "cited": pairs[:, 1],
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def random_graph(seed: int = 0) -> DocumentGraph:
    return document_graph(PASSAGES, **random_structure(seed))


def random_tokens(graph: DocumentGraph, width: int, seed: int = 0, longest: int = 11) -> TokenMatrices:
    """A matrix of unit vectors for each node."""
    lengths = np.random.default_rng(seed).integers(1, longest, len(graph))
    values = torch.randn(int(lengths.sum()), width, generator=torch.Generator().manual_seed(seed))
    return TokenMatrices(torch.nn.functional.normalize(values, dim=-1), lengths)


def matching(kind: str, **changes) -> ContextMatching:
    """A network with weights that are large enough to matter."""
    torch.manual_seed(4)
    config = DocumentGatConfig(width=WIDTH, heads=2, context_only=kind == "lim")
    context = ContextMatching(kind, replace(config, **changes), unit_length=bool(changes.get("residual")))
    with torch.no_grad():
        for parameter in context.parameters():
            parameter.normal_(0, 0.4)
    return context.eval()


def stored(tokens) -> TokenVectors:
    return TokenVectors(tokens.values.numpy().copy(), tokens.offsets)


CASES = [
    {},
    {"neighbour_reduction": "mean"},
    {"context_asks": "learned"},
    {"layers": 1},
    {"layers": 2},
    {"layers": 2, "neighbour_reduction": "mean", "residual": True},
    {"layers": 4},
    {"layers": 5, "neighbour_reduction": "mean", "layer_norm": True},
    {"residual": True, "layer_norm": True},
    {"residual": True, "neighbour_reduction": "mean", "context_asks": "learned"},
    {"edge_types": ("order", "structural_inverse", "internal", "self")},
    {"edge_types": tuple(kind for kind in KINDS if kind != "order"), "neighbour_reduction": "mean"},
]
"""Changes of the network's configuration."""
