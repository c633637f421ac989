"""A bundle measured on a data set, be it the one that it was made from, a later one, or an earlier one."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.retrieval.index_file import search_index
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.measures import cutoff
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.tracking.progress import Progress


def bundle_figures(
    searcher: Searcher,
    data: Dataset,
    split: str,
    measures: Sequence[str],
    settings: Evaluate,
    progress: Progress | None = None,
) -> np.ndarray:
    """Every measure of every labelled query of a split, float64 [n, measures].

    The bundle is asked with its own query encoder over its own index. A hit that the data set does not know keeps
    its rank and is not relevant; a passage that the bundle does not know cannot be found.

    Args:
        settings: precision and depth of an evaluation, the latter as far as no measure looks deeper.
        progress: counts queries.
    """
    qrels = data.split_qrels(split)
    queries = labelled_queries(qrels)
    rows, ids = present_rows(searcher.bundle.passages.ids(), data.passages.ids())
    vectors = encode_texts(searcher.encoder, data.query_texts(queries), progress=progress, **settings.speed)
    depth = max(settings.depth, *map(cutoff, measures))
    scores, found = search_index(searcher.index, vectors, min(depth, max(len(rows), 1)))
    passages = np.where(found < 0, -1, rows[found]) if len(rows) else found
    return per_query(Run.from_hits(queries, passages, scores), qrels, queries, ids, measures)


def present_rows(ids: pa.ChunkedArray, present: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Row numbers, in a data set's corpus, of a bundle's passages.

    A passage that is not there gets a row after the last, which no label names.

    Args:
        ids: text ids of the bundle's passages [m'].
        present: text ids of the corpus [m].

    Returns:
        Rows int32 [m'], and the text ids of all rows, the corpus' and then the others'.
    """
    rows = pc.index_in(ids, value_set=present.combine_chunks())
    missing = ids.filter(pc.is_null(rows))
    places = rows.fill_null(-1).to_numpy().astype(np.int32)
    places[places < 0] = len(present) + np.arange(len(missing), dtype=np.int32)
    return places, pa.chunked_array([*present.chunks, *missing.chunks], type=present.type)
