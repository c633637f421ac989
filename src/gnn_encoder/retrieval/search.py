"""Ask a bundle: one pass of E_Q over the question, one search of the index."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gnn_encoder.artifacts import Bundle
from gnn_encoder.errors import UserError, printable
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.index_file import load_index, search_index
from gnn_encoder.retrieval.question import question_encoder

if TYPE_CHECKING:
    from gnn_encoder.models.dual_encoder import TextEncoder


@dataclass(frozen=True)
class Hit:
    """A found passage; `rank` counts from 1, `score` is E_Q(q)ᵀ h'_p (GNN-encoder eq. 11)."""

    rank: int
    score: float
    passage_id: str
    title: str
    text: str

    def heading(self) -> str:
        """The line above its text on a terminal."""
        title = f"{printable(self.title)}  " if self.title else ""
        return f"{self.rank:>3}  {self.score:.4f}  {title}[{printable(self.passage_id)}]"


class Searcher:
    """A bundle opened for many questions: model and index are loaded once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._vector_of = question_encoder(bundle.query_encoder_path)
        self.index = load_index(bundle.index_path, bundle.vectors.shape)
        if bundle.vectors.shape != (len(bundle.passages), self._vector_of.width):
            raise UserError(f"{bundle.path}: its vectors and its query encoder do not fit: run encode_corpus again")

    @cached_property
    def encoder(self) -> "TextEncoder":
        """E_Q for many questions together."""
        from gnn_encoder.models.dual_encoder import TextEncoder

        return TextEncoder.load(self.bundle.query_encoder_path)

    def search(self, question: str, k: int = 10) -> list[Hit]:
        """The best `k` passages for a question (fewer if the corpus is smaller), best first. Errors as of `find`."""
        _, scores, rows = self.find(question, k)
        return self.hits(scores, rows)

    def hits(self, scores: np.ndarray, rows: np.ndarray) -> list[Hit]:
        """Hits of scores [h] and passage rows [h], in that order, with their texts."""
        passages = self.bundle.passages.take(rows)
        columns = zip(scores.tolist(), passages.ids, passages.titles, passages.texts, strict=True)
        return [Hit(rank, *column) for rank, column in enumerate(columns, start=1)]

    def find(self, question: str, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E_Q of a question [d], and the scores [h] and rows [h] of its best h ≤ k passages, best first.

        Raises:
            UserError: an empty question, or k below 1.
        """
        if not question.strip():
            raise UserError("the question is empty: give some words to search for")
        if k < 1:
            raise UserError(f"{k} passages were asked for: ask for at least 1")
        vectors = self._vector_of(question)
        scores, rows = search_index(self.index, vectors, k)
        found = rows[0] >= 0
        return vectors[0], scores[0][found], rows[0][found]


def search_bundle(bundle: Bundle, question: str, k: int = 10) -> list[Hit]:
    """`Searcher.search` for a single question."""
    return Searcher(bundle).search(question, k)
