"""The contrastive loss with in-batch negatives (GNN-encoder eq. 2 and eq. 12)."""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Qrels, TrainingSet, pair_keys
from gnn_encoder.training.gradient_cache import by_parts

SCORED = 256
"""Queries whose scores are held at a time under the gradient cache, and whose negatives are looked up at a time."""


def contrastive_loss(
    queries: Tensor, passages: Tensor, positive: Tensor, excluded: Tensor, scale: float, *, cached: bool = False
) -> Tensor:
    """Mean over queries of −log exp s(q, p⁺) / (exp s(q, p⁺) + Σ exp s(q, p⁻)), s = scale · dot product.

    Args:
        queries: [b, d].
        passages: [c, d], every passage of the batch once; all but a query's positive are its negatives.
        positive: [b] int64, each query's positive among the passages.
        excluded: [b, c] bool, pairs that are no negatives: other known positives of the query.
        scale: 1 is the paper's eq. 2.
        cached: not all [b, c] scores at once, see `gradient_cache`.
    """

    def losses(part: Tensor, start: int) -> Tensor:
        rows = slice(start, start + len(part))
        # Autocast would make the product bf16, whose steps between 16 and 32 are 0.125.
        with torch.autocast(queries.device.type, enabled=False):
            scores = scale * part.float() @ passages.float().T
        scores = scores.masked_fill(excluded[rows], float("-inf"))
        return torch.nn.functional.cross_entropy(scores, positive[rows], reduction="none")

    return by_parts(losses, queries, SCORED, cached=cached).mean()


class KnownPositives:
    """Which (query, passage) pairs are positives: labelled, or denoised by the cross-encoder."""

    def __init__(self, query: np.ndarray, passage: np.ndarray) -> None:
        self._keys = np.unique(pair_keys(query, passage))

    @classmethod
    def of(cls, qrels: Qrels, examples: TrainingSet) -> "KnownPositives":
        """From the labels and every example's positive."""
        positive, known = qrels.positive(), examples.query >= 0
        return cls(
            np.concatenate([positive.query, examples.query[known]]),
            np.concatenate([positive.passage, examples.positive[known]]),
        )

    def contains(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Bool of the broadcast shape: is (query, passage) a known positive?"""
        wanted = pair_keys(query, passage)
        if len(self._keys) == 0:
            return np.zeros(wanted.shape, dtype=bool)
        rows = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        found: np.ndarray = self._keys[rows] == wanted
        return found

    def excluded(self, query: np.ndarray, passages: np.ndarray, positive: np.ndarray) -> np.ndarray:
        """Bool [b, c]: known positives of each query other than the one it is trained on.

        Args:
            query: dataset rows [b], -1 for a generated query (which has but its own positive).
            passages: distinct dataset rows [c].
            positive: [b], index into `passages`.
        """
        mask = np.empty((len(query), len(passages)), dtype=bool)
        for start in range(0, len(query), SCORED):  # the search needs some 32 bytes a pair
            some = query[start : start + SCORED, None]
            mask[start : start + SCORED] = self.contains(some, passages[None, :]) & (some >= 0)
        mask[np.arange(len(query)), positive] = False
        return mask


def loss_scale(setting: float | str, unit_length: bool) -> float:
    """The factor on s(q, p): as set, or 1, or 20 for vectors of unit length (`score_scale: auto`)."""
    if setting == "auto":
        return 20.0 if unit_length else 1.0
    return float(setting)
