"""Encodes the corpus with DPR and searches it exactly for every query."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.exact import search
from gnn_encoder.retrieval.first_stage import dev_figures, search_splits
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.foundation import DenseRetrieve


@step(dpr_run="run")
def dense_retrieve(context: Context, settings: DenseRetrieve, dataset: Path, dpr: Path, dpr_run: Draft) -> Metrics:
    """Writes DPR's run; the passage vectors are on disk while the step runs."""
    data, model = Dataset(dataset), DualEncoder.load(dpr)
    m = len(data.passages)
    vectors = scratch(m, model.passage_encoder.width, folder=dpr_run.path)
    encoding = context.progress("encoding", m, "passages")
    encode_passages(model.passage_encoder, data.passages, vectors, progress=encoding, **settings.speed)
    encoding_rate = encoding.rate
    searching = context.progress("searching", 2 * m, "passages")

    def search_dense(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        vectors_of_queries = encode_texts(model.query_encoder, data.query_texts(queries), **settings.speed)
        return search(vectors, vectors_of_queries, k, progress=searching)

    run = search_splits(data, search_dense, train_depth=settings.train_depth, eval_depth=settings.eval_depth)
    run.write(dpr_run, "DPR")
    figures = dev_figures(data, run)
    quality = f"dev R@100 {figures['dev/R_at_100']:.3f}, " if figures else ""
    return {
        "hits": len(run.query),
        "passages_per_second": encoding_rate,
        **figures,
        "headline": f"{quality}encoded {encoding_rate:,.0f} passages/s",
    }
