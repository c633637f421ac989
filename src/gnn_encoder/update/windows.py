"""The vectors of all windows of long passages, those of unchanged windows from an earlier run."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft
from gnn_encoder.artifacts.arrays import CHUNK, WINDOW_PASSAGES, WINDOWS, check_range, create_rows, read_rows
from gnn_encoder.artifacts.digests import WORDS, find, text_digests
from gnn_encoder.inference.encoding import ReadOptions, encode_texts
from gnn_encoder.inference.late_chunking import encode_late
from gnn_encoder.inference.windows import later_windows
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings.shared import LongPassages
from gnn_encoder.tracking.progress import NewProgress
from gnn_encoder.update.changes import carry_over


def encode_windows(
    encoder: TextEncoder,
    data: Dataset,
    first: np.ndarray,
    settings: LongPassages,
    create: Callable[[int, int], np.ndarray],
    stage: NewProgress,
    *,
    share: slice = slice(None),
    former: Path | None = None,
    **options: Unpack[ReadOptions],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodes the windows of passages after the first one, and returns the vectors of all windows.

    With `late` chunking all are encoded, because a window's vector depends on those around it.

    Args:
        first: vectors [m, d] of the passages' first windows. create: makes the array [v, d] that is filled.
        stage: starts a stage of the step, which counts windows.
        share: m consecutive passages; by default all.
        former: vectors artifact of an earlier run with the same encoder, of which those of equal windows are copied.

    Returns:
        The vectors [v, d] in the order of passages and windows; the place int32 [v] of each one's passage among the m;
        and digests uint64 [v, 2] of the windows' texts, 0 for a first window, which is `first`'s, and with `late`.
    """
    overlap, passages = settings.window_overlap, data.passages
    if settings.long_passages == "late":
        vectors, of = encode_late(encoder, data, overlap, create, stage, share, **options)
        check_range(vectors)
        return vectors, of, np.zeros((len(of), 2), WORDS)
    start, passage_rows = share.indices(len(passages))[0], np.arange(len(first), dtype=np.int32)
    owners, digests = [passage_rows], [np.zeros((len(first), 2), WORDS)]
    for rows, texts in later_windows(encoder, passages, overlap, share):
        owners.append((rows - start).astype(np.int32))
        digests.append(text_digests(texts))
    of = np.concatenate(owners)
    order = np.argsort(of, kind="stable")
    of, contents = of[order], np.concatenate(digests)[order]
    vectors, later = create(len(of), encoder.width), np.flatnonzero(order >= len(first))
    for chunk in range(0, len(first), CHUNK):
        vectors[np.searchsorted(of, passage_rows[chunk : chunk + CHUNK])] = first[chunk : chunk + CHUNK]
    new = np.ones(len(later), bool)
    if former and (known := Contents.read(former).digests.get(WINDOWS)) is not None:
        rows = np.full(len(of), -1, np.int64)
        rows[later] = find(known, contents[later])
        new = np.isin(later, carry_over(rows, read_rows(former, WINDOWS), vectors))
    done, options["progress"] = 0, stage("encoding", int(new.sum()), "windows")
    for _, texts in later_windows(encoder, passages, overlap, share):
        wanted = np.flatnonzero(new[done : done + len(texts)])
        if len(wanted):
            vectors[later[done + wanted]] = encode_texts(encoder, [texts[row] for row in wanted], **options)
        done += len(texts)
    check_range(vectors)
    return vectors, of, contents


def write_windows(
    draft: Draft,
    encoder: TextEncoder,
    data: Dataset,
    first: np.ndarray,
    settings: LongPassages,
    stage: NewProgress,
    share: slice,
    former: Path | None = None,
    **options: Unpack[ReadOptions],
) -> dict[str, np.ndarray]:
    """Writes the vectors of all windows beside the passages' (`encode_windows`); returns their digests, by name."""

    def create(rows: int, width: int) -> np.ndarray:
        return create_rows(draft, WINDOWS, (rows, width), first.dtype)

    _, of, digests = encode_windows(
        encoder, data, first, settings, create, stage, share=share, former=former, **options
    )
    create_rows(draft, WINDOW_PASSAGES, of.shape, of.dtype)[:] = of + share.indices(len(data.passages))[0]
    return {WINDOWS: digests}
