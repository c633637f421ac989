"""The vectors that one dual encoder gives a corpus and its queries, which `build_graph` writes once for all steps."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.arrays import CHUNK, EVALUATED, QUERIES, at_unit_length, read_rows, read_scored
from gnn_encoder.evaluation.collected import SPLITS, evaluated_queries
from gnn_encoder.evaluation.measures import labelled_queries, measured_by
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.identical import run_by

UNIT = 5e-3
"""Largest difference from 1 of the length of a unit vector whose numbers are fp16."""
DEPTH = 1000
"""Hits that are measured, as many as `evaluate.depth` has by default."""


def vectors_of_queries(path: Path, data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Returns the vectors fp32 [n, d] of training or evaluated queries; raises ValueError for another query."""
    vectors = np.empty((len(rows), read_rows(path, QUERIES).shape[1]), np.float32)
    missing = np.ones(len(rows), bool)
    read_manifest(path, "vectors")
    for name, of in ((QUERIES, data.query_rows("train")), (EVALUATED, evaluated_queries(data))):
        known = np.isin(rows, of) & missing
        vectors[known] = read_rows(path, name)[np.searchsorted(of, rows[known])]
        missing &= ~known
    if missing.any():
        raise ValueError(f"{path} has no vector of query row {rows[missing][0]}")
    return vectors


def figures_by_dimension(path: Path, data: Dataset, dimensions: Sequence[int], measure: str) -> list[dict[str, Any]]:
    """Returns what the first components of an encoder's vectors are worth, for Matryoshka training.

    The vectors of a vectors artifact are cut, in their type, and searched exactly. Where they have unit length, they
    and the queries' get it again (Kusupati et al., 2022).

    Returns:
        For each of `dimensions`, the largest first: `dimension`, `megabytes` (10⁶ bytes) of the passages' vectors, and
        `means`: the mean of the measure over the labelled queries of each split that has some.
    """
    (vectors, of), rows = read_scored(path), evaluated_queries(data)
    queries, left_out = vectors_of_queries(path, data, rows), data.identical[rows]
    is_unit = all(_is_unit(matrix[:CHUNK]) for matrix in (vectors, queries))
    judged, table = {split: data.judged(split) for split in SPLITS}, []
    measured = {split: measured_by(measure, data, qrels) for split, qrels in judged.items()}
    for dimension in sorted(set(dimensions), reverse=True):
        cut = vectors
        if dimension < vectors.shape[1]:  # an array on the disk, not in memory
            cut = scratch(len(vectors), dimension, dtype=vectors.dtype)
            for start in range(0, len(vectors), CHUNK):
                cut[start : start + CHUNK] = _first(vectors[start : start + CHUNK], dimension, is_unit)
        search = partial(best_vectors.search, cut, of, _first(queries, dimension, is_unit))
        run, means = run_by(search, rows, left_out, min(DEPTH, len(data.passages))), dict[str, float]()
        for split in SPLITS:
            if len(labelled := labelled_queries(judged[split])):
                means[split] = float(measured[split](run, labelled).mean())
        table.append({"dimension": dimension, "megabytes": cut.nbytes / 1e6, "means": means})
    return table


def _is_unit(vectors: np.ndarray) -> bool:
    """Whether all vectors [n, d] have unit length, up to the rounding of fp16."""
    lengths = np.linalg.norm(np.asarray(vectors, np.float32), axis=1)
    return bool((np.abs(lengths - 1) < UNIT).all())


def _first(vectors: np.ndarray, dimension: int, unit_length: bool) -> np.ndarray:
    """Returns the first components of vectors [n, d], fp32 [n, dimension], at unit length if that is asked for."""
    cut = np.asarray(vectors[:, :dimension], np.float32)
    return at_unit_length(cut) if unit_length and dimension < vectors.shape[1] else cut
