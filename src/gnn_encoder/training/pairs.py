"""Trains a scorer of pairs: positives against negatives drawn from the candidates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from gnn_encoder.artifacts import KnownPositives, Qrels, TrainingSet
from gnn_encoder.errors import UserError
from gnn_encoder.models.dual_encoder import device, on_device
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.training.batches import ShuffledBatches, draw_negatives
from gnn_encoder.training.embed import passes
from gnn_encoder.training.losses import in_batch_softmax, listwise_distillation, pairwise_margin, pairwise_softmax
from gnn_encoder.training.ranks import shared


@dataclass(frozen=True)
class PairBatch:
    """Pairs of `query` and `passage` dataset rows [r], in groups of one positive and its negatives.

    `group` [r]: number of the group, from 0; `column` [r]: place in the group, 0 for the positive.
    """

    query: np.ndarray
    passage: np.ndarray
    group: np.ndarray
    column: np.ndarray
    epoch: int = 0
    number: int = 0
    """Of the batch in its epoch; with the epoch, the source of the random draws that the work on the batch needs."""


class PairBatches(ShuffledBatches):
    """Plan: each labelled pair with `negatives` candidates. A batch has whole groups.

    Args:
        positives: labelled pairs, e of them.
        pool: candidates [e, s] of each pair's query, without positives; -1: no candidate.
        settings: `batch_size` counts positives and negatives together. A pairwise `loss` leaves out positives without
            a candidate, because they teach nothing.
        redraw: draw the candidates again in each epoch, not once.
    """

    def __init__(
        self, positives: Qrels, pool: np.ndarray, settings: TrainCrossEncoder | TrainReranker, redraw: bool = True
    ) -> None:
        if not redraw:
            pool = draw_negatives(pool, settings.negatives, np.random.default_rng(settings.seed))
        usable = np.flatnonzero((settings.loss == "pointwise") | (pool >= 0).any(axis=1))
        if not len(usable):
            raise UserError(
                f"loss = {settings.loss} needs negatives, and no pair has a candidate that is no known positive"
            )
        super().__init__(len(usable), max(1, settings.batch_size // (1 + settings.negatives)), settings.seed)
        self.batch_examples *= 1 + settings.negatives
        self.query, self.passage, self.pool = positives.query[usable], positives.passage[usable], pool[usable]
        self.negatives = settings.negatives

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Dataset rows of the queries [r] and passages [r] that any batch may have."""
        row, column = np.nonzero(self.pool >= 0)
        queries, passages = self.query[row], self.pool[row, column]
        return np.concatenate([self.query, queries]), np.concatenate([self.passage, passages])

    def draws(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray, int, int]]:
        """The epoch's draws, each with the epoch and its number."""
        for number, drawn in enumerate(super().draws(epoch)):
            yield *drawn, epoch, number

    def draw(self, rows: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows [g] of the labelled pairs, and candidates [g, negatives]."""
        return rows, draw_negatives(self.pool[rows], self.negatives, generator)

    def batch(self, drawn: tuple[np.ndarray, np.ndarray, int, int]) -> PairBatch:
        """The batch of a draw: all positives first."""
        rows, candidates, epoch, number = drawn
        group, column = np.nonzero(candidates >= 0)
        return PairBatch(
            self.query[np.concatenate([rows, rows[group]])],
            np.concatenate([self.passage[rows], candidates[group, column]]),
            np.concatenate([np.arange(len(rows)), group]),
            np.concatenate([np.zeros_like(rows), column + 1]),
            epoch,
            number,
        )


def with_examples(
    labels: Qrels, pool: np.ndarray, examples: TrainingSet, queries: int
) -> tuple[Qrels, np.ndarray, list[str]]:
    """Labelled pairs and their candidates [e, s], continued by examples and their negatives; the generated queries.

    Generated queries have the rows from `queries` on, the number of the dataset's queries.
    """
    written = np.flatnonzero(examples.query < 0)
    query = examples.query.copy()
    query[written] = queries + np.arange(len(written))
    width = max(pool.shape[1], examples.negatives.shape[1])
    tables = [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=-1) for t in (pool, examples.negatives)]
    joined = (labels.query, query), (labels.passage, examples.positive), (labels.relevance, np.ones_like(query))
    return Qrels(*map(np.concatenate, joined)), np.concatenate(tables), examples.take(written).query_text


def in_batch_loss(
    table: Callable[[np.ndarray, np.ndarray], Tensor], batch: PairBatch, known: KnownPositives, queries: int
) -> Tensor:
    """Mean over the batch's positives of the softmax cross-entropy among all passages of the batch (ColBERT).

    If several processes train together, each reads all queries, and its share of the passages (`ranks`).

    Args:
        table: scores [g, c], with gradient, of all pairs of queries [g] and passages [c].
        known: pairs that are never negatives. Rows from `queries` on are generated queries, with one positive each.
    """
    first = batch.column == 0
    query_rows, passages = batch.query[first], np.unique(batch.passage)
    positive = np.searchsorted(passages, batch.passage[first])
    none = torch.zeros(0, len(query_rows), device=device())
    scores = shared(lambda rows: table(query_rows, rows).T, passages, none).T
    excluded = known.excluded(np.where(query_rows < queries, query_rows, -1), passages, positive)
    return in_batch_softmax(scores, *(on_device(array) for array in (positive, excluded))).mean()


def pair_loss(
    score: Callable[[np.ndarray, np.ndarray], Tensor],
    lengths: Callable[[np.ndarray, np.ndarray], np.ndarray],
    batch: PairBatch,
    *,
    loss: str,
    margin: float = 0.0,
    teacher: np.ndarray | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Mean loss of a batch. The pairs go through the model in length-sorted parts, to save padding. If several
    processes train together, each scores its share of the pairs (`ranks`).

    Args:
        score: scores [b], with gradient, of the pairs of dataset rows (query [b], passage [b]).
        lengths: tokens of such pairs.
        loss: `pointwise` (binary cross-entropy; the scores are logits), `pairwise_margin`, `pairwise_softmax` or
            `listwise_distillation`, whose lists are the groups.
        margin: of `pairwise_margin`.
        teacher: scores fp32 [b] of the batch's pairs, for `listwise_distillation`. temperature: of the same.
    """
    where = device()

    def scored(rows: np.ndarray) -> Tensor:
        query, passage = batch.query[rows], batch.passage[rows]
        parts = list(passes(lengths(query, passage), kept=True))
        inverse = on_device(np.argsort(np.concatenate(parts)))
        return torch.cat([score(query[part], passage[part]) for part in parts]).index_select(0, inverse)[:, None]

    scores = shared(scored, np.arange(len(batch.query)), torch.zeros(0, 1, device=where))[:, 0]
    if loss == "pointwise":
        return binary_cross_entropy_with_logits(scores, on_device(batch.column == 0).float())
    row, column = (on_device(index) for index in (batch.group, batch.column))

    def grouped(values: Tensor) -> Tensor:
        table = torch.full((int(batch.group.max()) + 1, int(batch.column.max()) + 1), -torch.inf, device=where)
        table[row, column] = values
        return table

    groups = grouped(scores)
    if teacher is not None:
        return listwise_distillation(groups, grouped(on_device(teacher)), temperature)
    return pairwise_margin(groups, margin) if loss == "pairwise_margin" else pairwise_softmax(groups)
