"""When a first hit is shown: conformal risk control (Angelopoulos, Bates, Fisch, Lei and Schuster, ICLR 2024).

The risk is the probability that a question is answered wrongly: that its first hit scores above a threshold λ and has
no positive label. It is a share of all questions, not of the answered ones. The loss of a query, 1[score > λ and
wrong], is at most 1, does not increase with λ, and is continuous from the right, which the theorem needs; the share
among the answered queries is no such loss. For n dev queries that are exchangeable with a later question, the lowest λ
with (n R̂(λ) + 1) / (n + 1) ≤ α has an expected risk of at most α and, if no two scores are equal, of at least
α − 2 / (n + 1), where more than α of all first hits are wrong (Theorems 1 and 2). With equal scores it may be lower.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gnn_encoder.artifacts.bundle import Bundle
from gnn_encoder.artifacts.calibration import FirstHits
from gnn_encoder.errors import UserError

FEWEST = 100
"""Dev queries of a calibration: with fewer, the risk may be two points below the stated one, and varies by more."""


class Answered(NamedTuple):
    """What a threshold does to some queries, as shares."""

    coverage: float
    """Of all queries: answered."""
    wrong: float
    """Of all queries: answered wrongly, the risk."""
    wrong_of_answered: float
    """Of the answered queries; 0 without any."""


def threshold(hits: FirstHits, risk: float) -> float:
    """Returns the score above which a first hit is shown, so that the risk is at most `risk`, 0 to 1.

    Minus infinity: all are shown. Infinity: none is, as n + 1 dev queries are fewer than 1 / risk.
    """
    allowed = math.floor(risk * (len(hits.score) + 1) - 1 + 1e-9)
    if allowed < 0:
        return math.inf
    wrong = np.sort(hits.score[hits.wrong])[::-1]
    return float(wrong[allowed]) if allowed < len(wrong) else -math.inf


def threshold_of(
    bundle: Bundle, confidence: float, arguments: Sequence[object] = (), is_filtered: bool = False
) -> float:
    """Returns the `threshold` of a bundle for a risk of 1 - `confidence`.

    Args:
        arguments: those of the search that change the ranking; each must be None.
        is_filtered: the search has a filter. The threshold is one of searches without, so no risk is promised then.

    Raises:
        UserError: a confidence outside 0 to 1 or too high for the dev queries, another ranking than the default one, a
            bundle with fewer than `FEWEST` dev queries, or a filter where the best hit that fits gets the highest score
            whatever it is, as its score is scaled among these hits.
    """
    if not 0 <= confidence <= 1:
        raise UserError(f"a confidence of {confidence} was asked for: give a number from 0 to 1")
    if any(argument is not None for argument in arguments):
        raise UserError("the confidence is of the default ranking: leave out fuse, weight, rerank and depth")
    if is_filtered and bundle.scales_scores:
        raise UserError(
            "min_confidence: this bundle scales scores among the passages that may be hits, so with a filter or rights "
            "they say nothing: leave one of them out"
        )
    hits = bundle.calibration.hits if bundle.calibration else None
    if hits is None or len(hits.score) < FEWEST:
        raise UserError(
            f"{bundle.path} is not calibrated: min_confidence needs the recommended bundle of a run with {FEWEST} dev "
            f"queries, and this has {0 if hits is None else len(hits.score)}"
        )
    if (above := threshold(hits, 1 - confidence)) == math.inf:
        highest = math.floor(1000 * (1 - 1 / (len(hits.score) + 1))) / 1000
        raise UserError(f"{len(hits.score)} dev queries show a confidence of at most {highest}: ask for less")
    return above


def answered(hits: FirstHits, above: float) -> Answered:
    """Returns what a threshold does to queries with these first hits, one at least."""
    shown = hits.score > above
    wrong = float((shown & hits.wrong).mean())
    return Answered(float(shown.mean()), wrong, wrong / max(float(shown.mean()), 1e-12))


def curve(hits: FirstHits) -> list[tuple[float, float]]:
    """Returns (share answered, share answered wrongly) of all queries, for 50 thresholds from the highest score on.

    Queries without a hit, whose score is -inf, are never answered.
    """
    n, order = len(hits.score), np.argsort(-hits.score, kind="stable")[: int((hits.score > -np.inf).sum())]
    wrong = np.cumsum(hits.wrong[order]) / n
    last = np.flatnonzero(np.diff(hits.score[order], append=-np.inf) != 0)  # equal scores are shown together
    last = last[np.unique(np.linspace(0, len(last) - 1, min(50, len(last))).astype(int))]
    return [(round((i + 1) / n, 4), round(float(wrong[i]), 4)) for i in last.tolist()]
