"""A challenger and the champion measured alike: both bundles search for the queries that there are now.

A champion's figures of former times are not read. It is asked the present queries with its own query encoder over its
own index, and its hits are judged by the present labels. So queries and labels are the same by construction, whatever
has changed since it was made, and both bundles are timed on one machine, in turn.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.encoding import encode_texts
from gnn_encoder.evaluation.gate import Comparison, Standing
from gnn_encoder.evaluation.latency import bundle_path, measure_latency
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.results import means, p_values
from gnn_encoder.index_file import search_index
from gnn_encoder.progress import Progress
from gnn_encoder.search import Searcher
from gnn_encoder.settings import Evaluate
from gnn_encoder.settings.measures import cutoff

CHALLENGER, CHAMPION = "challenger", "champion"


def compare_with_champion(
    data: Dataset,
    split: str,
    challenger: Searcher,
    champion: Searcher,
    version: str,
    measures: Sequence[str],
    settings: Evaluate,
    progress: Callable[[str, int], Progress],
) -> Comparison:
    """Both on the labelled queries of a split.

    Args:
        version: of the champion.
        settings: how the challenger was evaluated: precision, depth, permutations and seed are as there.
        progress: makes one for a stage of so many queries.
    """
    queries, qrels = labelled_queries(data.split_qrels(split)), data.split_qrels(split)
    texts = data.query_texts(queries)
    depth = max(settings.depth, *(cutoff(name) or 0 for name in measures))
    searchers, values, gone = {CHAMPION: champion, CHALLENGER: challenger}, {}, {}
    for name, searcher in searchers.items():
        rows, ids = present_rows(searcher.bundle.passages.ids(), data.passages.ids())
        vectors = encode_texts(searcher.encoder, texts, progress=progress(name, len(texts)), **settings.speed)
        scores, found = search_index(searcher.index, vectors, min(depth, max(len(rows), 1)))
        run = Run.from_hits(queries, np.where(found < 0, -1, rows[found]), scores)
        values[name] = per_query(run, qrels, queries, ids, measures)
        gone[name] = len(ids) - len(data.passages)
    mean = means(values, measures)
    p = p_values(values, settings.permutations, settings.seed, measures, baseline=CHAMPION)
    took = measure_latency({name: bundle_path(searcher) for name, searcher in searchers.items()}, texts)["systems"]
    standings = {
        name: Standing(
            mean[name],
            took[name]["encode_ms"] + took[name]["search_ms"],
            searcher.bundle.index_path.stat().st_size / max(len(searcher.bundle.passages), 1),
        )
        for name, searcher in searchers.items()
    }
    return Comparison(version, len(queries), gone[CHAMPION], standings[CHALLENGER], standings[CHAMPION], p[CHALLENGER])


def present_rows(ids: pa.ChunkedArray, present: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Row numbers, in the present corpus, of a bundle's passages.

    A passage that is not there any more gets a row after the last: it keeps its rank, and no label names it.

    Args:
        ids: text ids of the bundle's passages [m'].
        present: text ids of the corpus [m].

    Returns:
        Rows int32 [m'], and the text ids of all rows, the corpus' and then the others'.
    """
    rows = pc.index_in(ids, value_set=present.combine_chunks())
    gone = pc.is_null(rows)
    places = rows.fill_null(-1).to_numpy().astype(np.int32)
    missing = ids.filter(gone)
    places[places < 0] = len(present) + np.arange(len(missing), dtype=np.int32)
    return places, pa.chunked_array([*present.chunks, *missing.chunks], type=present.type)
