"""Writes a bundle of a dual encoder's vectors as they are, without labels and without a graph."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Recommended
from gnn_encoder.artifacts.arrays import (
    CHUNK,
    STORED,
    VECTORS,
    WINDOW_PASSAGES,
    WINDOWS,
    VectorsFolder,
    check_range,
    create_vectors,
    joined,
    read_rows,
    read_vectors,
)
from gnn_encoder.artifacts.bundle import INDEX, QUERY_ENCODER, VECTOR_PASSAGES
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.settings.outcome import BundleDualEncoder


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
    if passage_vectors and (passage_vectors / f"{WINDOWS}.npy").is_file():
        _write_windows(passage_vectors, bundle)
    elif passage_vectors:
        bundle.share(VectorsFolder.read(passage_vectors), VECTORS)
    else:
        vectors = create_vectors(bundle, m, encoders.passage_encoder.width, STORED[settings.vector_type])
        encoding = context.progress("encoding", m, "passages")
        encode_passages(encoders.passage_encoder, data.passages, vectors, progress=encoding, **settings.speed)
        encoded = {"encoded": m, "passages_per_second": encoding.rate}
        vectors.flush()
        check_range(vectors)
    build_index(read_rows(bundle.path, Path(VECTORS).stem), bundle / INDEX, settings)
    encoders.query_encoder.save(bundle / QUERY_ENCODER)
    if settings.bm25:
        Bundle.add_bm25(bundle, bm25_index)
    Bundle.complete(bundle, data, settings.system)
    rate = f", encoded at {encoded['passages_per_second']:,.0f}/s" if encoded else ""
    return {"passages": m, **encoded, "headline": f"{m:,} passages{rate}"}


def _write_windows(passage_vectors: Path, bundle: Draft) -> None:
    """Writes the vectors of all windows in the order of their passages, and the passage of each."""
    first, later = read_vectors(passage_vectors), read_rows(passage_vectors, WINDOWS)
    of = np.concatenate([np.arange(len(first), dtype=np.int32), read_rows(passage_vectors, WINDOW_PASSAGES)])
    order, both = np.argsort(of, kind="stable"), joined([first, later])
    vectors = create_vectors(bundle, len(of), first.shape[1], first.dtype)
    for start in range(0, len(of), CHUNK):
        vectors[start : start + CHUNK] = both[order[start : start + CHUNK]]
    vectors.flush()
    np.save(bundle / f"{VECTOR_PASSAGES}.npy", of[order], allow_pickle=False)
