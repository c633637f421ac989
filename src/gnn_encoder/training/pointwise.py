"""Training the cross-encoder: positives against negatives drawn from the candidates, pointwise."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Qrels
from gnn_encoder.inference.scoring import PairTokens
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.training.batches import draw_negatives
from gnn_encoder.training.embed import passes


@dataclass(frozen=True)
class PairBatch:
    """`query` and `passage` dataset rows [r], `label` [r] 0 or 1."""

    query: np.ndarray
    passage: np.ndarray
    label: np.ndarray


class PairBatches:
    """Plan: each labelled pair with `negatives` candidates drawn anew each epoch. A batch has whole groups.

    Args:
        positives: labelled pairs, e of them.
        pool: candidates [e, s] of each pair's query, positives taken out, -1 where fewer.
        batch_size: pairs in a batch, positives and negatives together.
    """

    def __init__(self, positives: Qrels, pool: np.ndarray, batch_size: int, negatives: int, seed: int) -> None:
        self.positives, self.pool, self.negatives, self.seed = positives, pool, negatives, seed
        groups = max(1, batch_size // (1 + negatives))
        self.steps_per_epoch = -(-len(positives.query) // groups)
        self.batch_examples = min(groups, len(positives.query)) * (1 + negatives)

    def draws(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of each batch of the epoch: rows [g] of the labelled pairs, and the candidates [g, negatives] of each."""
        generator = np.random.default_rng((self.seed, epoch))
        for rows in np.array_split(generator.permutation(len(self.positives.query)), self.steps_per_epoch):
            yield rows, draw_negatives(self.pool[rows], self.negatives, generator)

    def batch(self, drawn: tuple[np.ndarray, np.ndarray]) -> PairBatch:
        """The batch that was drawn."""
        rows, candidates = drawn
        query = np.repeat(self.positives.query[rows], candidates.shape[1])
        exists = candidates.ravel() >= 0
        return PairBatch(
            np.concatenate([self.positives.query[rows], query[exists]]),
            np.concatenate([self.positives.passage[rows], candidates.ravel()[exists]]),
            np.repeat([1.0, 0.0], [len(rows), int(exists.sum())]).astype(np.float32),
        )


def pointwise_loss(model: CrossEncoder, pairs: PairTokens, batch: PairBatch) -> Tensor:
    """Mean binary cross-entropy of sigmoid(score): the probability that denoising compares with 0.1 and 0.9.

    Pairs go through the encoder in length-sorted parts, to save padding.
    """
    where = device()
    total = torch.zeros((), device=where)
    for part in passes(pairs.lengths(batch.query, batch.passage)):
        inputs = (torch.from_numpy(a).to(where) for a in pairs.padded(batch.query[part], batch.passage[part]))
        scores, _ = model(*inputs)
        label = torch.from_numpy(batch.label[part]).to(where)
        total = total + torch.nn.functional.binary_cross_entropy_with_logits(scores, label, reduction="sum")
    return total / len(batch.label)
