"""Step 13: h'_p of every passage by the full graph, streamed, and the bundle that search loads.

All training queries are in the graph now. Eq. 6 uses M_de's cached passage vectors, eq. 7–10 the
jointly trained encoders.
"""

from pathlib import Path

import numpy as np

from gnn_encoder import index
from gnn_encoder.artifacts import Dataset, Draft, Graph, create_vectors, read_vectors
from gnn_encoder.artifacts.bundle import Bundle
from gnn_encoder.context import Context
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn_encoder import GnnEncoder
from gnn_encoder.propagation import propagate_passages, propagate_queries
from gnn_encoder.settings import EncodeCorpus
from gnn_encoder.steps.step import Metrics, step


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
    m = len(data.passages)
    vectors = create_vectors(bundle, m, encoders.passage_encoder.width)
    encoding = context.progress("encoding", m, "passages")
    encode_passages(encoders.passage_encoder, data.passages, vectors, progress=encoding, **settings.speed)
    encoding_rate = encoding.rate
    asked = encode_texts(encoders.query_encoder, data.query_texts(graph_arrays.queries), **settings.speed)
    propagating = context.progress("propagating", m, "passages")
    interactive = propagate_queries(model.gnn, graph_arrays, asked, read_vectors(passage_vectors))
    for start in range(0, m, settings.chunk):
        rows = np.arange(start, min(start + settings.chunk, m))
        # In place: a passage's h'_p needs its own h_p and no other's.
        vectors[rows] = propagate_passages(model.gnn, graph_arrays, rows, vectors[rows], interactive)
        propagating.advance(len(rows))
    vectors.flush()
    Bundle.write(
        bundle,
        vectors=vectors,
        dataset=data,
        save_index=index.build_index,
        save_query_encoder=encoders.query_encoder.save,
    )
    return {
        "passages": m,
        "encoded_per_second": encoding_rate,
        "propagated_per_second": propagating.rate,
        "headline": f"{m:,} passages, encoded {encoding_rate:,.0f}/s, propagated {propagating.rate:,.0f}/s",
    }
