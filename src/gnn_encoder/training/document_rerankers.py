"""MiM, LiM and Mix-iM in training (Albarede et al. 2022, section 2.2 and 3).

A batch's queries and passages are read with gradient. So is the network over documents, in the passages'
neighbourhoods, whose edges are drawn anew for each batch. The other nodes' token vectors are of the encoder at the
start of the epoch, unless `neighbours` is `live`: reading them costs as much as reading the passages, for each of some
hundred neighbours. If several processes train together, a passage that another process reads is such a node, too, and
each process draws the edges around its own passages.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Dataset, DocumentGraph
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.document_graph import KINDS
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.neighbourhoods import neighbourhood, within
from gnn_encoder.document_graph.nodes import encode_nodes, section_tokens, structure_of
from gnn_encoder.inference.document_scores import document_scores
from gnn_encoder.inference.late_interaction import (
    TokenVectors,
    all_passage_tokens,
    passage_arrays,
    query_arrays,
    query_tokens,
)
from gnn_encoder.models.backbone import freeze_layers
from gnn_encoder.models.document_gat import TokenMatrices
from gnn_encoder.models.document_reranker import DocumentReranker
from gnn_encoder.models.dual_encoder import device, on_device
from gnn_encoder.models.late_interaction import max_similarity
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.storage.checkpoint_store import sealed
from gnn_encoder.tracking.context import Context
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.embed import passes
from gnn_encoder.training.pairs import PairBatch
from gnn_encoder.training.passage_cache import PassageCache
from gnn_encoder.training.ranks import to_every_machine
from gnn_encoder.training.rerankers import Reranker, new_reranker

OFFSETS = "offsets.npy"
COPIED = 2**16
"""Token vectors that are copied at a time."""


def document_reranker(
    settings: TrainReranker, data: Dataset, graph: DocumentGraph, trained: np.ndarray, context: Context
) -> Reranker:
    """The re-ranker of the settings' kind: ColBERT's encoder, its first layers frozen, and a new network.

    Args:
        trained: dataset rows of the passages that training reads.
    """
    late = new_reranker(settings.model_copy(update={"kind": "colbert"}), data, trained)
    frozen, text = settings.frozen_layers, late.model
    freeze_layers(text.backbone, text.backbone.config.num_hidden_layers // 2 if frozen == "half" else frozen)
    model = DocumentReranker.of(
        text, settings.kind, unit_length=settings.context_unit_length,
        layers=settings.graph_layers, heads=settings.graph_heads, dropout=settings.graph_dropout,
        neighbour_reduction=settings.neighbour_reduction, residual=settings.residual, layer_norm=settings.layer_norm,
        context_asks=settings.context_asks, edge_types=tuple(kind for kind in KINDS if kind in settings.edge_types),
    )  # fmt: skip
    if settings.context_weight is not None and model.context.uses_content:
        model.context.fix_share(settings.context_weight)
    batches = DocumentBatches(model, data, graph, trained, settings, context)
    return Reranker(
        model, batches.score, late.lengths, batches.rank, logits=False, table=batches.table, before=batches.begin,
        facts=lambda: model.context.figures,
    )  # fmt: skip


class DocumentBatches:
    """Scores of a batch with gradient, and of dev candidates, over one document graph."""

    def __init__(
        self,
        model: DocumentReranker,
        data: Dataset,
        graph: DocumentGraph,
        trained: np.ndarray,
        settings: TrainReranker,
        context: Context,
    ) -> None:
        self.model, self.data, self.graph, self.settings = model, data, graph, settings
        self.config, self._context = model.context.network.config, context
        text, structure = model.text, structure_of(data)
        self._queries = query_tokens(text, data.queries.column("text").to_pylist())
        self._passages = all_passage_tokens(text, data.passages)
        self._sections = section_tokens(text, structure.sections, np.arange(len(structure.sections)))
        self.cache: TokenCache | None = None
        if settings.neighbours == "cached":
            wanted = within(graph, trained, self.config.layers, self.config.edge_types)
            self.cache = TokenCache(
                int(wanted.sum()),
                lambda progress: self._encoded(wanted, precision=settings.precision, progress=progress),
            )
        self._generator = np.random.default_rng(settings.seed)

    def begin(self, batch: PairBatch) -> None:
        """Prepare for a batch: its random draws depend on the epoch and its number, so that resuming is exact."""
        self._generator = np.random.default_rng((self.settings.seed, batch.epoch, batch.number))
        if self.cache:
            folder = self._context.checkpoints().folder
            self.cache.advance(
                batch.epoch + 1, folder, lambda nodes: self._context.progress("refreshing", nodes, "nodes")
            )

    def score(self, query: np.ndarray, passage: np.ndarray) -> Tensor:
        """Scores [r] of pairs, with gradient."""
        query_rows, first = np.unique(query, return_inverse=True)
        passage_rows, second = np.unique(passage, return_inverse=True)
        of_query, of_passage = map(on_device, (first, second))
        queries, asks = (side.index_select(0, of_query) for side in self._query_vectors(query_rows))
        sides = [
            max_similarity(queries, vectors.index_select(0, of_passage), asks, inside[of_passage])
            for vectors, inside in self._compared(passage_rows)
        ]
        return self.model.context.relevance(sides[0], sides[-1])

    def table(self, query: np.ndarray, passage: np.ndarray) -> Tensor:
        """Scores [g, c] of all pairs of queries [g] and passages [c], with gradient."""
        queries, asks = self._query_vectors(query)
        sides = [
            max_similarity(queries[:, None], vectors[None], asks[:, None], inside[None])
            for vectors, inside in self._compared(passage)
        ]
        return self.model.context.relevance(sides[0], sides[-1])

    def rank(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Scores fp32 [r] of pairs as the trained scorer gives them, with all neighbours."""
        rows, context = np.unique(passage, return_inverse=True)
        speed: dict[str, Any] = {"precision": self.settings.precision}
        tokens = self._encoded(within(self.graph, rows, self.config.layers, self.config.edge_types), **speed)
        contexts = context_vectors(self.model.context, self.graph, tokens, rows, token_vectors="fp32")
        return document_scores(self.model, self.data, contexts, query, passage, context, **speed)

    def matrices(self, passages: np.ndarray) -> tuple[TokenMatrices, TokenMatrices]:
        """Vectors of distinct passages with gradient: the encoder's, and those in their context."""
        hood = neighbourhood(
            self.graph, passages, self.config.layers, context_only=self.config.context_only,
            kinds=self.config.edge_types, limit=self.settings.max_neighbours, generator=self._generator,
        )  # fmt: skip
        others = np.setdiff1d(hood.nodes, passages)
        content = self._live(passages)
        known = TokenMatrices.join([content, self._live(others) if self.cache is None else self.cache.of(others)])
        nodes = np.concatenate([passages, others])
        order = np.argsort(nodes, kind="stable")
        tokens = known.take(order[np.searchsorted(nodes, hood.nodes, sorter=order)])
        context = self.model.context
        in_context = context.network(tokens, hood.hops, len(passages))
        return content, in_context._replace(values=context.context_vectors(in_context.values))

    def _compared(self, passages: np.ndarray) -> list[tuple[Tensor, Tensor]]:
        """Padded vectors [c, k, d] and the tokens bool [c, k] of what a query is compared with, the context last."""
        content, in_context = self.matrices(passages)
        return [side.padded() for side in ((content, in_context) if self.model.context.uses_content else (in_context,))]

    def _query_vectors(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        ids, mask, asks = map(on_device, query_arrays(self.model.text, self._queries, rows))
        return self.model.text(ids, mask), asks

    def _live(self, nodes: np.ndarray) -> TokenMatrices:
        """Token vectors of nodes, in this order, with gradient."""
        text, count, parts, orders = self.model.text, self.graph.passages, [], [np.zeros(0, np.int64)]
        for chosen, tokens, start in ((nodes < count, self._passages, 0), (nodes >= count, self._sections, count)):
            positions = np.flatnonzero(chosen)
            for part in passes(tokens.lengths[nodes[positions] - start], kept=True) if len(positions) else ():
                ids, mask, used = passage_arrays(text, tokens, nodes[positions[part]] - start)
                vectors = text(*map(on_device, (ids, mask)))
                parts.append(TokenMatrices(vectors[on_device(used)], used.sum(axis=1)))
                orders.append(positions[part])
        if not parts:
            return TokenMatrices(torch.zeros(0, self.config.width, device=device()), np.zeros(0, np.int64))
        return TokenMatrices.join(parts).take(np.argsort(np.concatenate(orders)))

    def _encoded(self, wanted: np.ndarray, **options: Any) -> TokenVectors:
        return encode_nodes(self.model.text, self.data, wanted, **options)


class TokenCache(PassageCache):
    """Token vectors fp16 [t, d] of nodes at the start of an epoch, a numbered file for each epoch."""

    def __init__(self, nodes: int, encode: Callable[[Progress], TokenVectors]) -> None:
        super().__init__(np.empty((0, 0), np.float16), np.arange(nodes), lambda rows: rows)
        self._nodes = encode
        self._offsets = np.zeros(1, np.int64)

    def advance(self, version: int, folder: Path, progress: Callable[[int], Progress]) -> None:
        """As in `PassageCache`."""
        super().advance(version, folder, progress)
        if len(self._offsets) == 1:
            to_every_machine(device(), folder / OFFSETS)
            self._offsets = np.load(folder / OFFSETS)

    def of(self, nodes: np.ndarray) -> TokenMatrices:
        """Token vectors fp32 of nodes, without gradient."""
        starts, stops = self._offsets[nodes], self._offsets[nodes + 1]
        return TokenMatrices(on_device(self.vectors[ranges(starts, stops)]).float(), stops - starts)

    def _write(self, file: Path, progress: Progress) -> None:
        with torch.autocast(device().type, enabled=False):
            matrices = self._nodes(progress)
        # A node has as many tokens in each epoch. A resumed training may find the vectors in place, so both are files.
        for name, array in ((OFFSETS, matrices.offsets), (file.name, matrices.values)):
            with sealed(file.with_name(name)) as partial:
                stored = np.lib.format.open_memmap(partial, mode="w+", dtype=array.dtype, shape=array.shape)
                for start in range(0, len(array), COPIED):
                    stored[start : start + COPIED] = array[start : start + COPIED]
                stored.flush()
