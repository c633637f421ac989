"""Scorers of query–passage pairs: one interface, a kind for each network, and one loader for all kinds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, Unpack

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import ReadOptions
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.models.cross_encoder import CrossEncoder

LAYOUT = "scorer.json"
"""The file of a scorer's folder that names its kind."""


class Contribution(NamedTuple):
    """A part of a score, for an explanation: the source in words, and the amount."""

    source: str
    amount: float


class Scorer(Protocol):
    """Scores query–passage pairs; a higher score means more relevant."""

    def score(
        self, data: Dataset, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]
    ) -> np.ndarray:
        """Scores fp32 [r] of the pairs of dataset rows `query` [r] and `passage` [r]."""

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities [r] of relevance from scores [r]."""

    def explain(self, query: str, passage: str) -> list[Contribution]:
        """The parts of a pair's score, largest first; empty if the scorer has no explanation."""


class CrossEncoderScorer:
    """A cross-encoder (GNN-encoder 3.4); the scores are logits."""

    def __init__(self, model: CrossEncoder) -> None:
        self.model = model

    def score(
        self, data: Dataset, query: np.ndarray, passage: np.ndarray, **options: Unpack[ReadOptions]
    ) -> np.ndarray:
        """See `Scorer`. Only the passages of the pairs are tokenized."""
        model = self.model
        asked, first = np.unique(query, return_inverse=True)
        rows, second = np.unique(passage, return_inverse=True)
        texts, places = tokens_at(model.tokenizer, data.passages, rows, model.max_length)
        questions = Tokens.of(model.tokenizer, data.query_texts(asked), model.max_length)
        pairs, second = PairTokens(model.tokenizer, questions, texts, model.max_length), places[second]
        scores = np.empty(len(query), dtype=np.float32)
        score_pairs(model, pairs, first, second, scores, None, **options)
        return scores

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The logistic function of each logit, float64."""
        probabilities: np.ndarray = 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))
        return probabilities

    def explain(self, query: str, passage: str) -> list[Contribution]:
        """Empty: a cross-encoder's score has no parts."""
        return []


KINDS: dict[str, Callable[[Path], Scorer]] = {
    "cross_encoder": lambda folder: CrossEncoderScorer(CrossEncoder.load(folder)),
}
"""Kind → function that loads a scorer from a folder. A new kind is a new entry."""


def load_scorer(folder: Path) -> Scorer:
    """Loads the scorer in a folder. The layout file names the kind; without a layout file it is a cross-encoder."""
    file = folder / LAYOUT
    kind = json.loads(file.read_text("utf-8"))["kind"] if file.is_file() else "cross_encoder"
    if kind not in KINDS:
        raise UserError(f"{file}: unknown kind of scorer {kind!r}: known are {', '.join(sorted(KINDS))}")
    return KINDS[kind](folder)
