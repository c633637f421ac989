"""Figures of what several tasks make together: hits, scored pairs, generated queries and vectors."""

from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, GeneratedQueries, KnownPositives, PairScores, Run
from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.evaluation.similarity import NAMES, distribution
from gnn_encoder.retrieval.first_stage import dev_figures

UNITS = {
    "bm25_retrieve": "queries",
    "dense_retrieve": "passages",
    "score_candidates": "pairs",
    "generate_queries": "queries",
    "encode_nodes": "encoded",
    "find_neighbours": "encoded",
    "rerank": "pairs",
}
"""Step → what it counts. Its metric UNIT is how many there were, and UNIT_per_second is its rate."""


def hit_figures(step: str, dataset: Dataset, run: Run, count: int, rate: float, whole: bool = True) -> dict[str, Any]:
    """Returns the metrics of a first stage's run, for which `step` read `count` of its unit at `rate` per second.

    whole: False for a task that shares the work. Figures on dev would not be those of all hits.
    """
    unit, dev = UNITS[step], dev_figures(dataset, run) if whole else {}
    quality = f"dev R@100 {dev['dev/R_at_100']:.3f}" if dev else f"{len(run.query):,} hits"
    speed = f", encoded {rate:,.0f} passages/s" if unit == "passages" else ""
    return {"hits": len(run.query), unit: count, f"{unit}_per_second": rate, **dev, "headline": quality + speed}


def encoding_figures(passages: int, encoded: int, rate: float) -> dict[str, Any]:
    """Returns the metrics of vectors of passages, of which some were encoded, at `rate` passages per second."""
    return {
        "passages": passages,
        "encoded": encoded,
        "encoded_per_second": rate,
        "headline": f"{passages:,} passages, {encoded:,} encoded at {rate:,.0f}/s",
    }


def reranking_figures(queries: int, pairs: int, rate: float) -> dict[str, Any]:
    """Returns the metrics of re-ranked hits; `rate` in pairs per second."""
    headline = f"{pairs:,} pairs, {rate:,.0f} pairs/s"
    return {"queries": queries, "pairs": pairs, "pairs_per_second": rate, "headline": headline}


def pair_figures(dataset: Dataset, pairs: PairScores, rate: float) -> dict[str, Any]:
    """Returns the metrics of scored pairs; `rate` in pairs per second."""
    labelled = KnownPositives.of(dataset, "train").contains(pairs.query, pairs.passage)
    shares = {"labelled": pairs.probability[labelled], "unlabelled": pairs.probability[~labelled]}
    return {
        "pairs": len(pairs.query),
        "pairs_per_second": rate,
        **{f"probability_{kind}": float(p.mean(dtype=np.float64)) if len(p) else 0.0 for kind, p in shares.items()},
        "headline": f"{len(pairs.query):,} pairs, {rate:,.0f}/s",
    }


def query_figures(generated: GeneratedQueries, rate: float) -> dict[str, Any]:
    """Returns the metrics of generated queries; `rate` in queries per second."""
    percent, texts = distribution(generated.similarity), generated.text
    return {
        "queries": len(texts),
        "triples": len(generated.query),
        "empty_queries": sum(is_blank(text) for text in texts),
        "queries_per_second": rate,
        **dict(zip(NAMES, percent, strict=True)),
        "headline": f"{len(texts):,} queries, {percent[2] + percent[3]:.0f} % of triples alike (0.3 or more)",
    }
