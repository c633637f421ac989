"""Trains a scorer of pairs: positives against negatives drawn from the candidates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Qrels
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.training.batches import draw_negatives
from gnn_encoder.training.embed import passes
from gnn_encoder.training.losses import pairwise_margin, pairwise_softmax, pointwise


@dataclass(frozen=True)
class PairBatch:
    """Pairs of `query` and `passage` dataset rows [r], in groups of one positive and its negatives.

    `group` [r]: number of the group, from 0; `column` [r]: place in the group, 0 for the positive.
    """

    query: np.ndarray
    passage: np.ndarray
    group: np.ndarray
    column: np.ndarray


class PairBatches:
    """Plan: each labelled pair with `negatives` candidates, drawn again in each epoch. A batch has whole groups.

    Args:
        positives: labelled pairs, e of them.
        pool: candidates [e, s] of each pair's query, without positives; -1: no candidate.
        settings: `batch_size` counts positives and negatives together. A pairwise `loss` leaves out positives without
            a candidate, because they teach nothing.
    """

    def __init__(self, positives: Qrels, pool: np.ndarray, settings: TrainCrossEncoder) -> None:
        usable = np.flatnonzero((settings.loss == "pointwise") | (pool >= 0).any(axis=1))
        if not len(usable):
            raise UserError(f"loss = {settings.loss} needs negatives, and every candidate is a known positive")
        self.query, self.passage, self.pool = positives.query[usable], positives.passage[usable], pool[usable]
        self.negatives, self.seed = settings.negatives, settings.seed
        groups = max(1, settings.batch_size // (1 + settings.negatives))
        self.steps_per_epoch = -(-len(usable) // groups)
        self.batch_examples = min(groups, len(usable)) * (1 + settings.negatives)

    def draws(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields for each batch of the epoch: rows [g] of the labelled pairs, and candidates [g, negatives]."""
        generator = np.random.default_rng((self.seed, epoch))
        for rows in np.array_split(generator.permutation(len(self.query)), self.steps_per_epoch):
            yield rows, draw_negatives(self.pool[rows], self.negatives, generator)

    def batch(self, drawn: tuple[np.ndarray, np.ndarray]) -> PairBatch:
        """The batch of a draw: all positives first."""
        rows, candidates = drawn
        group, column = np.nonzero(candidates >= 0)
        return PairBatch(
            self.query[np.concatenate([rows, rows[group]])],
            np.concatenate([self.passage[rows], candidates[group, column]]),
            np.concatenate([np.arange(len(rows)), group]),
            np.concatenate([np.zeros_like(rows), column + 1]),
        )


def pair_loss(
    score: Callable[[np.ndarray, np.ndarray], Tensor],
    lengths: Callable[[np.ndarray, np.ndarray], np.ndarray],
    batch: PairBatch,
    *,
    loss: str,
    margin: float,
) -> Tensor:
    """Mean loss of a batch. The pairs go through the model in length-sorted parts, to save padding.

    Args:
        score: scores [b], with gradient, of the pairs of dataset rows (query [b], passage [b]).
        lengths: tokens of such pairs.
        loss: `pointwise`, whose scores are logits, `pairwise_margin` or `pairwise_softmax`.
        margin: of `pairwise_margin`.
    """
    parts = list(passes(lengths(batch.query, batch.passage)))
    scores = [score(batch.query[part], batch.passage[part]) for part in parts]
    where = scores[0].device
    if loss == "pointwise":
        relevant = (torch.from_numpy(batch.column[part] == 0).to(where) for part in parts)
        return sum(map(pointwise, scores, relevant), torch.zeros((), device=where)) / len(batch.query)
    row, column = (torch.from_numpy(place[np.concatenate(parts)]).to(where) for place in (batch.group, batch.column))
    groups = torch.full((int(batch.group.max()) + 1, int(batch.column.max()) + 1), -torch.inf, device=where)
    groups[row, column] = torch.cat(scores)
    return pairwise_margin(groups, margin) if loss == "pairwise_margin" else pairwise_softmax(groups)
