"""Computes h'_p of every passage with the full graph, in blocks, and writes the bundle that a search loads.

No training query is masked now. Eq. 6 uses M_de's cached passage vectors (or the trained encoder's, with
`train_gnn.cache_refreshes`), and eq. 7–10 use the jointly trained encoders. Vectors of an earlier run with the same
models are reused: only new texts are encoded, and only passages with a changed neighbourhood are propagated.
"""

import time
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Contents, Dataset, Draft, Encoding, Graph, read_manifest
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.artifacts.arrays import check_range, create_rows, create_vectors, read_vectors
from gnn_encoder.artifacts.bundle import ADDED, BM25, INDEX, QUERY_ENCODER, graph_bundle
from gnn_encoder.inference.encoding import encode_passages, encode_texts, inference_dtype
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.query_graph.neighborhoods import queries_reaching
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.retrieval.bm25 import FIELDS, Bm25
from gnn_encoder.retrieval.index_file import build_index, load_index, recall
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.outcome import EncodeCorpus
from gnn_encoder.update.changes import carry_over, find, neighbourhood_digests

RECALL_QUERIES = 256
"""Number of training queries on which an approximate index is compared with exact search."""


@step(bundle="bundle", encoding="encoding")
def encode_corpus(
    context: Context,
    settings: EncodeCorpus,
    dataset: Path,
    gnn_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    bundle: Draft,
    encoding: Draft,
) -> Metrics:
    """Encodes the corpus, propagates over the graph, builds the index, and writes the bundle."""
    data, graph_arrays, model = Dataset(dataset), Graph.read(graph), GnnEncoder.load(gnn_encoder)
    model.to(device()).eval()
    encoders = model.dual_encoder
    m, n, width = len(data.passages), len(graph_arrays.queries), encoders.passage_encoder.width
    of_passages, of_graph = Contents.read(passage_vectors), Contents.read(graph)
    # What a vector depends on besides texts. If it differs, no vector is reused.
    models = {"gnn_encoder": read_manifest(gnn_encoder).digest, "precision": str(inference_dtype(settings.precision))}
    for name, contents in (("passage_vectors", of_passages), ("graph", of_graph)):
        models |= {f"{name}.{key}": value for key, value in contents.models.items()}
    cached = read_vectors(passage_vectors)
    former, former_vectors = _former(settings.previous, models, cached.dtype)
    known = former.contents.digests

    questions = data.query_texts(graph_arrays.queries)
    texts, asked = of_passages.digests["texts"], of_graph.digests["queries"]
    h_p, h_q = create_rows(encoding, "passages", (m, width), cached.dtype), create_rows(encoding, "queries", (n, width))
    new = carry_over(find(known["passages"], texts), former.passages, h_p)
    encoding_progress = context.progress("encoding", len(new), "passages")
    encode_passages(
        encoders.passage_encoder, data.passages, h_p, rows=new, progress=encoding_progress, **settings.speed
    )
    check_range(h_p)
    encoding_rate = encoding_progress.rate
    new_queries = carry_over(find(known["queries"], asked), former.queries, h_q)
    h_q[new_queries] = encode_texts(encoders.query_encoder, [questions[row] for row in new_queries], **settings.speed)

    began = time.perf_counter()
    around = neighbourhood_digests(graph_arrays, asked, texts)
    vectors = create_vectors(bundle, m, width, cached.dtype)
    changed = carry_over(find(known["neighbourhoods"], around), former_vectors, vectors)
    nodes = queries_reaching(graph_arrays, changed)
    asking = context.progress("propagating", len(nodes), "queries")
    of_queries = model.gnn.config.passages_of_queries(cached, h_p)
    full_graph = Propagation(model.gnn, graph_arrays, h_q, of_queries, nodes=nodes, progress=asking)
    propagating = context.progress("propagating", len(changed), "passages")
    full_graph.write(vectors, changed, h_p, chunk=settings.chunk, progress=propagating)
    propagation_seconds = time.perf_counter() - began
    vectors.flush()
    check_range(vectors)
    Contents.write(encoding, models, passages=texts, queries=asked, neighbourhoods=around)
    build_index(vectors, bundle / INDEX, settings)
    encoders.query_encoder.save(bundle / QUERY_ENCODER)
    indexing = context.progress("indexing for BM25", m * len(FIELDS[settings.fields]), "passages")
    if settings.bm25:
        (bundle / BM25).mkdir()
        Bm25.build(data.passages, settings, indexing).save(bundle / BM25)
    if data.added:
        AddedLabels(data.added).write(bundle / ADDED)
    Bundle.complete(bundle, data)
    recalls = {}
    if settings.index != "flat":
        served = load_index(bundle / INDEX, (m, width))
        sample = h_q[np.linspace(0, n - 1, min(n, RECALL_QUERIES)).astype(int)]
        recalls = {f"index_recall_at_{k}": recall(served, vectors, sample, k) for k in (10, 100)}
    return {
        **recalls,
        "passages": m,
        "encoded": len(new),
        "propagated": len(changed),
        "encoded_per_second": encoding_rate,
        "propagated_per_second": len(changed) / propagation_seconds,
        "headline": f"{m:,} passages, {len(new):,} encoded at {encoding_rate:,.0f}/s, {len(changed):,} propagated "
        f"at {len(changed) / propagation_seconds:,.0f}/s",
    }


def _former(folder: str, models: dict[str, str], dtype: np.dtype) -> tuple[Encoding, np.ndarray]:
    """The encoding of an earlier run and h'_p of its passages [m, d], both stored in the type `dtype`.

    Both are empty without a `folder`, if other models wrote them or in another type, or if the bundle there was not
    written with the encoding.
    """
    if folder:
        encoding, bundle = Encoding.read(Path(folder) / "encoding"), Bundle.read(graph_bundle(Path(folder)))
        together = bundle.manifest.inputs == read_manifest(Path(folder) / "encoding").inputs
        if together and encoding.contents.models == models and encoding.passages.dtype == dtype:
            return encoding, bundle.stored_vectors
    none, no_digests = np.empty((0, 0), np.float32), np.empty((0, 2), np.uint64)
    digests = dict.fromkeys(("passages", "queries", "neighbourhoods"), no_digests)
    return Encoding(none, none, Contents(digests, {})), none
