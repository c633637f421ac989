"""Encodes the corpus with DPR and searches it exactly for every query.

A task that shares the work encodes its share of the passages and searches it for all queries, because both take time in
proportion to the passages. The share has whole blocks of the search, so that all scores have the bits of one task,
unless long passages have several windows: the best window counts.
"""

from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import hit_figures
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.exact import CHUNK, search
from gnn_encoder.retrieval.first_stage import leaving_out, search_splits
from gnn_encoder.settings.foundation import DenseRetrieve
from gnn_encoder.settings.systems import DPR
from gnn_encoder.update.windows import encode_windows


@step(dpr_run="run")
def dense_retrieve(context: Context, settings: DenseRetrieve, dataset: Path, dpr: Path, dpr_run: Draft) -> Metrics:
    """Writes DPR's run; the passage vectors are on disk while the step runs."""
    data, model = Dataset(dataset), DualEncoder.load(dpr)
    share = settings.share(len(data.passages), CHUNK)
    rows = np.arange(share.start, share.stop)
    create = partial(scratch, folder=dpr_run.path)
    vectors = create(len(rows), model.passage_encoder.width)
    encoding = context.progress("encoding", len(rows), "passages")
    encode_passages(
        model.passage_encoder, data.passages, vectors, rows=rows, first=share.start, progress=encoding, **settings.speed
    )
    encoding_rate, of = encoding.rate, None
    if settings.in_windows:
        vectors, of, _ = encode_windows(
            model.passage_encoder, data, vectors, settings, create, context.progress, share=share, **settings.speed
        )
    searching = context.progress("searching", 2 * len(rows), "passages")

    def search_dense(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        vectors_of_queries = encode_texts(model.query_encoder, data.query_texts(queries), **settings.speed)
        if of is None:
            scores, hits = search(vectors, vectors_of_queries, k, chunk=CHUNK, progress=searching)
        else:
            scores, hits = best_vectors.search(vectors, of, vectors_of_queries, k)
            searching.advance(len(rows))
        return scores, np.where(hits < 0, hits, hits + share.start)

    dense = leaving_out(data, search_dense)
    run = search_splits(data, dense, train_depth=settings.train_depth, eval_depth=settings.eval_depth)
    run.write(dpr_run, DPR)
    return hit_figures("dense_retrieve", data, run, len(rows), encoding_rate, whole=settings.shards == 1)
