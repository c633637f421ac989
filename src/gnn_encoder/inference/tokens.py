"""Token ids of texts, without padding. A corpus is tokenized once per tokenizer and length, and memory-mapped.

Training, scoring and four encodings read the same passages. The first reader tokenizes the corpus, with a batch in
memory at a time. The files are a cache: deleted or damaged files are written again.
"""

import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from gnn_encoder.artifacts import Passages, PassageTable
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.folder import digest_of, drafting, read_manifest
from gnn_encoder.errors import UserError
from gnn_encoder.tracking.context import TOKENS
from gnn_encoder.tracking.progress import NewProgress

SHARD = 65_536
"""Texts tokenized together."""
GATHERED = 20_000
"""Texts of a stream with ids in memory at a time."""
IDS, OFFSETS, PARTIAL = "ids.bin", "offsets.npy", ".partial-"
FEW = 10
"""If at most one passage in `FEW` is needed, only the needed passages are tokenized, without a file of all passages."""


class Tokens:
    """Token ids of n texts without padding: `ids` int32 [total], `offsets` int64 [n + 1]."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def of(cls, tokenizer: Any, texts: Sequence[str], max_length: int, prompt: str = "") -> "Tokens":
        """Tokenize with special tokens, the prompt before each text, cut to `max_length`; a shard at a time."""
        shards = ([prompt + text for text in texts[start : start + SHARD]] for start in range(0, len(texts), SHARD))
        return cls.join(
            [cls.flatten(tokenizer(s, truncation=True, max_length=max_length)["input_ids"]) for s in shards]
        )

    @classmethod
    def flatten(cls, sequences: Sequence[Sequence[int] | np.ndarray]) -> "Tokens":
        """Makes `Tokens` from one list of ids per text."""
        offsets = _offsets([len(s) for s in sequences])
        ids = np.fromiter((i for s in sequences for i in s), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets)

    @classmethod
    def gather(cls, sequences: Iterable[Sequence[int]]) -> "Tokens":
        """Reads a stream of one list of ids per text, `GATHERED` texts in memory at a time; ids are memory-mapped."""
        ids, lengths = array("i"), array("q")
        with tempfile.TemporaryFile() as file:
            for sequence in sequences:
                lengths.append(len(sequence))
                ids.extend(sequence)
                if len(lengths) % GATHERED == 0:
                    ids.tofile(file)
                    del ids[:]
            ids.tofile(file)
            file.flush()
            return cls(_mapped(file), _offsets(lengths))

    @classmethod
    def join(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of all parts, in order."""
        parts = parts or [cls.flatten([])]
        return cls(
            np.concatenate([part.ids for part in parts]), _offsets(np.concatenate([part.lengths for part in parts]))
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 [n]."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "Tokens":
        """The texts at `rows`, in the order of `rows`."""
        ids = self.ids[ranges(self.offsets[rows], self.offsets[rows + 1])]
        return Tokens(ids, _offsets(self.lengths[rows]))

    def padded(self, rows: np.ndarray, pad: int, *, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask int64 [b, l] of the texts at `rows`, padded to the longest text, and at least to one token.

        The padding is on the right, or on the left.
        """
        starts, lengths = self.offsets[rows][:, None], self.lengths[rows][:, None]
        width = int(lengths.max(initial=1))
        position = np.arange(width) - (width - lengths if left else 0)
        mask = (position >= 0) & (position < lengths)
        ids = np.full(mask.shape, pad, dtype=np.int64)
        ids[mask] = self.ids[(starts + position)[mask]]
        return ids, mask.astype(np.int64)


def passage_tokens(
    tokenizer: Any,
    passages: PassageTable,
    max_length: int,
    titles: bool = True,
    progress: NewProgress | None = None,
    prompt: str = "",
) -> Tokens:
    """All passages with special tokens, cut to `max_length`; ids int32 are memory-mapped.

    A passage is the prompt, its title and text; without `titles`, its text alone, or its title if it has no text. The
    file is cached in the folder `GNN_ENCODER_TOKENS`; without that variable it is unlinked.
    """

    def write(folder: Path) -> None:
        lengths = [np.zeros(0, np.int64)]
        counted = progress("tokenizing", len(passages), "passages") if progress else None
        with (folder / IDS).open("wb") as file:
            for batch in passages.stream():
                part = Tokens.of(tokenizer, _texts(batch, titles), max_length, prompt)
                part.ids.tofile(file)
                lengths.append(part.lengths)
                if counted:
                    counted.advance(len(part))
        np.save(folder / OFFSETS, _offsets(np.concatenate(lengths)), allow_pickle=False)

    root = os.environ.get(TOKENS)
    if not root:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name))
            return _read(Path(name))
    key = {"passages": passages.digest, "tokenizer": _digest(tokenizer), "max_length": max_length, "titles": titles}
    key |= {"prompt": prompt} if prompt else {}
    folder = Path(root) / digest_of(key)[:20]
    try:
        read_manifest(folder, "tokens")
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)  # missing or damaged
        Path(root).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=root) as parent:
            with drafting(Path(parent) / folder.name, "tokens") as draft:
                write(draft.path)
            try:
                draft.target.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return _read(folder)


def tokens_at(
    tokenizer: Any,
    passages: PassageTable,
    rows: np.ndarray,
    max_length: int,
    titles: bool = True,
    progress: NewProgress | None = None,
    prompt: str = "",
) -> tuple[Tokens, np.ndarray]:
    """Tokens of all passages, or only of `rows` [r] if these are few, and the index [r] in the tokens of each row.

    `titles` and `prompt` as in `passage_tokens`; `progress` as well, where all are read.
    """
    if len(rows) > len(passages) // FEW:
        return passage_tokens(tokenizer, passages, max_length, titles, progress, prompt), rows
    shards = (rows[start : start + SHARD] for start in range(0, len(rows), SHARD))
    parts = [Tokens.of(tokenizer, _texts(passages.take(shard), titles), max_length, prompt) for shard in shards]
    return Tokens.join(parts), np.arange(len(rows))


def _texts(passages: Passages, titles: bool) -> list[str]:
    return passages.full_texts() if titles else passages.bare_texts()


def _read(folder: Path) -> Tokens:
    with (folder / IDS).open("rb") as file:
        return Tokens(_mapped(file), np.load(folder / OFFSETS))


def _mapped(file: IO[bytes]) -> np.ndarray:
    """The ids int32 in an open file, memory-mapped unless the file is empty."""
    size = os.fstat(file.fileno()).st_size
    return np.memmap(file, np.int32, mode="r") if size else np.empty(0, np.int32)


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _digest(tokenizer: Any) -> str:
    # The state includes the last truncation and padding, which do not identify a tokenizer.
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return digest_of({name: value for name, value in state.items() if name not in ("truncation", "padding")})
