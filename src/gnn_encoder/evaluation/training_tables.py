"""Figures of the tables that lead to a training set: scored pairs and generated queries."""

from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, GeneratedQueries, KnownPositives, PairScores
from gnn_encoder.evaluation.similarity import NAMES, distribution

RATES = {"pair_scores": "pairs_per_second", "generated_queries": "queries_per_second"}
"""Schema of a table → the name of its figure that says how fast a task made it."""


def pair_figures(dataset: Dataset, pairs: PairScores, rate: float) -> dict[str, Any]:
    """Returns the metrics of scored pairs; `rate` in pairs per second."""
    labelled = KnownPositives.of(dataset, "train").contains(pairs.query, pairs.passage)
    shares = {"labelled": pairs.probability[labelled], "unlabelled": pairs.probability[~labelled]}
    return {
        "pairs": len(pairs.query),
        RATES["pair_scores"]: rate,
        **{f"probability_{kind}": float(p.mean(dtype=np.float64)) if len(p) else 0.0 for kind, p in shares.items()},
        "headline": f"{len(pairs.query):,} pairs, {rate:,.0f}/s",
    }


def query_figures(generated: GeneratedQueries, rate: float) -> dict[str, Any]:
    """Returns the metrics of generated queries; `rate` in queries per second."""
    percent, texts = distribution(generated.similarity), generated.text
    return {
        "queries": len(texts),
        "triples": len(generated.query),
        "empty_queries": sum(not text for text in texts),
        RATES["generated_queries"]: rate,
        **dict(zip(NAMES, percent, strict=True)),
        "headline": f"{len(texts):,} queries, {percent[2] + percent[3]:.0f} % of triples alike (0.3 or more)",
    }
