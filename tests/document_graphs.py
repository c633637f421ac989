"""Random structured documents, and their graph, that several tests share."""

import numpy as np
import torch

from gnn_encoder.artifacts import DocumentGraph
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.models.document_gat import TokenMatrices

PASSAGES, SECTIONS, DOCUMENTS = 18, 7, 3


def random_structure(seed: int = 0) -> dict[str, np.ndarray]:
    """Three documents: sections with passages and sections, headings that are passages, a passage without anything."""
    generator = np.random.default_rng(seed)
    nodes = PASSAGES + SECTIONS
    document = generator.integers(0, DOCUMENTS - 1, nodes)
    document[PASSAGES - 1] = DOCUMENTS - 1  # alone in its document
    place = generator.permutation(nodes)
    parent = np.full(nodes, -1)
    for node in range(nodes):
        # A parent comes before its parts; it is a section, or passage 0 or 1.
        above = [p for p in (0, 1, *range(PASSAGES, nodes)) if document[p] == document[node] and place[p] < place[node]]
        if above and generator.random() < 0.9:
            parent[node] = generator.choice(above)
    pairs = generator.integers(0, PASSAGES - 1, (9, 2))
    pairs = np.concatenate([pairs, pairs[:2], [[3, 3]]])  # a citation twice, and one of itself
    arrays = {"document": document, "parent": parent, "place": place, "citing": pairs[:, 0], "cited": pairs[:, 1]}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def random_graph(seed: int = 0) -> DocumentGraph:
    return document_graph(PASSAGES, **random_structure(seed))


def random_tokens(graph: DocumentGraph, width: int, seed: int = 0, longest: int = 11) -> TokenMatrices:
    """A matrix of unit vectors for each node."""
    lengths = np.random.default_rng(seed).integers(1, longest, len(graph))
    values = torch.randn(int(lengths.sum()), width, generator=torch.Generator().manual_seed(seed))
    return TokenMatrices(torch.nn.functional.normalize(values, dim=-1), lengths)
