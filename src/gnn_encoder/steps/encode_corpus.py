"""Computes h'_p of every passage with the full graph, in blocks, and writes the bundle that a search loads.

No training query is masked now. Eq. 6 uses M_de's cached passage vectors (or the trained encoder's, with
`train_gnn.cache_refreshes`), and eq. 7–10 use the vectors of the jointly trained encoders (`encode_nodes`). Vectors of
an earlier run with the same models are reused: only passages with a changed neighbourhood are propagated.
"""

import time
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Contents, Dataset, Draft, Encoding, Graph
from gnn_encoder.artifacts.arrays import check_range, create_vectors, read_vectors
from gnn_encoder.artifacts.bundle import INDEX, QUERY_ENCODER
from gnn_encoder.artifacts.digests import find
from gnn_encoder.artifacts.finished_run import graph_bundle
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.models.dual_encoder import DualEncoder, device
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.query_graph.neighborhoods import queries_reaching
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.retrieval.index_file import build_index, load_index, recall
from gnn_encoder.settings.outcome import EncodeCorpus
from gnn_encoder.update.changes import carry_over, neighbourhood_digests

RECALL_QUERIES = 256
"""Number of training queries on which an approximate index is compared with exact search."""


@step(bundle="bundle")
def encode_corpus(
    context: Context,
    settings: EncodeCorpus,
    dataset: Path,
    gnn_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    encoding: Path,
    bundle: Draft,
    bm25_index: Path | None = None,
) -> Metrics:
    """Propagates over the graph, builds the index, and writes the bundle."""
    data, graph_arrays = Dataset(dataset), Graph.read(graph)
    gnn = GnnEncoder.load_gnn(gnn_encoder).to(device()).eval()
    nodes, cached = Encoding.read(encoding), read_vectors(passage_vectors)
    h_p, h_q = nodes.passages, nodes.queries
    (m, width), n = h_p.shape, len(h_q)
    # What a vector depends on besides texts. If it differs, no vector is reused.
    models = dict(nodes.contents.models)
    for name, path in (("passage_vectors", passage_vectors), ("graph", graph)):
        models |= {f"{name}.{key}": value for key, value in Contents.read(path).models.items()}
    known, former = _former(settings.previous, models, cached.dtype)

    began = time.perf_counter()
    texts = nodes.contents.digests
    around = neighbourhood_digests(graph_arrays, texts["queries"], texts["passages"])
    vectors = create_vectors(bundle, m, width, cached.dtype)
    changed = carry_over(find(known, around), former, vectors)
    asking = queries_reaching(graph_arrays, changed)
    progress = context.progress("propagating", len(asking), "queries")
    of_queries = gnn.config.passages_of_queries(cached, h_p)
    full_graph = Propagation(gnn, graph_arrays, h_q, of_queries, nodes=asking, progress=progress)
    propagating = context.progress("propagating", len(changed), "passages")
    full_graph.write(vectors, changed, h_p, chunk=settings.chunk, progress=propagating)
    propagation_seconds = time.perf_counter() - began
    vectors.flush()
    check_range(vectors)
    Contents.write(bundle, models, neighbourhoods=around)
    build_index(vectors, bundle / INDEX, settings)
    DualEncoder.load_query_encoder(gnn_encoder).save(bundle / QUERY_ENCODER)
    if settings.bm25:
        Bundle.add_bm25(bundle, bm25_index)
    Bundle.add_labels(bundle, data)
    Bundle.complete(bundle, data)
    recalls = {}
    if settings.index != "flat":
        served = load_index(bundle / INDEX, (m, width))
        sample = h_q[np.linspace(0, n - 1, min(n, RECALL_QUERIES)).astype(int)]
        recalls = {f"index_recall_at_{k}": recall(served, vectors, sample, k) for k in (10, 100)}
    return {
        **recalls,
        "passages": m,
        "propagated": len(changed),
        "propagated_per_second": len(changed) / propagation_seconds,
        "headline": f"{m:,} passages, {len(changed):,} propagated at {len(changed) / propagation_seconds:,.0f}/s",
    }


def _former(folder: str, models: dict[str, str], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The digests [m, 2] of passages' neighbourhoods in an earlier run, and h'_p of the passages [m, d].

    Both are empty without a `folder`, or if other models wrote the bundle there, or in another type than `dtype`.
    """
    if folder:
        bundle = Bundle.read(graph_bundle(Path(folder)))
        contents = Contents.read(bundle.path)
        if contents.models == models and bundle.stored_vectors.dtype == dtype:
            return contents.digests["neighbourhoods"], bundle.stored_vectors
    return np.empty((0, 2), np.uint64), np.empty((0, 0), np.float32)
