"""From every system's per-query figures to the means and p-values of a report."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.dataset import CORPUS
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.significance import paired_randomization

BM25, UNTRAINED, DPR, BASELINE, CANDIDATE = "BM25", "Untrained", "DPR", "Dual encoder", "GNN-encoder"
"""The systems, in the order of every table. The baseline is M_de."""

PerQuery = Mapping[str, np.ndarray]
"""Figures [queries, measures] of each system."""


def means(values: PerQuery) -> dict[str, dict[str, float]]:
    """{system: {measure: mean over queries}}."""
    return {
        system: dict(zip(NAMES, (float(mean) for mean in figures.mean(axis=0)), strict=True))
        for system, figures in values.items()
    }


def p_values(values: PerQuery, permutations: int, seed: int) -> dict[str, dict[str, float]]:
    """{system: {measure: p}} of every system against the baseline, which has no entry."""
    others = [system for system in values if system != BASELINE]
    if not others:
        return {}
    differences = np.concatenate([values[system] - values[BASELINE] for system in others], axis=1)
    p = paired_randomization(differences, permutations, seed).reshape(len(others), len(NAMES))
    return {system: dict(zip(NAMES, row, strict=True)) for system, row in zip(others, p.tolist(), strict=True)}


def per_query_table(dataset: Dataset, queries: Mapping[str, np.ndarray], values: Mapping[str, PerQuery]) -> pa.Table:
    """A row for each split, system and query, with a column for each measure."""
    ids = dataset.queries.column("query_id")
    parts = []
    for split, systems in values.items():
        for system, figures in systems.items():
            n = len(figures)
            columns = {
                "split": pa.array([split] * n),
                "query_id": ids.take(pa.array(queries[split])),
                "query": pa.array(queries[split], pa.int32()),
                "system": pa.array([system] * n),
            }
            parts.append(pa.table({**columns, **dict(zip(NAMES, figures.T, strict=True))}))
    return pa.concat_tables(parts)


def split_digest(dataset: Dataset, split: str) -> str:
    """What a split's figures depend on besides the models: corpus, queries and labels, as hex SHA-256.

    Independent of the other splits: two models trained on different queries can be compared.
    """
    qrels = dataset.split_qrels(split)
    order = np.lexsort((qrels.passage, qrels.query))
    digest = hashlib.sha256(dataset.manifest.files[CORPUS]["sha256"].encode())
    texts = dataset.query_texts(qrels.query[order])
    for text, passage, relevance in zip(texts, qrels.passage[order], qrels.relevance[order], strict=True):
        digest.update(f"{text}\0{passage}\0{relevance}\n".encode())
    return digest.hexdigest()


def flat(metrics: dict[str, Any]) -> dict[str, float]:
    """Means as `test/GNN-encoder/RR@10` and p-values as `test/GNN-encoder/p/RR@10`, for tracking."""
    figures = {"": metrics["results"], "p/": metrics["p_values"]}
    return {
        f"{split}/{system}/{kind}{measure}": value
        for kind, splits in figures.items()
        for split, systems in splits.items()
        for system, measures in systems.items()
        for measure, value in measures.items()
    }
