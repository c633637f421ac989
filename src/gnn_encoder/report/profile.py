"""Computes statistics of the data that matter for a GNN-encoder: text lengths, label counts, the number of training
queries with an edge to a passage, and the share of dev and test labels whose passage has an edge."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Graph
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.known_positives import warm_labels

TEXTS = 20_000
"""Number of texts of a kind, from the first, in which words are counted."""
QUANTILES = {"5 %": 0.05, "median": 0.5, "95 %": 0.95}


@dataclass(frozen=True)
class DataProfile:
    """Statistics of the data in `report.html`; `facts` are also in `metrics.json`."""

    words: dict[str, np.ndarray]
    """Number of words of each text, by kind: `passages`, and the queries of each split."""
    degrees: np.ndarray
    """Number of training queries with an edge to each passage [m]."""
    facts: dict[str, Any]


def data_profile(dataset: Dataset, graph: Graph | None) -> DataProfile:
    """Returns the statistics of a dataset and its graph.

    `facts`: `passages`, their number; `splits`, each with the numbers of queries, of labelled queries, of positive
    labels, of those that are warm and of their queries (`warm_labels`), and of recurring queries (labels of missing
    passages, as in `Dataset.judged`, are positive and cold); `words` and `degrees`, mean and `QUANTILES`; `isolated`,
    the share of passages without an edge; `labels_with_neighbors`, the share of each split's positive labels on
    passages of the corpus that have an edge.
    """
    sample = np.arange(min(len(dataset.passages), TEXTS))
    words = {"passages": _words(dataset.passages.take(sample).bare_texts())}
    degrees = np.diff(graph.indptr) if graph else np.zeros(len(dataset.passages), np.int64)
    splits, reached = {}, {}
    for split in SPLITS:
        rows, (labels, warm) = dataset.query_rows(split), warm_labels(dataset, split)
        positive, judged = labels.passage, dataset.judged(split).positive()
        labelled = np.unique(judged.query)
        splits[split] = {
            "queries": len(rows),
            "labelled": len(labelled),
            "labels": len(judged.query),
            "warm_queries": int(np.isin(labelled, labels.query[warm]).sum()),
            "warm_labels": int(warm.sum()),
            "recurring": int(np.isin(rows, dataset.recurring).sum()),
        }
        if len(rows):
            words[f"{split} queries"] = _words(dataset.query_texts(rows[:TEXTS]))
        if len(positive):
            reached[split] = float((degrees[positive] > 0).mean())
    return DataProfile(
        words,
        degrees,
        {
            "passages": len(dataset.passages),
            "splits": splits,
            "words": {kind: _summary(counts) for kind, counts in words.items()},
            "degrees": _summary(degrees),
            "isolated": float((degrees == 0).mean()),
            "labels_with_neighbors": reached,
        },
    )


def _words(texts: Sequence[str]) -> np.ndarray:
    return np.fromiter((len(text.split()) for text in texts), np.int64, len(texts))


def _summary(counts: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(counts, list(QUANTILES.values()))
    return {
        "mean": float(counts.mean()),
        **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        "most": int(counts.max()),
    }
