"""Searches a bundle for a query: by vectors, or by vectors and words (BM25) together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Report, Run
from gnn_encoder.artifacts.bundle import run_folder
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.errors import UserError, printable
from gnn_encoder.inference.numpy_bert import Bert
from gnn_encoder.retrieval.fusion import UNTUNED, fuse
from gnn_encoder.retrieval.passage_index import PassageIndex

if TYPE_CHECKING:
    from gnn_encoder.models.dual_encoder import TextEncoder

NOT_TUNED = "not tuned: beside the bundle there is no report of its model with dev queries"
DEPTH = 1000
"""Hits of each system to fuse: the default of `evaluate.depth`, because normalised scores depend on the lowest hit."""


ASKED = np.zeros(1, np.int32)
"""The query of a run for one question."""


@dataclass(frozen=True)
class Hit:
    """A passage for a query; `rank` from 1; `score` E_Q(q)ᵀ h'_p (GNN-encoder eq. 11), or as the bundle,
    a fusion or a re-ranker has it."""

    rank: int
    score: float
    passage_id: str
    title: str
    text: str

    def heading(self) -> str:
        """The line above the text on a terminal."""
        title = f"{printable(self.title)}  " if self.title else ""
        return f"{self.rank:>3}  {self.score:.4f}  {title}[{printable(self.passage_id)}]"


class Searcher:
    """A bundle opened for many queries: model and index are loaded once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._bert = Bert.read(bundle.query_encoder_path)
        self.index = PassageIndex.read(bundle)
        if bundle.vectors.shape[1] != (self._bert or self.encoder).width:
            made_by = bundle.manifest.step or "encode_corpus"
            raise UserError(f"{bundle.path}: its vectors and its query encoder do not fit: run {made_by} again")

    @cached_property
    def encoder(self) -> "TextEncoder":
        """E_Q in torch, for many queries together or if E_Q is not a BERT."""
        from gnn_encoder.models.dual_encoder import TextEncoder

        return TextEncoder.load(self.bundle.query_encoder_path)

    def search(self, question: str, k: int = 10) -> list[Hit]:
        """The best `k` passages for a query, best first; fewer if the corpus is smaller. Errors as `find`."""
        run = self.run(question, k)
        return self.hits(run.score, run.passage)

    def run(self, question: str, k: int) -> Run:
        """As `search`, as a run of query 0."""
        _, scores, rows = self.find(question, k)
        return Run.from_hits(ASKED, rows[None], scores[None])

    def hits(self, scores: np.ndarray, rows: np.ndarray) -> list[Hit]:
        """Hits with texts for scores [h] and passage rows [h], in the given order."""
        passages = self.bundle.passages.take(rows)
        columns = zip(scores.tolist(), passages.ids, passages.titles, passages.texts, strict=True)
        return [Hit(rank, *column) for rank, column in enumerate(columns, start=1)]

    def find(self, question: str, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E_Q of a query [d], and the scores [h] and rows [h] of the best h ≤ k passages, best first.

        Raises:
            UserError: an empty query, or k below 1.
        """
        self.check(question, k)
        if self._bert:
            vectors = self._bert(question)
        else:
            from gnn_encoder.inference.encoding import encode_question

            vectors = encode_question(self.encoder, question)
        scores, rows = self.index.search(vectors, k)
        hits = rows[0] >= 0
        return vectors[0], scores[0][hits], rows[0][hits]

    @staticmethod
    def check(question: str, k: int) -> None:
        """Raises UserError for an empty query, and for k below 1."""
        if not question.strip():
            raise UserError("the question is empty: give some words to search for")
        if k < 1:
            raise UserError(f"{k} passages were asked for: ask for at least 1")


def fused_run(searcher: Searcher, question: str, k: int, weight: float | None = None) -> tuple[Run, str]:
    """The best `k` passages by weight · dense score + (1 - weight) · BM25 score, both min-max normalised.

    The default weight is the one with which the run chose the bundle, or the one that the evaluation beside the bundle
    tuned on dev. With weight 0 no query is encoded.

    Returns:
        The hits as a run of query 0, and the weights in words.

    Raises:
        UserError: as `Searcher.find`, or the bundle has no BM25 index.
    """
    bundle = searcher.bundle
    if bundle.bm25_path is None:
        raise UserError(f"{bundle.path} has no BM25 index to fuse with: run encode_corpus with bm25: true")
    from gnn_encoder.retrieval.bm25 import Bm25

    origin = "as given"
    if weight is None:
        weight, origin = _tuned_weight(bundle)
    scores, rows = Bm25.load(bundle.bm25_path).search([question], max(k, DEPTH))
    lexical = Run.from_hits(ASKED, rows, scores)
    if weight == 0:
        searcher.check(question, k)
        return lexical.of(ASKED, k), "BM25 alone"
    fused, _ = fuse(lexical, searcher.run(question, max(k, DEPTH)), weight, k)
    return fused, f"vectors {weight:.2f} + BM25 {1 - weight:.2f}, {origin}"


def served_run(
    bundle: Bundle, index: PassageIndex, queries: np.ndarray, questions: Sequence[str], vectors: np.ndarray, k: int
) -> Run:
    """The best `k` passages of many queries, as `gnn-encoder search` ranks them by default (`Bundle.serving`).

    Args:
        queries: row numbers [n] of the queries, for the run. questions: their texts [n]. vectors: their vectors [n, d].

    Raises:
        UserError: the bundle is served with BM25, but has no BM25 index.
    """
    weight, depth = bundle.serving.weight, max(k, DEPTH)
    if weight is None:
        scores, rows = index.search(vectors, k)
        return Run.from_hits(queries, rows, scores)
    from gnn_encoder.retrieval.bm25 import Bm25

    if bundle.bm25_path is None:
        raise UserError(f"{bundle.path} has no BM25 index, with which it is served: run gnn-encoder run again")
    scores, rows = Bm25.load(bundle.bm25_path).search(questions, depth)
    lexical = Run.from_hits(queries, rows, scores)
    if not weight:
        return lexical.of(queries, k)
    scores, rows = index.search(vectors, depth)
    return fuse(lexical, Run.from_hits(queries, rows, scores), weight, k)[0]


def _tuned_weight(bundle: Bundle) -> tuple[float, str]:
    """The weight with which a run chose the bundle, or the weight in the report beside the bundle, as in ROOT/latest,
    if the report has a system of that name and model; and the weight's origin in words."""
    if bundle.serving.weight:
        return bundle.serving.weight, f"tuned on {bundle.serving.tuned_on}" if bundle.serving.tuned_on else NOT_TUNED
    try:
        report = Report.read(run_folder(bundle.path) / "report")
    except UserError:
        return UNTUNED, NOT_TUNED
    inputs = bundle.manifest.inputs
    model = inputs.get("gnn_encoder") or inputs.get("dual_encoder")
    known = {digest for record in read_history(report.path).values() for digest in record.inputs.values()}
    wanted = {"method": CONVEX, "dense": bundle.system}
    fusions = report.metrics["fusions"].values()
    facts: dict[str, Any] = next((each for each in fusions if wanted.items() <= each.items()), {})
    if not facts.get("tuned_on") or model not in known:
        return UNTUNED, NOT_TUNED
    return float(facts["weight"]), f"tuned on {facts['tuned_on']}"
