"""The pool of a data set: the passages that a first stage found for each query, given with the data."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import DatasetWriter, pair_keys
from gnn_encoder.artifacts.dataset import POOL, SPLITS
from gnn_encoder.data.questions import Questions
from gnn_encoder.data.rows import Source
from gnn_encoder.data.validation import Kind, Problems


class Pool:
    """The candidates, joined to queries and corpus. Candidates of queries that were left out are left out, too.

    query, passage   int32 [c]: rows of queries, ascending, and of passages; each pair once
    facts            a line of the report, if there are candidates
    """

    def __init__(self, source: Source, questions: Questions, passage_ids: pa.ChunkedArray, problems: Problems) -> None:
        kept = pc.index_in(questions.known_ids, value_set=questions.queries["id"].combine_chunks())
        row_of, corpus = kept.fill_null(-1).to_numpy(zero_copy_only=False), passage_ids.combine_chunks()
        keys = [np.zeros(0, np.int64)]
        for rows in source.candidates(problems):
            query = pc.index_in(rows.query_ids, value_set=questions.known_ids)
            passage = pc.index_in(rows.passage_ids.cast(pa.large_string()), value_set=corpus)
            for indices, kind, ids in (
                (query, Kind.POOL_QUERY, rows.query_ids),
                (passage, Kind.POOL_PASSAGE, rows.passage_ids),
            ):
                for position in np.flatnonzero(indices.is_null().to_numpy(zero_copy_only=False)).tolist():
                    problems.add(kind, rows.file, rows.lines[position], repr(ids[position].as_py()))
            is_complete = pc.and_(query.is_valid(), passage.is_valid())
            row, column = row_of[query.filter(is_complete).to_numpy()], passage.filter(is_complete).to_numpy()
            keys.append(pair_keys(row, column)[row >= 0])
        pairs = np.unique(np.concatenate(keys))
        self.query, self.passage = (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32)
        counts = np.bincount(questions.split[self.query], minlength=len(SPLITS))
        query_counts = np.bincount(questions.split[np.unique(self.query)], minlength=len(SPLITS))
        shown = [f"{split} {n:,} for {q:,}" for n, q, split in zip(counts, query_counts, SPLITS, strict=True) if q]
        self.facts = {"pool": f"candidates for queries: {', '.join(shown)}"} if shown else {}

    def write(self, writer: DatasetWriter) -> None:
        """Write the table; nothing without candidates."""
        if len(self.query):
            writer.table(POOL, self.query, self.passage)
