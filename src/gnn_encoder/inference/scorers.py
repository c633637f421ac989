"""Scorers of query–passage pairs: one face, a kind for each network, and one loader for them all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.tracking.progress import Progress

LAYOUT = "scorer.json"
"""File of a scorer's folder that names its kind."""
PAIRS = 100_000
"""Pairs whose [CLS] vectors, which a score alone does not need, are in memory at a time."""


class Contribution(NamedTuple):
    """A part of a score, for an explanation: what it comes from, in words, and how much it is."""

    source: str
    amount: float


class Scorer(Protocol):
    """Gives each pair of a query and a passage a score: the higher, the more relevant."""

    def score(
        self,
        data: Dataset,
        query: np.ndarray,
        passage: np.ndarray,
        *,
        precision: str,
        tokens_per_batch: int,
        progress: Progress | None,
    ) -> np.ndarray:
        """Scores fp32 [r] of the pairs of dataset rows `query` [r] and `passage` [r]."""

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities [r] of relevance, of scores [r]."""

    def explain(self, query: str, passage: str) -> list[Contribution]:
        """What a pair's score is made of, largest first; empty where the scorer cannot say."""


class CrossEncoderScorer:
    """A cross-encoder (GNN-encoder 3.4); its scores are logits."""

    def __init__(self, model: CrossEncoder) -> None:
        self.model = model

    def score(
        self,
        data: Dataset,
        query: np.ndarray,
        passage: np.ndarray,
        *,
        precision: str = "auto",
        tokens_per_batch: int = 4096,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """See `Scorer`. Only the passages that are asked for are tokenized."""
        model = self.model
        asked, first = np.unique(query, return_inverse=True)
        rows, second = np.unique(passage, return_inverse=True)
        texts, places = tokens_at(model.tokenizer, data.passages, rows, model.max_length)
        questions = Tokens.of(model.tokenizer, data.query_texts(asked), model.max_length)
        pairs, second = PairTokens(model.tokenizer, questions, texts, model.max_length), places[second]
        scores = np.empty(len(query), dtype=np.float32)
        for start in range(0, len(query), PAIRS):
            part = slice(start, start + PAIRS)
            unused = np.empty((len(query[part]), model.width), dtype=np.float16)
            score_pairs(
                model, pairs, first[part], second[part], scores[part], unused,
                precision=precision, tokens_per_batch=tokens_per_batch, progress=progress,
            )  # fmt: skip
        return scores

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """The logistic function of each logit, float64."""
        probabilities: np.ndarray = 1.0 / (1.0 + np.exp(-scores.astype(np.float64)))
        return probabilities

    def explain(self, query: str, passage: str) -> list[Contribution]:
        """Nothing: a cross-encoder does not say what its score is made of."""
        return []


KINDS: dict[str, Callable[[Path], Scorer]] = {
    "cross_encoder": lambda folder: CrossEncoderScorer(CrossEncoder.load(folder)),
}
"""Kind → what loads a scorer of it from its folder. A new kind is an entry here."""


def load_scorer(folder: Path) -> Scorer:
    """The scorer in a folder, of the kind that its layout file names; a cross-encoder where there is no such file.

    Raises:
        UserError: the kind is not known.
    """
    file = folder / LAYOUT
    kind = json.loads(file.read_text("utf-8"))["kind"] if file.is_file() else "cross_encoder"
    if kind not in KINDS:
        raise UserError(f"{file}: unknown kind of scorer {kind!r}: known are {', '.join(sorted(KINDS))}")
    return KINDS[kind](folder)
