"""The contrastive loss with in-batch negatives (GNN-encoder eq. 2 and eq. 12)."""

import torch
from torch import Tensor

from gnn_encoder.training.embed import by_rows

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


def loss_scale(setting: float | str, unit_length: bool) -> float:
    """The factor on s(q, p): as set, or 1, or 20 for vectors of unit length (`score_scale: auto`)."""
    if setting == "auto":
        return 20.0 if unit_length else 1.0
    return float(setting)
