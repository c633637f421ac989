"""The vectors of passages in an artifact: encoded, copied from an earlier run, or joined from several tasks'."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, read_manifest
from gnn_encoder.artifacts.arrays import (
    STORED,
    VECTORS,
    WINDOW_PASSAGES,
    WINDOWS,
    Rows,
    check_range,
    create_vectors,
    write_joined,
)
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.graph import BuildGraph, FindNeighbours
from gnn_encoder.tracking.progress import NewProgress
from gnn_encoder.update.changes import carry_over
from gnn_encoder.update.windows import write_windows


@dataclass(frozen=True)
class PassageVectors:
    """What was written. `vectors` [r, d]: of the passages, or of their first windows; `digests`: of all windows, by
    name, empty if passages are cut; `encoded`: passages that were encoded, `rate` of them per second."""

    vectors: np.ndarray
    digests: dict[str, np.ndarray]
    encoded: int
    rate: float


def write_vectors(
    draft: Draft,
    encoder: TextEncoder,
    data: Dataset,
    settings: Encode | BuildGraph | FindNeighbours,
    stage: NewProgress,
    *,
    share: slice = slice(None),
    known: tuple[np.ndarray, Rows] | None = None,
    former: Path | None = None,
) -> PassageVectors:
    """Writes the vectors of consecutive passages, and those of all their windows if the settings want them.

    Args:
        stage: starts a stage of the step. share: the passages, by default all.
        known: vectors [m', d] of an earlier run, and before them the row int64 [r] there of each passage, -1: new.
        former: vectors artifact of that run, for the windows.

    Raises:
        UserError: the storage type cannot hold a number.
    """
    start, stop, _ = share.indices(len(data.passages))
    vectors = create_vectors(draft, stop - start, encoder.width, STORED[settings.vector_type])
    new = start + (carry_over(*known, vectors) if known else np.arange(stop - start))
    progress = stage("encoding", len(new), "passages")
    encode_passages(encoder, data.passages, vectors, rows=new, first=start, progress=progress, **settings.speed)
    vectors.flush()
    check_range(vectors, first=start)
    rate, digests = progress.rate, {}
    if settings.in_windows:
        digests = write_windows(draft, encoder, data, vectors, settings, stage, share, former, **settings.speed)
    return PassageVectors(vectors, digests, len(new), rate)


def join_vectors(draft: Draft, merged: Path) -> PassageVectors:
    """Writes what `write_vectors` wrote for the tasks of a merged artifact, as one task writes it.

    It is a copy, and the only one: bundles have the vectors in one file, and share this one.
    """
    manifest, digests = read_manifest(merged, "vectors"), Contents.read(merged).digests
    vectors = write_joined(draft, merged, Path(VECTORS).stem)
    for name in (WINDOWS, WINDOW_PASSAGES) if WINDOWS in digests else ():
        write_joined(draft, merged, name)
    encoded, rate = (manifest.metrics[name] for name in ("encoded", "encoded_per_second"))
    return PassageVectors(vectors, digests, encoded, rate)
