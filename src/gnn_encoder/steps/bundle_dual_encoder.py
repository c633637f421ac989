"""Writes a bundle of a dual encoder's vectors as they are, without labels and without a graph."""

from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Recommended
from gnn_encoder.artifacts.arrays import STORED, VECTORS, check_range, create_vectors, read_rows
from gnn_encoder.artifacts.bundle import INDEX, QUERY_ENCODER, VECTOR_PASSAGES
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.settings.outcome import BundleDualEncoder
from gnn_encoder.update.windows import encode_windows


@step(bundle="bundle")
def bundle_dual_encoder(
    context: Context,
    settings: BundleDualEncoder,
    dataset: Path,
    dual_encoder: Path,
    bundle: Draft,
    bm25_index: Path | None = None,
    passage_vectors: Path | None = None,
    recommendation: Path | None = None,
) -> Metrics:
    """Takes the dual encoder's vectors of the passages if they are given, otherwise encodes the passages.

    With a recommendation of another system, the bundle has no files.
    """
    if recommendation and Recommended.read(recommendation).facts["dense"] != settings.system:
        return {"headline": "not recommended"}
    data, encoders = Dataset(dataset), DualEncoder.load(dual_encoder)
    m, encoded = len(data.passages), {}
    if passage_vectors:
        Bundle.add_vectors(bundle, passage_vectors)
    else:
        encoder, dtype = encoders.passage_encoder, STORED[settings.vector_type]
        create = partial(create_vectors, bundle, dtype=dtype)
        create_first = partial(scratch, dtype=dtype, folder=bundle.path) if settings.in_windows else create
        vectors = create_first(m, encoder.width)
        encoding = context.progress("encoding", m, "passages")
        encode_passages(encoder, data.passages, vectors, progress=encoding, **settings.speed)
        encoded = {"encoded": m, "passages_per_second": encoding.rate}
        check_range(vectors)
        if settings.in_windows:
            _, of, _ = encode_windows(encoder, data, vectors, settings, create, context.progress, **settings.speed)
            np.save(bundle / f"{VECTOR_PASSAGES}.npy", of, allow_pickle=False)
    build_index(read_rows(bundle.path, Path(VECTORS).stem), bundle / INDEX, settings)
    encoders.query_encoder.save(bundle / QUERY_ENCODER)
    if settings.bm25:
        Bundle.add_bm25(bundle, bm25_index)
    Bundle.complete(bundle, data, settings.system)
    rate = f", encoded at {encoded['passages_per_second']:,.0f}/s" if encoded else ""
    return {"passages": m, **encoded, "headline": f"{m:,} passages{rate}"}
