"""Encodes the texts of the graph's nodes with the trained encoders: h_p of every passage, h_q of every training query.

A task that shares the work encodes its share of the passages and its share of the queries. Vectors of an earlier run
with the same model are reused, so only new texts are encoded.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, Encoding, Graph, read_manifest, read_vectors
from gnn_encoder.artifacts.arrays import check_range, create_rows
from gnn_encoder.artifacts.digests import find
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import encoding_figures
from gnn_encoder.inference.encoding import encode_passages, encode_texts, inference_dtype
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.settings.outcome import EncodeNodes
from gnn_encoder.update.changes import carry_over


@step(encoding="encoding")
def encode_nodes(
    context: Context,
    settings: EncodeNodes,
    dataset: Path,
    gnn_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    encoding: Draft,
) -> Metrics:
    """Encodes all nodes, or a task's share of them; passages are stored in the type of M_de's vectors."""
    data, queries, encoders = Dataset(dataset), Graph.read(graph).queries, GnnEncoder.load(gnn_encoder).dual_encoder
    encoders.to(device()).eval()
    # What a vector depends on besides its text. If it differs, no vector is reused.
    models = {"gnn_encoder": read_manifest(gnn_encoder).digest, "precision": str(inference_dtype(settings.precision))}
    width, dtype = encoders.passage_encoder.width, read_vectors(passage_vectors).dtype
    passages, nodes = settings.share(len(data.passages)), settings.share(len(queries))
    texts = Contents.read(passage_vectors).digests["texts"][passages]
    query_digests = Contents.read(graph).digests["queries"][nodes]
    former = _former(settings.previous, models, dtype)
    known = former.contents.digests

    h_p = create_rows(encoding, "passages", (len(texts), width), dtype)
    new = passages.start + carry_over(find(known["passages"], texts), former.passages, h_p)
    progress = context.progress("encoding", len(new), "passages")
    encode_passages(
        encoders.passage_encoder, data.passages, h_p, rows=new, first=passages.start, progress=progress,
        **settings.speed,
    )  # fmt: skip
    check_range(h_p, first=passages.start)
    rate = progress.rate
    h_q = create_rows(encoding, "queries", (len(query_digests), width))
    fresh = carry_over(find(known["queries"], query_digests), former.queries, h_q)
    h_q[fresh] = encode_texts(encoders.query_encoder, data.query_texts(queries[nodes][fresh]), **settings.speed)
    Contents.write(encoding, models, passages=texts, queries=query_digests)
    return encoding_figures(len(texts), len(new), rate)


def _former(folder: str, models: dict[str, str], dtype: np.dtype) -> Encoding:
    """The encoding of an earlier run; empty without a `folder`, or if other models wrote it, or in another type."""
    if folder:
        encoding = Encoding.read(Path(folder) / "encoding")
        if encoding.contents.models == models and encoding.passages.dtype == dtype:
            return encoding
    none, no_digests = np.empty((0, 0), np.float32), np.empty((0, 2), np.uint64)
    return Encoding(none, none, Contents(dict.fromkeys(("passages", "queries"), no_digests), {}))
