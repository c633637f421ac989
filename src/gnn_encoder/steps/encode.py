"""Encodes the corpus and all queries with a published encoder as it is: the embedding of a run that trains nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Contents, Dataset, Draft, create_vectors, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, STORED, WINDOWS, check_range, create_rows, read_rows
from gnn_encoder.artifacts.digests import find, text_digests
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.data.given_vectors import GIVEN, GivenVectors
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.encoding import encode_texts, inference_dtype
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.shared import LongPassages, VectorsOfTexts, is_address
from gnn_encoder.update.changes import carry_over, passage_digests
from gnn_encoder.update.paid import Paid
from gnn_encoder.update.passage_vectors import write_vectors

TEXTS = "texts"
"""The digests of the passages' texts, in the vectors' contents."""


@step(dual_encoder="model", passage_vectors="vectors")
def encode(context: Context, settings: Encode, dataset: Path, dual_encoder: Draft, passage_vectors: Draft) -> Metrics:
    """Writes the encoder as a dual encoder with shared weights, and its vectors of passages and queries.

    Vectors of texts that the earlier run in `previous` has encoded in the same way are copied.
    """
    data = Dataset(dataset)
    if settings.vectors:
        return _take_vectors(context, settings, data, dual_encoder, passage_vectors)
    encoders = _encoders(context, settings)
    # What a vector depends on besides its text. If it differs, no vector is reused.
    apart = {"previous", "tokens_per_batch", "precision", "vectors", "others", *LongPassages.model_fields}
    read_as = settings.model_dump(mode="json", exclude=apart)
    models = {name: str(value) for name, value in read_as.items()}
    models |= {"encoder": context.sources.get("encoder", settings.encoder)}
    models["dtype"] = str(inference_dtype(settings.precision))
    if isinstance(service := encoders.query_encoder, AddressEncoder):
        models = {name: models[name] for name in ("normalize", "vector_type")}
        models["encoder"] = f"{service.address}#{service.model}"
    former = Path(settings.previous) if settings.previous else None
    known = Contents.read(former) if former else Contents({}, {})
    if known.models != models:
        former, known = None, Contents({}, {})

    passages, width = len(data.passages), encoders.passage_encoder.width
    digests = {TEXTS: passage_digests(data.passages)}
    written = write_vectors(
        passage_vectors, encoders.passage_encoder, data, settings, context.progress,
        known=(find(known.digests[TEXTS], digests[TEXTS]), read_vectors(former)) if former else None, former=former,
    )  # fmt: skip
    digests |= written.digests
    for name, rows in ((QUERIES, data.query_rows("train")), (EVALUATED, evaluated_queries(data))):
        texts = data.query_texts(rows)
        digests[name] = text_digests(texts)
        stored, new = create_rows(passage_vectors, name, (len(rows), width)), np.arange(len(rows))
        if former:
            new = carry_over(find(known.digests[name], digests[name]), read_rows(former, name), stored)
        if len(new):
            stored[new] = encode_texts(encoders.query_encoder, [texts[row] for row in new], **settings.speed)
    Contents.write(passage_vectors, models, **digests)
    _save(encoders, dual_encoder, data, passage_vectors)
    reused = f", {passages - written.encoded:,} of the run before" if written.encoded < passages else ""
    for encoder in (encoders.query_encoder, encoders.passage_encoder):
        reused += f"; a {encoder.side} begins with {encoder.prompt!r}" if encoder.prompt else ""
    if settings.in_windows:
        reused += f"; {len(digests[WINDOWS]) - passages:,} further windows of long passages"
    return {
        "encoded": written.encoded,
        "passages_per_second": written.rate,
        "headline": f"{written.encoded:,} passages at {written.rate:,.0f}/s{reused}",
    }


def _encoders(context: Context, settings: Encode) -> DualEncoder:
    """Returns the encoder of the settings; what one at an address gives is kept beside the checkpoints."""
    if is_address(settings.encoder):
        service = AddressEncoder.at(settings.encoder, settings.normalize)
        key = digest_of({"address": service.address, "model": service.model, "unit": service.normalize})
        if folder := context.folder_of_all_calls(f"paid-{key[:20]}"):
            service.paid = Paid(folder, service.width)
        else:
            context.warn(
                "checkpoints are in an object store, where no vector is kept: after a failure all are paid again"
            )
        return DualEncoder(service, service)
    if not settings.encoder:
        raise UserError("encode.encoder is empty: name an encoder, or give encode.vectors")
    read = settings.model_dump(include={*VectorsOfTexts.model_fields, "query_length", "passage_length"})
    return DualEncoder.from_backbone(settings.encoder, share_encoders=True, **read)


def _take_vectors(
    context: Context, settings: Encode, data: Dataset, dual_encoder: Draft, passage_vectors: Draft
) -> Metrics:
    """Writes the vectors of a folder, and the encoder of other texts, whose vectors must be as wide."""
    folder = Path(settings.vectors)
    corpus, queries = (GivenVectors.of(folder, name) for name in GIVEN)
    nobody = AddressEncoder("", settings.vectors, corpus.width, normalize=False)
    encoder = _encoders(context, settings).query_encoder if settings.encoder else nobody
    if len(widths := {corpus.width, queries.width, encoder.width}) > 1:
        wide = ", ".join(map(str, sorted(widths)))
        raise UserError(f"{folder}: the vectors of corpus, queries and encoder are {wide} wide: they must be alike")
    vectors = create_vectors(passage_vectors, len(data.passages), corpus.width, STORED[settings.vector_type])
    corpus.fill(data.passages.ids(), vectors)
    vectors.flush()
    check_range(vectors)
    encoded = 0
    for name, rows in ((QUERIES, data.query_rows("train")), (EVALUATED, evaluated_queries(data))):
        stored = create_rows(passage_vectors, name, (len(rows), queries.width))
        # Questions that were added with a label after the vectors were made.
        new = queries.fill(data.queries.column("query_id").take(pa.array(rows)), stored, every=False)
        if len(new):
            stored[new] = encode_texts(encoder, data.query_texts(rows[new]), **settings.speed)
        encoded += len(new)
    _save(DualEncoder(encoder, encoder), dual_encoder, data, passage_vectors)
    lacking = f"; {encoded:,} queries have no vector there and were encoded" if encoded else ""
    return {"encoded": encoded, "headline": f"{len(vectors):,} passages of {folder.name}{lacking}"}


def _save(encoders: DualEncoder, dual_encoder: Draft, data: Dataset, passage_vectors: Draft) -> None:
    """Writes the encoder; one without weights has the vectors of dev and test queries, which later steps encode."""
    if isinstance(encoders.query_encoder, AddressEncoder):
        texts = data.query_texts(evaluated_queries(data))
        encoders.query_encoder.store(text_digests(texts), read_rows(passage_vectors.path, EVALUATED))
    encoders.save(dual_encoder.path)
