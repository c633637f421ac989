"""Searches a bundle for a query: by vectors, or by vectors and words (BM25) together."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Report, Run
from gnn_encoder.artifacts.finished_run import run_folder
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.errors import UserError, printable
from gnn_encoder.inference.numpy_bert import Bert
from gnn_encoder.models.backbone import ADDRESS
from gnn_encoder.retrieval.filters import Filters, Selection
from gnn_encoder.retrieval.fusion import DEPTH, UNTUNED, fuse
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.retrieval.passage_index import PassageIndex

if TYPE_CHECKING:
    from gnn_encoder.models.dual_encoder import TextEncoder
    from gnn_encoder.retrieval.bm25 import Bm25

NOT_TUNED = "not tuned: beside the bundle there is no report of its model with dev queries"

ASKED = np.zeros(1, np.int32)
"""The query of a run for one question."""
NO_VECTORS = np.empty((0, 0), np.float32)
"""In place of the vectors that a ranking by BM25 alone does not look at."""


@dataclass(frozen=True)
class Hit:
    """A passage for a query."""

    rank: int
    """From 1."""
    score: float
    """E_Q(q)ᵀ h'_p (GNN-encoder eq. 11), or as the bundle, a fusion or a re-ranker has it."""
    passage_id: str
    """The passage's id in the data."""
    title: str
    """Its title, which may be empty."""
    text: str
    """Its text, without the title."""

    def heading(self) -> str:
        """The line above the text on a terminal."""
        title = f"{printable(self.title)}  " if self.title else ""
        return f"{self.rank:>3}  {self.score:.4f}  {title}[{printable(self.passage_id)}]"

    def body(self) -> list[str]:
        """The lines below the heading on a terminal: one, or none if the passage is a title without text."""
        text = printable(self.text)
        return [f"     {text}"] if text else []


class Searcher:
    """A bundle opened for many queries: model and index are loaded once."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.reading = RLock()
        """Held while texts are encoded: tokenizers keep the last call's padding as their state."""
        self._bert = Bert.read(bundle.query_encoder_path) if bundle.has_vectors else None
        self._at_an_address = (bundle.query_encoder_path / ADDRESS).is_file()
        self.index = PassageIndex.read(bundle)
        if bundle.has_vectors and bundle.stored_vectors.shape[1] != (self._bert or self.encoder).width:
            made_by = bundle.manifest.step or "encode_corpus"
            raise UserError(f"{bundle.path}: its vectors and its query encoder do not fit: run {made_by} again")

    @cached_property
    def encoder(self) -> "TextEncoder":
        """E_Q in torch, for many queries together or if E_Q is not a BERT.

        Raises UserError for a bundle that ranks by words alone.
        """
        if not self.bundle.has_vectors:
            raise UserError(f"{self.bundle.path} ranks by words alone and has no vectors: leave out what asks for them")
        from gnn_encoder.models.dual_encoder import TextEncoder

        return TextEncoder.load(self.bundle.query_encoder_path)

    def run(self, question: str, k: int, weight: float | None = None, only: Selection | None = None) -> Run:
        """The best `k` passages, of `only`, as a run of query 0; `weight`: as in `ranking`. With 0 nothing is encoded.

        Raises:
            UserError: as `check`, or a weight and a bundle without a BM25 index.
        """
        self.check(question, k)
        k = self.at_most(k)
        bm25 = None if weight is None else bm25_of(self.bundle)
        reads_vectors = self.index.reads_vectors if weight is None else weight != 0
        vectors = self.encode(question) if reads_vectors else NO_VECTORS
        return ranking(self.index, bm25, ASKED, [question], vectors, k, weight, only=only)

    @cached_property
    def filters(self) -> Filters:
        """The passages' fields, by which a search filters."""
        return Filters(self.bundle.fields, len(self.bundle.passages))

    def hits(self, scores: np.ndarray, rows: np.ndarray) -> list[Hit]:
        """Hits with texts for scores [h] and passage rows [h], in the given order."""
        return self.all_hits([(scores, rows)])[0]

    def all_hits(self, rankings: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[list[Hit]]:
        """Hits of several questions, each with scores [h] and passage rows [h]; every passage is read once."""
        needed = np.unique(np.concatenate([rows for _, rows in rankings]))
        passages, hits = self.bundle.passages.take(needed), []
        for scores, rows in rankings:
            positions = np.searchsorted(needed, rows).tolist()
            texts = ((passages.ids[i], passages.titles[i], passages.texts[i]) for i in positions)
            pairs = zip(scores.tolist(), texts, strict=True)
            hits.append([Hit(rank, score, *text) for rank, (score, text) in enumerate(pairs, start=1)])
        return hits

    def find(self, question: str, k: int, only: Selection | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """E_Q of a query [d], and the scores [h] and rows [h] of the best h ≤ k passages in `only`, best first.

        Raises:
            UserError: as `check`.
        """
        self.check(question, k)
        vectors = self.encode(question)
        scores, rows = self.index.search(vectors, self.at_most(k), only)
        hits = rows[0] >= 0
        return vectors[0], scores[0][hits], rows[0][hits]

    def encode(self, question: str) -> np.ndarray:
        """E_Q of a query, fp32 [1, d]. Several threads may call it."""
        with self.reading if self.reads_here else nullcontext():
            if self._bert:
                return self._bert(question)
            from gnn_encoder.inference.encoding import encode_question

            return encode_question(self.encoder, question)

    @property
    def reads_here(self) -> bool:
        """Whether this process encodes, one text after the other; a service is asked by several threads."""
        return not self._at_an_address

    @staticmethod
    def check(question: str, k: int) -> None:
        """Raises UserError for a query that is empty or not Unicode, and for k below 1."""
        if is_blank(question):
            raise UserError("the question is empty: give some words to search for")
        try:
            question.encode()
        except UnicodeEncodeError:
            raise UserError("the question has half of a surrogate pair: give Unicode text") from None
        if k < 1:
            raise UserError(f"{k} passages were asked for: ask for at least 1")

    def at_most(self, k: int) -> int:
        """Returns `k`, or the number of passages if it is smaller: lists of hits take memory for `k` hits."""
        return min(k, max(1, len(self.bundle.passages)))


def served_weight(bundle: Bundle, fuse: bool | None = None, weight: float | None = None) -> tuple[float | None, str]:
    """Returns the weight of the vectors in the sum with BM25 that a search is to use, and the ranking in words.

    Args:
        fuse: whether the search was asked to fuse; None: as the run that chose the bundle recommends.
        weight: the weight that was asked for, which asks for a fusion, too.

    Returns:
        None, and no words, for the vectors alone.

    Raises:
        UserError: a weight without a fusion, or a weight that is not from 0 to 1.
    """
    serving = bundle.serving
    if fuse is False and weight is not None:
        raise UserError(f"a weight of {weight:g} and no fusion were asked for: leave one of them out")
    if (fuse or weight is not None) and bundle.fusion_path:
        raise UserError(f"{bundle.system} ranks by words, too: leave the fusion with BM25 and its weight out")
    if fuse or weight is not None:
        return fusion_weight(bundle, weight)
    if fuse is None and serving.weight is not None:
        return serving.weight, f"{serving.first_stage.system}: {_in_words(serving.weight)}, as recommended"
    return None, ""


def fusion_weight(bundle: Bundle, weight: float | None = None, run: Path | None = None) -> tuple[float, str]:
    """Returns the given weight, or the tuned one of a bundle, and the weights in words.

    The tuned one is that with which the run chose the bundle, or that which the evaluation in the folder of the `run`
    tuned on dev; None: the folder that the bundle's path is in. Raises UserError for a weight that is not from 0 to 1.
    """
    origin = "as given"
    if weight is None:
        weight, origin = _tuned_weight(bundle, run or run_folder(bundle.path))
    if not 0 <= weight <= 1:
        raise UserError(f"{weight} is no weight of the vectors: give a number from 0 to 1")
    return weight, _in_words(weight) + (f", {origin}" if weight else "")


def _in_words(weight: float) -> str:
    return f"vectors {weight:.2f} + BM25 {1 - weight:.2f}" if weight else "BM25 alone"


def bm25_of(bundle: Bundle) -> "Bm25":
    """Opens the BM25 index of a bundle; raises UserError if it has none."""
    if bundle.bm25_path is None:
        raise UserError(f"{bundle.path} has no BM25 index to fuse with: run encode_corpus with bm25: true")
    from gnn_encoder.retrieval.bm25 import Bm25

    return Bm25.load(bundle.bm25_path)


def ranking(
    index: PassageIndex,
    bm25: "Bm25 | None",
    queries: np.ndarray,
    questions: Sequence[str],
    vectors: np.ndarray,
    k: int,
    weight: float | None,
    left_out: np.ndarray | None = None,
    only: Selection | None = None,
) -> Run:
    """The best `k` passages of many queries by weight · dense + (1 - weight) · BM25 score, both min-max normalised.

    Args:
        bm25: the passages' BM25 index; None is enough for a weight of None, the vectors alone or a learned fusion.
        queries: row numbers [n] of the queries, for the run. questions: their texts [n].
        vectors: their vectors [n, d]; with weight 0, BM25 alone, nobody looks at them.
        left_out: passage row [n] that is no hit of each query, such as `Dataset.identical`; -1: none.
        only: passages that may be hits; None: all.
    """
    if weight is None and index.learned:
        return index.learned.run(queries, questions, vectors, k, left_out, only)
    if weight is None or bm25 is None:
        return run_by(partial(index.search, vectors, only=only), queries, left_out, k)
    depth = max(k, DEPTH)
    lexical = run_by(partial(bm25.search, questions, only=only), queries, left_out, depth)
    if not weight:
        return lexical.of(queries, k)
    dense = run_by(partial(index.search, vectors, only=only), queries, left_out, depth)
    return fuse(lexical, dense, weight, k)[0]


def served_run(
    bundle: Bundle,
    index: PassageIndex,
    queries: np.ndarray,
    questions: Sequence[str],
    vectors: np.ndarray,
    k: int,
    left_out: np.ndarray | None = None,
    measured: bool = False,
    only: Selection | None = None,
) -> Run:
    """The best `k` passages of many queries, as `gnn-encoder search` ranks them by default (`Bundle.serving`), but not
    re-ranked.

    Args:
        queries: row numbers [n] of the queries, for the run. questions: their texts [n]. vectors: their vectors [n, d].
        left_out, only: as in `ranking`; a measurement has no filter.
        measured: a query from which the bundle's fusion was learnt is ranked by one that has not seen it (`held_out`).

    Raises:
        UserError: the bundle is served with BM25, but has no BM25 index.
    """
    weight = bundle.serving.weight
    bm25 = None if weight is None else bm25_of(bundle)
    if measured and weight is None and index.learned and bundle.fusion_path:
        from gnn_encoder.retrieval.held_out import HeldOut  # imports bm25s

        if held := HeldOut.read(bundle.fusion_path):
            return held.run(index.learned, queries, questions, vectors, k, left_out)
    return ranking(index, bm25, queries, questions, vectors, k, weight, left_out, only)


def _tuned_weight(bundle: Bundle, run: Path) -> tuple[float, str]:
    """The weight with which a run chose the bundle, or the weight in the report of a run, such as ROOT/latest, if the
    report has a system of that name and model; and the weight's origin in words."""
    if bundle.serving.weight:
        return bundle.serving.weight, f"tuned on {bundle.serving.tuned_on}" if bundle.serving.tuned_on else NOT_TUNED
    try:
        report = Report.read(run / "report")
        history = read_history(report.path)
    except UserError:
        return UNTUNED, NOT_TUNED
    inputs = bundle.manifest.inputs
    model = inputs.get("gnn_encoder") or inputs.get("dual_encoder")
    known = {digest for record in history.values() for digest in record.inputs.values()}
    wanted = {"method": CONVEX, "dense": bundle.system}
    fusions = report.metrics["fusions"].values()
    facts: dict[str, Any] = next((fusion for fusion in fusions if wanted.items() <= fusion.items()), {})
    if not facts.get("tuned_on") or model not in known:
        return UNTUNED, NOT_TUNED
    return float(facts["weight"]), f"tuned on {facts['tuned_on']}"
