"""A corpus as tokens and as vectors: tokens are made once per tokenizer and length, and memory-mapped after.

Training, scoring and four encodings read the same passages: the first of them tokenizes, a row group in memory at
a time. The files are a cache: what is deleted is made again.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.context import TOKENS
from gnn_encoder.encoding import SHARD, Tokens, encode_tokens
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.progress import Progress

IDS, OFFSETS, PARTIAL = "ids.bin", "offsets.npy", ".partial-"
FEW = 10
"""Less than one passage in so many is tokenized by itself, without a file of them all."""


def passage_tokens(tokenizer: Any, passages: PassageTable, max_length: int) -> Tokens:
    """All passages, title and text, with special tokens and cut to `max_length`; ids int32 are memory-mapped.

    The file lies in the folder `GNN_ENCODER_TOKENS`; without one it is unlinked, for this process alone.
    """
    root = os.environ.get(TOKENS)
    if not root:
        with tempfile.TemporaryDirectory() as name:
            _write(Path(name), tokenizer, passages, max_length)
            return _read(Path(name))
    key = {"passages": passages.digest, "tokenizer": _digest(tokenizer), "max_length": max_length}
    folder = Path(root) / digest_of(key)[:20]
    if not folder.is_dir():
        Path(root).mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=root))
        try:
            _write(partial, tokenizer, passages, max_length)
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # else another process was faster
                raise
    return _read(folder)


def tokens_at(tokenizer: Any, passages: PassageTable, rows: np.ndarray, max_length: int) -> tuple[Tokens, np.ndarray]:
    """Tokens of the passages `rows` [r], and where among them each lies: of all passages unless `rows` are few."""
    if len(rows) > len(passages) // FEW:
        return passage_tokens(tokenizer, passages, max_length), rows
    shards = (rows[start : start + SHARD] for start in range(0, len(rows), SHARD))
    parts = [Tokens.of(tokenizer, passages.take(shard).full_texts(), max_length) for shard in shards]
    return Tokens.join(parts), np.arange(len(rows))


def encode_passages(
    encoder: TextEncoder,
    passages: PassageTable,
    out: np.ndarray,
    *,
    rows: np.ndarray | None = None,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> None:
    """Fill `out` [m, d], memory-mapped or not, with the vectors of all passages (title and text), or of `rows`."""
    rows = np.arange(len(passages)) if rows is None else rows
    tokens, places = tokens_at(encoder.tokenizer, passages, rows, encoder.max_length)
    for start in range(0, len(rows), SHARD):
        part = slice(start, start + SHARD)
        vectors = np.empty((len(rows[part]), encoder.width), np.float32)
        encode_tokens(
            encoder, tokens.take(places[part]), vectors,
            precision=precision, tokens_per_batch=tokens_per_batch, progress=progress,
        )  # fmt: skip
        out[rows[part]] = vectors


def _write(folder: Path, tokenizer: Any, passages: PassageTable, max_length: int) -> None:
    sizes = [np.zeros(1, np.int64)]
    with (folder / IDS).open("wb") as file:
        for batch in passages.stream():
            part = Tokens.of(tokenizer, batch.full_texts(), max_length)
            part.ids.tofile(file)
            sizes.append(part.lengths)
    np.save(folder / OFFSETS, np.cumsum(np.concatenate(sizes)), allow_pickle=False)


def _read(folder: Path) -> Tokens:
    ids, offsets = folder / IDS, np.load(folder / OFFSETS)
    return Tokens(np.memmap(ids, np.int32, mode="r") if ids.stat().st_size else np.zeros(0, np.int32), offsets)


def _digest(tokenizer: Any) -> str:
    # How it last cut and padded is part of its state, and none of its identity.
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return digest_of({name: value for name, value in state.items() if name not in ("truncation", "padding")})
