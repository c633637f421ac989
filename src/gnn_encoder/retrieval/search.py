"""Searches a bundle for a query: by vectors, or by vectors and words (BM25) together."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Report, Run
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.errors import UserError, printable
from gnn_encoder.inference.numpy_bert import Bert
from gnn_encoder.retrieval.fusion import UNTUNED, fuse
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.settings.labels import LABEL_SYSTEMS

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
        if not question.strip():
            raise UserError("the question is empty: give some words to search for")
        if k < 1:
            raise UserError(f"{k} passages were asked for: ask for at least 1")
        if self._bert:
            vectors = self._bert(question)
        else:
            from gnn_encoder.inference.encoding import encode_question

            vectors = encode_question(self.encoder, question)
        scores, rows = self.index.search(vectors, k)
        hits = rows[0] >= 0
        return vectors[0], scores[0][hits], rows[0][hits]


def fused_run(searcher: Searcher, question: str, k: int, weight: float | None = None) -> tuple[Run, str]:
    """The best `k` passages by weight · dense score + (1 - weight) · BM25 score, both min-max normalised.

    The default weight was tuned on dev by the evaluation beside the bundle.

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
    dense = searcher.run(question, max(k, DEPTH))
    scores, rows = Bm25.load(bundle.bm25_path).search([question], max(k, DEPTH))
    fused, _ = fuse(Run.from_hits(ASKED, rows, scores), dense, weight, k)
    return fused, f"vectors {weight:.2f} + BM25 {1 - weight:.2f}, {origin}"


def _tuned_weight(bundle: Bundle) -> tuple[float, str]:
    """The weight in the same model's report beside the bundle, as in ROOT/latest, and the weight's origin in words."""
    try:
        report = Report.read(bundle.path.absolute().parent / "report")
    except UserError:
        return UNTUNED, NOT_TUNED
    metrics, made = report.metrics, bundle.manifest
    system, model, reported = metrics["candidate"], "gnn_encoder", report.manifest.inputs
    if bundle.labels_path:
        system, model = LABEL_SYSTEMS.get(made.settings.get("kind", ""), ""), "dual_encoder"
        reported = read_history(report.path).get(f"{made.step}: {system}", Record()).inputs
    wanted = {"method": CONVEX, "dense": system}
    facts: dict[str, Any] = next((each for each in metrics["fusions"].values() if wanted.items() <= each.items()), {})
    if not facts.get("tuned_on") or model not in made.inputs or reported.get(model) != made.inputs[model]:
        return UNTUNED, NOT_TUNED
    return float(facts["weight"]), f"tuned on {facts['tuned_on']}"
