"""Which neighbours a passage's similarity in its context came from: exact shares, by node and edge type.

The last layer's result is a sum over edges (Albarede et al. 2022, eq. 1), and MaxSim compares each query token with one
token of the result. So the similarity is a sum over edges, too. A normalisation divides a token's vector by one number,
which all edges determine together; each edge's part is divided by the same number.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts.document_graph import KINDS, DocumentGraph
from gnn_encoder.document_graph.neighbourhoods import neighbourhood
from gnn_encoder.inference.late_interaction import TokenVectors
from gnn_encoder.models.document_reranker import ContextMatching

CARRIED, BIAS = "residual", "bias"
"""Parts that are no neighbour's: the passage's own vectors of the layer before, and the bias of the layer norm."""


class Share(NamedTuple):
    """A neighbour's part of a similarity: its node row, the type of the edge from it, and the amount.

    `kind` is one of `KINDS`, `CARRIED` or `BIAS`. A neighbour with edges of two types has two shares.
    """

    node: int
    kind: str
    amount: float


@dataclass(frozen=True)
class Explained:
    """The parts of the score (1 − λ) · content + λ · context (eq. 3) of a query and a passage.

    `share`: λ; 1 for `mim`. `content`, `context`: the similarities; `content` of `mim` is 0. `shares`: add up to
    `context`, largest first.
    """

    share: float
    content: float
    context: float
    shares: list[Share]


def explained(
    context: ContextMatching, graph: DocumentGraph, tokens: TokenVectors, query: np.ndarray, passage: int
) -> Explained:
    """The parts of the score of a query's vectors fp32 [l, d] and a passage; all edges count.

    Args:
        tokens: the encoder's vectors of all n nodes. Nodes that the passage does not read (`within`) may be without.
        query: 0 at tokens that are not summed over, as of `encode_queries`.
    """
    network, where = context.network, next(context.parameters()).device
    config, was_training = network.config, network.training
    hood = neighbourhood(
        graph, np.array([passage]), config.layers, context_only=config.context_only, kinds=config.edge_types
    )
    query_vectors, (*below, hop) = torch.from_numpy(query).to(where), hood.hops
    edges = hop.edges._replace(weight=hop.edges.weights(config.neighbour_reduction))
    network.eval()
    try:
        with torch.inference_mode():
            answering = network(tokens.take(hood.nodes, where), below, 1)
            asking = answering.first(1) if below else network.questions(answering.first(1))
            # Each edge gets a copy of the passage, which hears this edge alone.
            count, last = len(edges.source), network.stack[-1]
            copies, alone = asking.take(np.zeros(count, np.int64)), edges._replace(target=np.arange(count))
            parts = last.heard(copies, answering, alone).view(count, len(asking.values), config.width)
            kinds = [
                (int(hood.nodes[source]), KINDS[kind]) for source, kind in zip(edges.source, edges.kind, strict=True)
            ]
            if config.residual and (below or not config.context_only):
                parts, kinds = torch.cat([parts, asking.values[None]]), [*kinds, (passage, CARRIED)]
            if config.layer_norm:
                parts, kinds = _norm_of_parts(last.norm, parts), [*kinds, (passage, BIAS)]
            vectors = parts.sum(dim=0)
            if context.unit_length:
                parts = parts / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
                vectors = parts.sum(dim=0)
            best = (query_vectors @ vectors.T).argmax(dim=1)
            amounts = (parts[:, best] * query_vectors).sum(dim=(1, 2)).tolist()
            content = 0.0
            if context.uses_content:
                content = float((query_vectors @ tokens.of(passage, where).T).amax(dim=1).sum())
            share = float(context.share)
    finally:
        network.train(was_training)
    shares = [Share(*kind, amount) for kind, amount in zip(kinds, amounts, strict=True)]
    return Explained(share, content, sum(amounts), sorted(shares, key=lambda addend: -addend.amount))


def _norm_of_parts(norm: nn.Module, parts: Tensor) -> Tensor:
    """Parts [p + 1, l, d] of the layer norm of a sum, from the parts [p, l, d] of the sum; the last is the bias."""
    assert isinstance(norm, nn.LayerNorm)
    total = parts.sum(dim=0)
    deviation = (total.var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
    scaled = (parts - parts.mean(dim=-1, keepdim=True)) / deviation * norm.weight
    return torch.cat([scaled, norm.bias.expand_as(total)[None]])
