"""Ask a bundle by words and by meaning at once: the ranking that a report calls BM25 + GNN-encoder."""

from typing import Any

import numpy as np

from gnn_encoder.artifacts import CONVEX, Bundle, Report, Run
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.fusion import UNTUNED, fuse
from gnn_encoder.retrieval.search import Hit, Searcher

UNTOLD = "not tuned: beside the bundle there is no report of its model with dev queries"
DEPTH = 1000
"""Hits of either that are fused, `evaluate.depth`'s default: a passage's share depends on the lowest of them."""


def fused_search(bundle: Bundle, question: str, k: int, weight: float | None = None) -> tuple[list[Hit], str]:
    """The best `k` passages for a question by weight · vectors' score + (1 - weight) · BM25's, both brought to 0…1.

    Without a weight, the one that the evaluation beside the bundle tuned on dev.

    Returns:
        The hits, best first, and which weight was taken, in words.

    Raises:
        UserError: as `Searcher.find`, or the bundle has no BM25 index.
    """
    if bundle.bm25_path is None:
        raise UserError(f"{bundle.path} has no BM25 index to fuse with: run encode_corpus with bm25: true")
    origin = "as given"
    if weight is None:
        weight, origin = _tuned_weight(bundle)
    searcher, asked = Searcher(bundle), np.zeros(1, np.int32)
    _, scores, rows = searcher.find(question, max(k, DEPTH))
    dense = Run.from_hits(asked, rows[None], scores[None])
    scores, rows = Bm25.load(bundle.bm25_path).search([question], max(k, DEPTH))
    fused, _ = fuse(Run.from_hits(asked, rows, scores), dense, weight, k)
    told = f"vectors {weight:.2f} + BM25 {1 - weight:.2f}, {origin}"
    return searcher.hits(fused.score, fused.passage), told


def _tuned_weight(bundle: Bundle) -> tuple[float, str]:
    """The weight by the report of its model beside the bundle, as they lie in ROOT/latest, and where it is from."""
    try:
        report = Report.read(bundle.path.absolute().parent / "report")
    except UserError:
        return UNTUNED, UNTOLD
    model = bundle.manifest.inputs.get("gnn_encoder")
    metrics = report.metrics
    wanted = {"method": CONVEX, "dense": metrics["candidate"]}
    facts: dict[str, Any] = next((each for each in metrics["fusions"].values() if wanted.items() <= each.items()), {})
    if not facts.get("tuned_on") or model is None or report.manifest.inputs.get("gnn_encoder") != model:
        return UNTUNED, UNTOLD
    return float(facts["weight"]), f"tuned on {facts['tuned_on']}"
