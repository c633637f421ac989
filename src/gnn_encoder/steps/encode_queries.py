"""Computes M_de's vectors of all queries of the dataset, once for all variants of an ablation."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, create_vectors, read_manifest
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.inference.encoding import encode_texts, inference_dtype
from gnn_encoder.inference.tokens import SHARD
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.graph import EncodeQueries


@step(query_vectors="vectors")
def encode_queries(
    context: Context, settings: EncodeQueries, dataset: Path, dual_encoder: Path, query_vectors: Draft
) -> Metrics:
    """Encodes all queries, and writes digests of their texts."""
    data, encoder = Dataset(dataset), DualEncoder.load(dual_encoder).query_encoder
    n = len(data.queries)
    vectors, digests = create_vectors(query_vectors, n, encoder.width), []
    progress = context.progress("encoding", n, "queries")
    for start in range(0, n, SHARD):
        texts = data.query_texts(np.arange(start, min(start + SHARD, n)))
        vectors[start : start + len(texts)] = encode_texts(encoder, texts, progress=progress, **settings.speed)
        digests.append(text_digests(texts))
    vectors.flush()
    models = {"dual_encoder": read_manifest(dual_encoder).digest, "dtype": str(inference_dtype(settings.precision))}
    Contents.write(query_vectors, models, texts=np.concatenate(digests))
    return {"queries": n, "headline": f"{n:,} queries at {progress.rate:,.0f}/s"}
