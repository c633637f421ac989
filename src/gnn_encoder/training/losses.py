"""The contrastive loss with in-batch negatives (GNN-encoder eq. 2 and eq. 12)."""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Qrels, TrainingSet, pair_keys
from gnn_encoder.artifacts.ragged import ranges
from gnn_encoder.training.gradient_cache import by_rows

SCORED = 2**19
"""(query, passage) pairs that are scored at a time under the gradient cache: 2 MiB an array of them."""


def contrastive_loss(
    queries: Tensor, passages: Tensor, positive: Tensor, excluded: Tensor, scale: float, *, cached: bool = False
) -> Tensor:
    """Mean over queries of −log exp s(q, p⁺) / (exp s(q, p⁺) + Σ exp s(q, p⁻)), s = scale · dot product.

    Args:
        queries: [b, d].
        passages: [c, d], every passage of the batch once; all but a query's positive are its negatives.
        positive: [b] int64, each query's positive among the passages.
        excluded: [2, x] int64, (query, passage) pairs that are no negatives: other known positives of the query.
        scale: 1 is the paper's eq. 2.
        cached: not all [b, c] scores at once, see `gradient_cache`.
    """

    def losses(part: Tensor, start: int) -> Tensor:
        # Autocast would make the product bf16, whose steps between 16 and 32 are 0.125.
        with torch.autocast(queries.device.type, enabled=False):
            scores = scale * part.float() @ passages.float().T
        row, column = excluded[:, (excluded[0] >= start) & (excluded[0] < start + len(part))]
        left_out = torch.zeros_like(scores, dtype=torch.bool)
        left_out[row - start, column] = True
        scores = scores.masked_fill(left_out, float("-inf"))
        return torch.nn.functional.cross_entropy(scores, positive[start : start + len(part)], reduction="none")

    rows = max(1, SCORED // len(passages))
    return by_rows(losses, queries, rows, cached=cached).mean()


class KnownPositives:
    """Which (query, passage) pairs are positives: labelled, or denoised by the cross-encoder."""

    def __init__(self, query: np.ndarray, passage: np.ndarray) -> None:
        asked = query >= 0  # generated queries, all of them -1, share nothing
        self._keys = np.unique(pair_keys(query[asked], passage[asked]))

    @classmethod
    def of(cls, qrels: Qrels, examples: TrainingSet) -> "KnownPositives":
        """From the labels and every example's positive."""
        positive = qrels.positive()
        return cls(
            np.concatenate([positive.query, examples.query]), np.concatenate([positive.passage, examples.positive])
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
        """(query, passage) pairs [2, x] int64, places in the batch: known positives other than the one trained on.

        Args:
            query: dataset rows [b], -1 for a generated query (which has but its own positive).
            passages: distinct dataset rows [c], ascending.
            positive: [b], index into `passages`.
        """
        first = pair_keys(query, np.zeros_like(query))
        starts, stops = np.searchsorted(self._keys, first), np.searchsorted(self._keys, first + (1 << 32))
        row, known = np.repeat(np.arange(len(query)), stops - starts), self._keys[ranges(starts, stops)] & 0xFFFFFFFF
        column = np.minimum(np.searchsorted(passages, known), len(passages) - 1)
        others = (passages[column] == known) & (column != positive[row])
        return np.stack([row[others], column[others]])


def loss_scale(setting: float | str, unit_length: bool) -> float:
    """The factor on s(q, p): as set, or 1, or 20 for vectors of unit length (`score_scale: auto`)."""
    if setting == "auto":
        return 20.0 if unit_length else 1.0
    return float(setting)
