"""Step 13: h'_p of every passage by the full graph, streamed, and the bundle that search loads.

All training queries are in the graph now. Eq. 6 uses M_de's cached passage vectors, eq. 7–10 the
jointly trained encoders.
"""

import time
from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Graph, create_vectors, read_vectors
from gnn_encoder.artifacts.bundle import INDEX, Bundle
from gnn_encoder.context import Context
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.index_file import IndexKind, build_index, load_index, recall
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn_encoder import GnnEncoder
from gnn_encoder.propagation import Propagation
from gnn_encoder.settings import EncodeCorpus
from gnn_encoder.steps.step import Metrics, step

RECALL_QUERIES = 256
"""Training queries on which an index that is not exact is compared with one that is."""


@step(bundle="bundle")
def encode_corpus(
    context: Context,
    settings: EncodeCorpus,
    dataset: Path,
    gnn_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    bundle: Draft,
) -> Metrics:
    """Encode, propagate, index."""
    data, graph_arrays, model = Dataset(dataset), Graph.read(graph), GnnEncoder.load(gnn_encoder)
    model.to(device()).eval()
    encoders = model.dual_encoder
    m, s = len(data.passages), settings
    kind = IndexKind(s.index, s.ivf_lists, s.ivf_probes, s.hnsw_links, s.hnsw_breadth)
    vectors = create_vectors(bundle, m, encoders.passage_encoder.width)
    encoding = context.progress("encoding", m, "passages")
    encode_passages(encoders.passage_encoder, data.passages, vectors, progress=encoding, **settings.speed)
    encoding_rate = encoding.rate
    asked = encode_texts(encoders.query_encoder, data.query_texts(graph_arrays.queries), **settings.speed)
    began = time.perf_counter()
    asking = context.progress("propagating", len(asked), "queries")
    full_graph = Propagation(model.gnn, graph_arrays, asked, read_vectors(passage_vectors), progress=asking)
    sample = asked[np.linspace(0, len(asked) - 1, min(len(asked), RECALL_QUERIES)).astype(int)]
    del asked
    propagating = context.progress("propagating", m, "passages")
    for start in range(0, m, settings.chunk):
        rows = np.arange(start, min(start + settings.chunk, m))
        # In place: a passage's h'_p needs its own h_p and no other's.
        vectors[rows] = full_graph.passages(rows, vectors[rows])
        propagating.advance(len(rows))
    propagation_rate = m / (time.perf_counter() - began)
    vectors.flush()
    Bundle.write(
        bundle,
        vectors=vectors,
        dataset=data,
        save_index=partial(build_index, kind=kind),
        save_query_encoder=encoders.query_encoder.save,
    )
    recalls = {}
    if kind.name != "flat":
        served = load_index(bundle / INDEX)
        recalls = {f"index_recall_at_{k}": recall(served, vectors, sample, k) for k in (10, 100)}
    return {
        **recalls,
        "passages": m,
        "encoded_per_second": encoding_rate,
        "propagated_per_second": propagation_rate,
        "headline": f"{m:,} passages, encoded {encoding_rate:,.0f}/s, propagated {propagation_rate:,.0f}/s",
    }
