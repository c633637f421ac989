"""The vectors that one dual encoder gives a corpus and its queries, which `build_graph` writes once for all steps."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, read_rows
from gnn_encoder.evaluation.collected import evaluated_queries


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
