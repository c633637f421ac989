"""Encodes the corpus and all queries with a published encoder as it is: the embedding of a run that trains nothing."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, STORED, check_range, create_rows, create_vectors, read_rows
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.encoding import encode_passages, encode_texts, inference_dtype
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.update.changes import carry_over, find, passage_digests, text_digests

TEXTS = "texts"
"""The digests of the passages' texts, in the vectors' contents."""


@step(dual_encoder="model", passage_vectors="vectors")
def encode(context: Context, settings: Encode, dataset: Path, dual_encoder: Draft, passage_vectors: Draft) -> Metrics:
    """Writes the encoder as a dual encoder with shared weights, and its vectors of passages and queries.

    Vectors of texts that the earlier run in `previous` has encoded in the same way are copied.
    """
    data = Dataset(dataset)
    encoders = DualEncoder.from_backbone(
        settings.encoder, pooling=settings.pooling, normalize=settings.normalize, share_encoders=True,
        query_length=settings.query_length, passage_length=settings.passage_length,
    )  # fmt: skip
    encoders.save(dual_encoder.path)
    # What a vector depends on besides its text. If it differs, no vector is reused.
    read_as = settings.model_dump(mode="json", exclude={"previous", "tokens_per_batch", "precision"})
    models = {name: str(value) for name, value in read_as.items()}
    models |= {"encoder": context.sources.get("encoder", settings.encoder)}
    models["dtype"] = str(inference_dtype(settings.precision))
    former = Path(settings.previous) if settings.previous else None
    known = Contents.read(former) if former else Contents({}, {})
    if known.models != models:
        former, known = None, Contents({}, {})

    passages, width = len(data.passages), encoders.passage_encoder.width
    digests = {TEXTS: passage_digests(data.passages)}
    vectors = create_vectors(passage_vectors, passages, width, STORED[settings.vector_type])
    new = np.arange(passages)
    if former:
        new = carry_over(find(known.digests[TEXTS], digests[TEXTS]), read_vectors(former), vectors)
    progress = context.progress("encoding", len(new), "passages")
    encode_passages(encoders.passage_encoder, data.passages, vectors, rows=new, progress=progress, **settings.speed)
    vectors.flush()
    check_range(vectors)
    encoded = len(new)
    for name, rows in ((QUERIES, data.query_rows("train")), (EVALUATED, evaluated_queries(data))):
        texts = data.query_texts(rows)
        digests[name] = text_digests(texts)
        stored, new = create_rows(passage_vectors, name, (len(rows), width)), np.arange(len(rows))
        if former:
            new = carry_over(find(known.digests[name], digests[name]), read_rows(former, name), stored)
        if len(new):
            stored[new] = encode_texts(encoders.query_encoder, [texts[row] for row in new], **settings.speed)
    Contents.write(passage_vectors, models, **digests)
    reused = f", {passages - encoded:,} of the run before" if encoded < passages else ""
    return {
        "encoded": encoded,
        "passages_per_second": progress.rate,
        "headline": f"{encoded:,} passages at {progress.rate:,.0f}/s{reused}",
    }
