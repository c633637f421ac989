"""Vectors of passages in their context, of the whole graph, streamed over memory-mapped token vectors.

The plain GAT (MiM, Mix-iM) runs layer by layer over all nodes.

The context-only GAT (LiM) has another graph for each passage p: the edges out of p are missing. Most of its values are
those of the full graph, which is computed once: after l layers, only nodes at most l edges away from p differ, and the
result needs only nodes at most N − l edges away. So of p's own graph, layer l of N computes the nodes at most
min(l, N − l) edges away from p. With three layers, these are p and its neighbours:

1. The first layer of the full graph: E edges for all passages together.
2. Layer 1 of p's neighbours: what they heard in the full graph, less what they heard from p (for `mean`: less p's share
   of the mean). One edge for each, because what they ask is the same. E edges.
3. Layer 2 of p's neighbours: all edges into them but p's. What they ask has changed, so nothing can be reused.
   Σ_p Σ_{j next to p} degree(j) edges, most of the work.
4. Layers 1 to 3 of p itself: 3 E edges.

For ObliQA, E = 54 thousand, step 3 has 272 thousand edges, and all steps have 0.5 million. Computing each p's graph
anew has 1.6 million, with 7 times the attention's operations. One core needs about 105 s for all passages (68 tokens
each, 128 numbers a token). A section of k parts costs k² edges of step 3, but the section asks by a short title.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts.arrays import eight_bits, ranges
from gnn_encoder.artifacts.document_graph import DocumentGraph
from gnn_encoder.document_graph.neighbourhoods import around, edges_into
from gnn_encoder.errors import UserError
from gnn_encoder.inference.late_interaction import TokenVectors
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.machine.threads import chunk_by_core
from gnn_encoder.models.document_gat import DocumentGat, Edges, TokenMatrices
from gnn_encoder.models.document_reranker import ContextMatching
from gnn_encoder.tracking.progress import Progress

TOKENS = 32_768
"""Token vectors of a chunk, at each of its places in memory: 17 MB in fp32."""
BLOCK = 1024
"""Nodes whose edges are counted together, for the bounds of chunks."""


def context_vectors(
    context: ContextMatching,
    graph: DocumentGraph,
    tokens: TokenVectors,
    passages: np.ndarray,
    *,
    token_vectors: str = "fp16",
    chunk: int = TOKENS,
    progress: Progress | None = None,
) -> TokenVectors:
    """Context vectors of the distinct `passages` [g], in this order, in temporary files; without dropout.

    Args:
        tokens: the encoder's vectors of all n nodes. Nodes that no passage reads (`within`) may be without tokens.
        token_vectors: storage type of the result, `fp32`, `fp16` or `int8`.
        chunk: token vectors in memory at a time, of each core. A passage with more next to it takes more.
        progress: counts passages.
    """
    network, where = context.network, next(context.parameters()).device
    lengths = np.diff(tokens.offsets)[passages]
    if hasattr(network, "asking"):
        lengths = np.full(len(passages), network.config.asking_tokens)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    small, total = token_vectors == "int8", int(offsets[-1])
    dtype = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}[token_vectors]
    values = scratch(total, network.config.width, dtype=dtype)
    result = TokenVectors(values, offsets, scratch(total) if small else None)
    full = FullGraph(network, graph, tokens, chunk)
    computed = _own_graphs if network.config.context_only else _last_layer

    def compute(bounds: tuple[int, int]) -> int:
        part = slice(*bounds)
        with torch.inference_mode():
            matrices = computed(full, passages[part])
            vectors = context.context_vectors(matrices.values).cpu().numpy()
        span = slice(offsets[bounds[0]], offsets[bounds[1]])
        if result.scales is None:
            if token_vectors == "fp16" and np.abs(vectors).max(initial=0) > np.finfo(np.float16).max:
                raise UserError(
                    "a context vector exceeds fp16, a sum over many neighbours: set train_reranker.token_vectors to "
                    "int8, train_reranker.neighbour_reduction to mean, or train_reranker.context_unit_length to true"
                )
            values[span] = vectors
        else:
            values[span], result.scales[span] = eight_bits(vectors)
        return bounds[1] - bounds[0]

    was_training = network.training
    network.eval()
    try:
        full.run(_full_layers(network))
        radius = network.config.layers // 2 if network.config.context_only else 0
        chunk_by_core(compute, list(full.chunks(passages, radius)), where, progress)
    finally:
        network.train(was_training)
    return result


def _full_layers(network: DocumentGat) -> int:
    """Number of layers whose results on the full graph are needed."""
    layers = network.config.layers
    if not network.config.context_only:
        return layers - 1
    # Layer l + 1 computes nodes at most min(l + 1, N - l - 1) edges away from p, which hear nodes one edge further.
    needed = [low for low in range(1, layers) if min(low + 1, layers - low - 1) + 1 > min(low, layers - low)]
    return max([min(1, layers - 1), *needed])


class FullGraph:
    """The results of the network's first layers for all nodes of the full graph, in temporary files."""

    def __init__(self, network: DocumentGat, graph: DocumentGraph, tokens: TokenVectors, chunk: int) -> None:
        self.network, self.graph, self.chunk = network, graph, chunk
        self.lengths = np.diff(tokens.offsets)
        self._where = next(network.parameters()).device
        self._results = [tokens]
        self._first_heard = tokens  # replaced by the first layer

    def run(self, layers: int) -> None:
        """Compute the first `layers` layers."""
        nodes = np.flatnonzero(self.lengths)
        chunks, tokens = list(self.chunks(nodes, 0)), self._results[0]
        config, size = self.network.config, (int(tokens.offsets[-1]), self.network.config.width)
        for number in range(layers):
            out = TokenVectors(scratch(*size), tokens.offsets)
            # What a node heard is needed apart only where the layer's result is something else.
            apart = number == 0 and config.context_only and (config.residual or config.layer_norm)
            raw = TokenVectors(scratch(*size), tokens.offsets) if apart else out
            chunk_by_core(partial(self._fill, number, nodes, out, raw), chunks, self._where)
            self._results.append(out)
            if number == 0:
                self._first_heard = raw

    def _fill(
        self, number: int, nodes: np.ndarray, out: TokenVectors, raw: TokenVectors, bounds: tuple[int, int]
    ) -> int:
        """Write a layer's results of a part of `nodes` into `out`, and what the nodes heard into `raw`."""
        part, layer = nodes[slice(*bounds)], self.network.stack[number]
        rows = ranges(out.offsets[part], out.offsets[part + 1])
        with torch.inference_mode():
            heard, asking = self.layer(number, part)
            if raw is not out:
                raw.values[rows] = heard.cpu().numpy()
            out.values[rows] = layer.finished(heard, asking).cpu().numpy()
        return 0

    def layer(self, number: int, nodes: np.ndarray) -> tuple[Tensor, TokenMatrices]:
        """What some nodes hear in a layer (from 0) of the full graph, and what they ask."""
        config, asking = self.network.config, self.matrices(number, nodes)
        edges = edges_into(self.graph, nodes, config.edge_types)
        edges = edges._replace(weight=edges.weights(config.neighbour_reduction))
        return self.heard(number, asking, edges), asking

    def matrices(self, layer: int, nodes: np.ndarray) -> TokenMatrices:
        """The results of a layer (0: the encoder's vectors) of some nodes, fp32; of no nodes for any layer."""
        return self._results[layer if len(nodes) else 0].take(nodes, self._where)

    def first_heard(self, nodes: np.ndarray) -> Tensor:
        """What some nodes heard in the first layer, fp32."""
        return self._first_heard.take(nodes, self._where).values

    def heard(self, number: int, asking: TokenMatrices, edges: Edges) -> Tensor:
        """What `asking` hears in a layer along weighted edges from nodes of the full graph, which are read in parts."""
        layer = self.network.stack[number]
        nodes, source = np.unique(edges.source, return_inverse=True)
        part = np.cumsum(self.lengths[nodes]) // self.chunk
        total = asking.values.new_zeros(asking.values.shape)
        bounds = [0, *(np.flatnonzero(np.diff(part)) + 1), len(nodes)]
        for start, stop in pairwise(bounds):
            if stop > start:
                edges_of_chunk = edges._replace(source=source - start).take((source >= start) & (source < stop))
                total += layer.heard(asking, self.matrices(number, nodes[start:stop]), edges_of_chunk)
        return total

    def chunks(self, nodes: np.ndarray, radius: int) -> Iterator[tuple[int, int]]:
        """Bounds of parts of `nodes` with about `chunk` tokens at most `radius` edges away and one edge further.

        A token of a node that is further away counts a hundredth, as an edge does: it is read in parts.
        """
        n, kinds = len(self.graph), self.network.config.edge_types
        start, sum_before = 0, 0.0
        for block in range(0, len(nodes), BLOCK):
            nodes_of_block = nodes[block : block + BLOCK]
            rows = np.arange(len(nodes_of_block)) * n + nodes_of_block
            for _ in range(radius):
                rows = around(self.graph, rows, kinds)
            edges = edges_into(self.graph, rows % n, kinds)
            amounts = self.lengths[rows % n] + np.bincount(edges.target, self.lengths[edges.source], len(rows)) / 100
            for index, amount in enumerate(np.bincount(rows // n, amounts, len(nodes_of_block)), block):
                if sum_before and sum_before + amount > self.chunk:
                    yield start, index
                    start, sum_before = index, 0.0
                sum_before += amount
        if len(nodes) > start:
            yield start, len(nodes)


def _last_layer(full: FullGraph, passages: np.ndarray) -> TokenMatrices:
    """The plain GAT's result for passages, from the results of all layers but the last."""
    number = full.network.config.layers - 1
    heard, asking = full.layer(number, passages)
    return TokenMatrices(full.network.stack[number].finished(heard, asking), asking.lengths)


def _own_graphs(full: FullGraph, passages: np.ndarray) -> TokenMatrices:
    """The context-only GAT's result for passages, each in its own graph."""
    network, graph, n, count = full.network, full.graph, len(full.graph), len(passages)
    config, reduction = network.config, network.config.neighbour_reduction
    first = np.arange(count) * n + passages
    near = [first]  # rows (graph of passage i, node): i · n + node; those at most so many edges away
    for _ in range(config.layers // 2):
        near.append(around(graph, near[-1], config.edge_types))
    known, matrices = first, network.questions(full.matrices(0, passages))
    for number, layer in enumerate(network.stack):
        radius = min(number + 1, config.layers - number - 1)
        rows = np.concatenate([first, np.setdiff1d(near[radius], first)])
        position, present = _index_in(known, rows)
        unchanged = full.matrices(number, rows[~present] % n)
        asking = TokenMatrices.join([matrices, unchanged]).take(
            np.where(present, position, len(known) + np.cumsum(~present) - 1)
        )
        edges = edges_into(graph, rows % n, config.edge_types)
        from_passage = edges.source == passages[rows[edges.target] // n]  # edges out of the passage
        if number == 0:
            edges = _of_first_layer(edges, from_passage, count, reduction)
            kept = network.kept(asking.first(count), asking.after(count))
        else:
            edges, kept = edges.take(~from_passage), None
            edges = edges._replace(weight=edges.weights(reduction))
        position, present = _index_in(known, rows[edges.target] // n * n + edges.source)
        if number == 0:
            present[:] = False  # `known` has what asks, and in layer 1 the encoder's vectors answer
        heard = full.heard(number, asking, edges.take(~present))
        if present.any():
            heard += layer.heard(asking, matrices, edges._replace(source=position).take(present))
        if number == 0 and len(rows) > count:
            heard[len(asking.first(count).values) :] += full.first_heard(rows[count:] % n)
        known, matrices = rows, TokenMatrices(layer.finished(heard, asking, kept), asking.lengths)
    return matrices


def _of_first_layer(edges: Edges, from_passage: np.ndarray, passages: int, reduction: str) -> Edges:
    """The weighted edges of the first layer: all that remain into passages, and corrections of what other nodes heard.

    Args:
        from_passage: bool [e], edges out of the own graph's passage. passages: the first so many targets are passages.
    """
    into = edges.target < passages
    remaining, others, out = edges.take(into & ~from_passage), edges.take(~into), from_passage[~into]
    if reduction == "sum":
        correcting = others.take(out)
        weight = np.full(len(correcting.target), -1, np.float32)
    else:
        # The mean without p: each of the c - 1 others gains 1 / (c - 1) - 1 / c, and p loses 1 / c.
        _, group, size = np.unique(
            others.kind * (int(edges.target.max(initial=0)) + 1) + others.target,
            return_inverse=True,
            return_counts=True,
        )
        changed = np.bincount(group, out, len(size))[group] > 0
        correcting, c, out = others.take(changed), size[group][changed], out[changed]
        weight = np.where(out, -1 / c, 1 / np.maximum(c - 1, 1) - 1 / c).astype(np.float32)
    weights = np.concatenate([remaining.weights(reduction), weight])
    target, source, kind = map(np.concatenate, zip(remaining[:3], correcting[:3], strict=True))
    return Edges(target, source, kind, weights)


def _index_in(rows: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The index in `rows` of each of `wanted`, and whether it is there."""
    order = np.argsort(rows, kind="stable")
    position = order[np.minimum(np.searchsorted(rows, wanted, sorter=order), len(rows) - 1)]
    return position, rows[position] == wanted
