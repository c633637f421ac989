"""Questions to a bundle beside the dev queries of its run: are they still the questions that it was chosen for?"""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.drift import ONE_IN, capital, energy_distance, p_values
from gnn_encoder.evaluation.shift import nearest
from gnn_encoder.serving.retriever import Retriever

DEV = 300
"""Dev queries that questions are compared with, at most: each is encoded once."""
AT_ONCE = 512
"""Questions that are searched at a time: a sum with BM25 has 2,000 hits of each in memory."""
SEARCHES_WAIT = 64
"""Questions that are encoded at a time: a server's searches wait meanwhile."""
FEWEST = 20
RARE = 0.05
"""A question is far from the training queries, or without a clear first hit, if only this share of dev queries is."""


class Alarm(NamedTuple):
    """The moment at which a log differed from the dev queries by more than chance explains."""

    question: int
    """From 1."""
    figure: str
    """What differs, in words."""


class Drift(NamedTuple):
    """Distinct questions of a log beside dev queries; None: the bundle ranks by words alone, so has no vectors."""

    questions: int
    unclear: float
    """Share whose first hit scores below that of 95 % of the dev queries."""
    far: float | None
    """Share that is farther from each training query than 95 % of the dev queries are (cosines, of a sample)."""
    distance: float | None
    """Energy distance of the vectors, at unit length, from those of the training queries."""
    dev_distance: float | None
    """That of the dev queries."""
    alarm: Alarm | None = None

    def shares(self) -> dict[str, float]:
        """Returns the figures by name, without missing ones."""
        figures = {"far": self.far, "unclear": self.unclear, "distance": self.distance}
        return {name: value for name, value in figures.items() if value is not None}

    def __str__(self) -> str:
        words = [f"{self.unclear:.0%} without a clear first hit (dev queries: {RARE:.0%})"]
        if self.far is not None:
            words.append(f"{self.far:.0%} near no training query (dev queries: {RARE:.0%})")
            words.append(f"energy distance {self.distance:.3f} from them (dev queries: {self.dev_distance:.3f})")
        return "; ".join(words)


class Watched:
    """A bundle with the dev and training queries that it keeps (`Bundle.calibration`)."""

    def __init__(self, retriever: Retriever) -> None:
        """Encodes nothing yet; raises UserError for a bundle without a calibration."""
        calibration = retriever.bundle.calibration
        if calibration is None or len(calibration.queries) < FEWEST:
            raise UserError(
                f"{retriever.bundle.path} has no {FEWEST} dev queries to compare questions with: name the recommended "
                "bundle of a run whose data have them"
            )
        self.retriever, self._calibration = retriever, calibration
        self.digest = retriever.bundle.manifest.digest

    def scores(self, questions: Sequence[str], known: Sequence[float | None]) -> np.ndarray:
        """Returns the first hits' scores fp64 [n], as the bundle ranks by default; minus infinity: no hit.

        known: scores that a log has; None: the question is asked again, as its hit was hidden or ranked otherwise.
        """
        scores = np.array([np.nan if score is None else score for score in known], np.float64)
        unknown = np.flatnonzero(np.isnan(scores))
        for start in range(0, len(unknown), AT_ONCE):
            some = unknown[start : start + AT_ONCE]
            hits = self.retriever.search([questions[i] for i in some.tolist()], 1)
            scores[some] = [one[0].score if one else -np.inf for one in hits]
        return scores

    def vectors(self, questions: Sequence[str]) -> np.ndarray:
        """Returns vectors of unit length fp32 [n, d]."""
        parts = []
        for start in range(0, len(questions), SEARCHES_WAIT):
            parts.append(self.retriever.encode_queries(list(questions[start : start + SEARCHES_WAIT])))
            time.sleep(0.001)  # a thread that takes a lock again at once lets nobody else have it
        return at_unit_length(np.concatenate(parts))

    def drift(self, scores: np.ndarray, vectors: np.ndarray | None) -> Drift:
        """Compares distinct questions, in the order of the log, by their `scores` and `vectors`.

        The log alarms if the capital of a bet on either number reaches `ONE_IN` · 2 (`evaluation.drift`).
        """
        dev, figures = (
            self._calibration.hits.score,
            {"the first hits' scores": (self._calibration.hits.score, scores)},
        )
        unclear = float((scores < np.quantile(dev, RARE, method="lower")).mean())
        far = distance = dev_distance = None
        if vectors is not None and self._vectors:
            training, dev_vectors, dev_near = self._vectors
            near = nearest(training, vectors)
            figures["the similarities to training queries"] = (dev_near, near)
            far = float((near < np.quantile(dev_near, RARE, method="lower")).mean())
            distance, dev_distance = (energy_distance(sample, training) for sample in (vectors, dev_vectors))
        alarms = []
        for name, (before, numbers) in figures.items():
            reached = np.flatnonzero(capital(p_values(before, numbers)) >= ONE_IN * len(figures))
            alarms += [Alarm(int(reached[0]) + 1, name)] if len(reached) else []
        return Drift(len(scores), unclear, far, distance, dev_distance, min(alarms, default=None))

    @cached_property
    def has_vectors(self) -> bool:
        """Whether the bundle has vectors and training queries."""
        return self.retriever.bundle.has_vectors and bool(self._calibration.training)

    @cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Vectors of the training queries, and of dev queries with their similarity to the nearest training query."""
        if not self.has_vectors:
            return None
        queries = self._calibration.queries
        sample = np.sort(np.random.default_rng(0).permutation(len(queries))[:DEV])
        training, dev = (self.vectors(t) for t in (self._calibration.training, [queries[i] for i in sample]))
        return training, dev, nearest(training, dev)


def distinct(questions: Sequence[str]) -> list[int]:
    """Returns the place of each question that is not equal to an earlier one when `folded`."""
    first: dict[str, int] = {}
    for position, question in enumerate(questions):
        first.setdefault(folded(question), position)
    return list(first.values())
