"""Compares the table that was written with the bundle: its rows, and its first hits of the questions.

All rows are compared by their content, which the engine reads back. The first hits are those of the engine itself: of
an exact search in any case, and of the index if there is one, which must find 99 % of them.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import exact
from gnn_encoder.serving.exports.job import Job

CLOSE = 1e-5
"""Largest difference of two scores, relative to the lengths of both vectors; also of two vectors' components."""
DEPTH = 10
"""First hits that are compared."""
RECALL = 0.99
"""Share of the exact first hits that an index must find."""
SCANNED = 20_000_000
"""Rows that exact searches of the engine read: 200 questions up to 100,000 rows, fewer of more rows, 10 at least."""


class Stored(Protocol):
    """A table of LanceDB or PostgreSQL."""

    @property
    def effort(self) -> str:
        """The setting of a search that trades time for recall, such as `hnsw.ef_search`."""

    @property
    def efforts(self) -> Sequence[int]:
        """Its values to try, ascending."""

    def digests(self) -> np.ndarray:
        """Returns the digests int64 [t] that the table holds, in any order."""

    def altered(self) -> str | None:
        """Returns the id of a passage whose row has another digest than its content; None: there is none."""

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> list[np.ndarray]:
        """Returns the digests of the first `k` rows of each query [n, d]; `effort` None: searched exactly."""


def replay(job: Job, digests: np.ndarray, table: Stored, index: bool) -> tuple[str, int | None]:
    """Returns what was compared, in words, and the effort at which the index finds enough.

    Args:
        job: the export.
        digests: int64 [v], the digest of each row of the bundle.
        table: the table as it was written.
        index: whether it has an approximate index.

    Raises:
        UserError: the table differs, or its index finds too little.
    """
    stored = table.digests()
    if not np.array_equal(np.sort(digests), np.sort(stored)):
        foreign, lacking = (~np.isin(stored, digests)).sum(), (~np.isin(digests, stored)).sum()
        raise UserError(
            f"the table has {len(stored):,} rows for {len(digests):,} of the bundle; {foreign:,} are not the bundle's, "
            f"and {lacking:,} are missing; not exported"
        )
    if (passage := table.altered()) is not None:
        raise UserError(f"passage {passage!r} has other texts or another vector there than in the bundle; not exported")
    hits = _Hits(job, digests)
    few = min(len(job.queries), max(SCANNED // len(digests), 10))
    query_rows = np.unique(np.linspace(0, len(job.queries) - 1, few).astype(np.int64))
    for query, hit_digests in zip(query_rows, table.search(job.queries[query_rows], hits.k, None), strict=True):
        if not hits.same(int(query), hit_digests):
            raise UserError(f"{job.questions[query]!r} has other first hits there than in the bundle; not exported")
    sentence = f"{len(digests):,} rows are the bundle's, and so are the first hits of {len(query_rows):,} texts"
    if not index:
        return sentence, None
    for effort in table.efforts:
        answers = table.search(job.queries, hits.k, effort)
        recall = float(np.mean([hits.recall(query, hit_digests) for query, hit_digests in enumerate(answers)]))
        if recall >= RECALL:
            return f"{sentence}; recall@{hits.k} of its index is {recall:.3f} with {table.effort} = {effort}", effort
    raise UserError(
        f"the index has a recall@{hits.k} of {recall:.3f} even with {table.effort} = {effort}, below {RECALL}; not "
        "exported: --no-index searches exactly"
    )


class _Hits:
    """The bundle's first hits of the questions. Rows with nearly the same score may change places."""

    def __init__(self, job: Job, digests: np.ndarray) -> None:
        self.k = min(DEPTH, len(digests))
        self._vectors, self._queries = job.bundle.vectors, job.queries
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]
        self._scores, rows = exact.search(self._vectors, self._queries, self.k)
        lengths = np.linalg.norm(np.asarray(self._vectors[rows.ravel()], np.float32), axis=1).reshape(rows.shape)
        self._slack = CLOSE * np.linalg.norm(self._queries, axis=1) * lengths.max(axis=1)

    def _scores_of(self, query: int, digests: np.ndarray) -> np.ndarray:
        """Returns the bundle's scores of some rows; each digest is one of the bundle's."""
        rows = self._order[np.searchsorted(self._sorted, digests)]
        scores: np.ndarray = np.asarray(self._vectors[rows], np.float32) @ self._queries[query]
        return scores

    def same(self, query: int, digests: np.ndarray) -> bool:
        """Whether some rows, best first, are the first hits."""
        if len(digests) != self.k or len(np.unique(digests)) != self.k:
            return False
        return bool((np.abs(self._scores_of(query, digests) - self._scores[query]) <= self._slack[query]).all())

    def recall(self, query: int, digests: np.ndarray) -> float:
        """Returns the share of the first hits that some rows have."""
        good = self._scores_of(query, digests) >= self._scores[query, -1] - self._slack[query]
        return float(good.sum()) / self.k
