"""Encodes the corpus and all queries with a published encoder as it is: the embedding of a run that trains nothing."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, STORED, check_range, create_rows, create_vectors
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import Encode


@step(dual_encoder="model", passage_vectors="vectors")
def encode(context: Context, settings: Encode, dataset: Path, dual_encoder: Draft, passage_vectors: Draft) -> Metrics:
    """Writes the encoder as a dual encoder with shared weights, and its vectors of passages and queries."""
    data = Dataset(dataset)
    encoders = DualEncoder.from_backbone(
        settings.encoder, pooling=settings.pooling, normalize=settings.normalize, share_encoders=True,
        query_length=settings.query_length, passage_length=settings.passage_length,
    )  # fmt: skip
    encoders.save(dual_encoder.path)
    passages, width = len(data.passages), encoders.passage_encoder.width
    vectors = create_vectors(passage_vectors, passages, width, STORED[settings.vector_type])
    progress = context.progress("encoding", passages, "passages")
    encode_passages(encoders.passage_encoder, data.passages, vectors, progress=progress, **settings.speed)
    vectors.flush()
    check_range(vectors)
    for name, rows in ((QUERIES, data.query_rows("train")), (EVALUATED, evaluated_queries(data))):
        stored = create_rows(passage_vectors, name, (len(rows), width))
        if len(rows):
            stored[:] = encode_texts(encoders.query_encoder, data.query_texts(rows), **settings.speed)
    return {
        "encoded": passages,
        "passages_per_second": progress.rate,
        "headline": f"{passages:,} passages at {progress.rate:,.0f}/s",
    }
