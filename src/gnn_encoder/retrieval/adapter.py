"""The query adapter: a linear map of the query's vector in closed form, learnt from labels. The index stays as it is.

    W = argmin Σ ω ‖Wᵀq − b‖² + λ ‖W − I‖²        over the labelled pairs (q, p); b = p + γ (p̄ − n̄)
      = I + (AᵀΩA + λI)⁻¹ AᵀΩ (B − A)              rows of A: the pairs' queries q, of B: their targets b

p̄ is the mean of the query's passages, n̄ that of its hard negatives: its first hits that are none of them. The pull
γ (p̄ − n̄) is the gradient of Σ γ qᵀW (p̄ − n̄), the margin between them, so the solution stays in closed form.

This is ridge regression towards the identity. λ is a multiple c of trace(AᵀΩA) / d, the mean eigenvalue, so that one
grid of c fits every number of labels and every length of vectors. c is chosen by leaving out, in closed form: the
adapter without a group of rows maps these rows to y − (I − H)⁻¹ r, with r the rows' residuals and H their block of the
hat matrix. A group has all labels of a query and of its twins, so the choice never sees a query's own answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts.arrays import Rows

BLOCK = 65_536
"""Pairs in memory at a time."""


@dataclass(frozen=True)
class Moments:
    """What the adapter needs of the pairs: AᵀΩA [d, d] and AᵀΩ(B − A) [d, d], both fp64."""

    square: np.ndarray
    cross: np.ndarray

    @classmethod
    def of(cls, queries: np.ndarray, passages: np.ndarray, weights: np.ndarray | None = None) -> "Moments":
        """Sums over pairs: queries [e, d] and passages [e, d], with weights [e]."""
        every = np.arange(len(queries))
        return cls.of_pairs(queries, every, passages, every, weights)

    @classmethod
    def of_pairs(
        cls,
        queries: Rows,
        query: np.ndarray,
        passages: Rows,
        passage: np.ndarray,
        weights: np.ndarray | None = None,
        pulls: Rows | None = None,
    ) -> "Moments":
        """Sums over the pairs of rows `query` [e] and `passage` [e] of arrays that may lie on the disk.

        pulls: γ (p̄ − n̄) of each query, like `queries`; None: 0.
        """
        width = queries.shape[1]
        square, cross = np.zeros((width, width)), np.zeros((width, width))
        for start in range(0, len(query), BLOCK):
            some = slice(start, start + BLOCK)
            a, b = np.asarray(queries[query[some]], np.float64), np.asarray(passages[passage[some]], np.float64)
            b = b if pulls is None else b + pulls[query[some]]
            weighted = a if weights is None else a * weights[some, None]
            square += weighted.T @ a
            cross += weighted.T @ (b - a)
        return cls(square, cross)

    def __sub__(self, other: "Moments") -> "Moments":
        """The moments without the pairs of `other`."""
        return Moments(self.square - other.square, self.cross - other.cross)

    def ridge(self, strength: float) -> float:
        """Returns λ for c = `strength`."""
        return strength * float(np.trace(self.square)) / len(self.square)

    def adapter(self, strength: float) -> np.ndarray:
        """Returns W fp32 [d, d]; a query q [d] becomes q @ W. Without pairs, or with an infinite c, the identity."""
        identity = np.eye(len(self.square))
        ridge = self.ridge(strength)
        if not np.isfinite(strength) or not ridge:
            return identity.astype(np.float32)
        return np.asarray(identity + np.linalg.solve(self.square + ridge * identity, self.cross), np.float32)


def left_out(
    queries: np.ndarray,
    passages: np.ndarray,
    group: np.ndarray,
    strength: float,
    weights: np.ndarray | None = None,
    moments: Moments | None = None,
) -> np.ndarray:
    """Returns the query of each pair mapped by the adapter without the pairs of its group, fp32 [e, d].

    Args:
        queries: of the pairs [e, d]. passages: their targets [e, d]. group: int [e].
        strength: c; infinite: the queries as they are.
        moments: of all pairs, if these are the pairs of some groups alone.
    """
    a = np.asarray(queries, np.float64)
    if not np.isfinite(strength):
        return a.astype(np.float32)
    omega = np.ones(len(a)) if weights is None else np.asarray(weights, np.float64)
    moments = moments or Moments.of(queries, passages, weights)
    inverse = np.linalg.inv(moments.square + moments.ridge(strength) * np.eye(a.shape[1]))
    y = np.asarray(passages, np.float64) - a
    residual, leverage = y - a @ (inverse @ moments.cross), a @ inverse
    predicted = np.empty_like(a)
    for rows in _groups(group):
        if len(rows) > a.shape[1]:  # its block is larger than the moments
            rest = moments - Moments.of(queries[rows], passages[rows], omega[rows])
            ridge = moments.ridge(strength) * np.eye(a.shape[1])
            predicted[rows] = a[rows] @ np.linalg.solve(rest.square + ridge, rest.cross)
            continue
        hat = leverage[rows] @ a[rows].T * omega[rows]
        predicted[rows] = y[rows] - np.linalg.solve(np.eye(len(rows)) - hat, residual[rows])
    return np.asarray(a + predicted, np.float32)


def _groups(group: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the rows of each group."""
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
