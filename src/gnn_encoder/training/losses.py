"""Losses over scores: with in-batch negatives, with given negatives, and with the scores of a teacher."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, kl_div, normalize

from gnn_encoder.training.embed import by_rows

SCORED = 2**19
"""(query, passage) pairs that are scored at a time under the gradient cache: 2 MiB an array of them."""


def contrastive_loss(
    queries: Tensor, passages: Tensor, positive: Tensor, excluded: Tensor, scale: float, *, cached: bool = False
) -> Tensor:
    """Mean over queries of −log exp s(q, p⁺) / (exp s(q, p⁺) + Σ exp s(q, p⁻)), s = scale · dot product.

    GNN-encoder eq. 2 and eq. 12.

    Args:
        queries: [b, d].
        passages: [c, d], every passage of the batch once; a query's negatives are all passages but its positive.
        positive: [b] int64, each query's positive among the passages.
        excluded: [2, x] int64, (query, passage) pairs that are not negatives: other known positives of the query.
        scale: 1 is the paper's eq. 2.
        cached: computes the [b, c] scores in parts, see `embed`.
    """

    def losses(part: Tensor, start: int) -> Tensor:
        # Autocast would make the product bf16, whose steps between 16 and 32 are 0.125.
        with torch.autocast(queries.device.type, enabled=False):
            scores = scale * part.float() @ passages.float().T
        others = excluded
        if len(part) < len(queries):  # choosing by a mask waits for a GPU
            row, column = excluded[:, (excluded[0] >= start) & (excluded[0] < start + len(part))]
            others = torch.stack([row - start, column])
        return in_batch_softmax(scores, positive[start : start + len(part)], others)

    return by_rows(losses, queries, max(1, SCORED // len(passages)), cached=cached).mean()


def matryoshka_loss(
    loss: Callable[[Tensor, Tensor], Tensor],
    queries: Tensor,
    passages: Tensor,
    dimensions: Sequence[int],
    unit_length: bool,
) -> Tensor:
    """Sum of a loss of vectors [b, d] and [c, d] over the first components, as many as each of `dimensions` says.

    Kusupati et al. (2022), eq. 1, with all weights 1. unit_length: the first components get it again.
    """

    def first(vectors: Tensor, dimension: int) -> Tensor:
        if dimension == vectors.shape[1]:
            return vectors
        return normalize(vectors[:, :dimension], dim=-1) if unit_length else vectors[:, :dimension]

    return torch.stack([loss(first(queries, width), first(passages, width)) for width in dimensions]).sum()


def in_batch_softmax(scores: Tensor, positive: Tensor, excluded: Tensor) -> Tensor:
    """−log exp s⁺ / (exp s⁺ + Σ exp s⁻) [b] over the batch's passages; arguments as of `contrastive_loss`.

    Args:
        scores: [b, c], of each query and each passage.
    """
    left_out = torch.zeros_like(scores, dtype=torch.bool)
    left_out[excluded[0], excluded[1]] = True
    return cross_entropy(scores.masked_fill(left_out, -torch.inf), positive, reduction="none")


def loss_scale(setting: float | str, unit_length: bool) -> float:
    """The factor on s(q, p): the setting; for `auto` 20 if vectors have unit length, otherwise 1."""
    if setting == "auto":
        return 20.0 if unit_length else 1.0
    return float(setting)


def pairwise_margin(scores: Tensor, margin: float) -> Tensor:
    """Mean over (positive, negative) of max(0, margin − s⁺ + s⁻) (BERT-DMN eq. 4).

    Args:
        scores: [g, 1 + k], a positive and its negatives in each row; −inf: fewer than k negatives.
        margin: required difference between the scores of a positive and a negative.
    """
    negatives = scores[:, 1:]
    return (margin - scores[:, :1] + negatives).relu().sum() / negatives.isfinite().sum()


def pairwise_softmax(scores: Tensor) -> Tensor:
    """Mean over groups of −log exp s⁺ / (exp s⁺ + Σ exp s⁻) (ColBERT); `scores` as for `pairwise_margin`."""
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64, device=scores.device))


def listwise_distillation(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean over lists of KL(softmax(teacher / T) ‖ softmax(scores / T)) (RocketQAv2; T: Hinton et al., 2015).

    Args:
        scores: [g, l], the student's scores of a query's passages in each row, with gradient.
        teacher: [g, l], the teacher's scores of the same passages; −inf: the list is shorter. A row without any
            passage is no list.
        temperature: T. A larger T makes both distributions flatter.
    """
    missing, least = teacher.isneginf(), torch.finfo(torch.float32).min  # not −inf, whose differences are NaN
    student, wanted = (
        (values.float() / temperature).masked_fill(missing, least).log_softmax(dim=1) for values in (scores, teacher)
    )
    lists = (~missing).any(dim=1).sum().clamp(min=1)
    return kl_div(student, wanted, reduction="sum", log_target=True) / lists


def list_scores(queries: Tensor, passages: Tensor, listed: Tensor, scale: float, *, cached: bool = False) -> Tensor:
    """Scores [b, l] of each of `queries` [b, d] with its passages, rows `listed` [b, l] of `passages` [c, d].

    A score is scale · dot product. `cached`: computed in parts, see `embed`.
    """

    def scores(part: Tensor, start: int) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):  # as in `contrastive_loss`
            list_vectors = embedding(listed[start : start + len(part)], passages.float())
            return scale * torch.einsum("bd,bld->bl", part.float(), list_vectors)

    return by_rows(scores, queries, max(1, SCORED // listed.shape[1] // queries.shape[1]), cached=cached)
