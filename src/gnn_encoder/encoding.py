"""Text → vectors: tokenized once into flat arrays, length-sorted token-budget batches, native bf16.

Padding is what a naive encoder wastes most on: batches here hold texts of nearly one length, and as
many of them as fit a budget of tokens, so that every matrix product has about the same, cache-friendly
size. Texts are read in shards of `SHARD` rows, so memory does not grow with the corpus.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.progress import Progress

SHARD = 65_536
"""Rows tokenized and sorted together."""

Module = TypeVar("Module", bound=nn.Module)


class Tokens:
    """Token ids of n texts without padding: `ids` int32 [total], `offsets` int64 [n + 1]."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def of(cls, tokenizer: Any, texts: Sequence[str], max_length: int) -> "Tokens":
        """Tokenize with special tokens, cut to `max_length`; a shard at a time."""
        shards = (list(texts[start : start + SHARD]) for start in range(0, len(texts), SHARD))
        return cls.join(
            [cls.flatten(tokenizer(s, truncation=True, max_length=max_length)["input_ids"]) for s in shards]
        )

    @classmethod
    def flatten(cls, sequences: Sequence[Sequence[int] | np.ndarray]) -> "Tokens":
        """From one list of ids per text."""
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(s) for s in sequences], out=offsets[1:])
        ids = np.fromiter((i for s in sequences for i in s), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets)

    @classmethod
    def join(cls, parts: Sequence["Tokens"]) -> "Tokens":
        """The texts of all parts, in order."""
        sizes = np.concatenate([np.diff(part.offsets) for part in parts] or [np.zeros(0, np.int64)])
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return cls(np.concatenate([part.ids for part in parts] or [np.zeros(0, np.int32)]), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 [n]."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "Tokens":
        """The texts at `rows`, in that order."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(self.lengths[rows], out=offsets[1:])
        places = np.repeat(self.offsets[rows] - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
        return Tokens(self.ids[places], offsets)

    def padded(self, rows: np.ndarray, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and mask int64 [b, l] of the texts at `rows`, padded to the longest of them."""
        starts, lengths = self.offsets[rows], self.lengths[rows]
        columns = np.arange(int(lengths.max(initial=0)))
        mask = columns < lengths[:, None]
        ids = np.full(mask.shape, pad, dtype=np.int64)
        ids[mask] = self.ids[(starts[:, None] + columns)[mask]]
        return ids, mask.astype(np.int64)


def budget_batches(lengths: np.ndarray, tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Row numbers in batches, longest texts first, each padded to at most `tokens_per_batch` tokens.

    Longest first: what does not fit in memory fails at once and not at the end.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, int(tokens_per_batch // max(int(lengths[order[start]]), 1)))
        yield order[start : start + size]
        start += size


def native_bf16() -> bool:
    """Whether bf16 matrix products run in hardware here (elsewhere they are emulated, and slower than fp32)."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probe: Callable[[], bool] | None = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe())


def inference_dtype(precision: str) -> torch.dtype:
    """The weights' type for inference: `auto` is bf16 where native, else fp32."""
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and native_bf16()) else torch.float32


def autocast(precision: str) -> AbstractContextManager[Any]:
    """The training context of a precision: bf16 autocast, or nothing for fp32."""
    if inference_dtype(precision) is torch.bfloat16:
        # A batch runs in parts: with one cast of a weight for all of them, its gradients would be summed in bf16.
        return torch.autocast(device().type, dtype=torch.bfloat16, cache_enabled=False)
    return nullcontext()


@contextmanager
def inference_copy(model: Module, precision: str) -> Iterator[Module]:
    """The model in eval mode on its device, for inference only; a copy where bf16 would round its weights."""
    dtype, was_training = inference_dtype(precision), model.training
    ready = model if dtype is torch.float32 else copy.deepcopy(model)
    ready.to(device=device(), dtype=dtype).eval()
    try:
        with torch.inference_mode():
            yield ready
    finally:
        model.train(was_training)


def encode_tokens(
    encoder: TextEncoder,
    tokens: Tokens,
    out: np.ndarray,
    *,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> None:
    """Fill `out` [n, d] with the vectors of n tokenized texts."""
    where = device()
    pad = encoder.tokenizer.pad_token_id or 0
    with inference_copy(encoder, precision) as model:
        for rows in budget_batches(tokens.lengths, tokens_per_batch):
            ids, mask = (torch.from_numpy(a).to(where) for a in tokens.padded(rows, pad))
            out[rows] = model(ids, mask).float().cpu().numpy()
            if progress:
                progress.advance(len(rows))


def encode_texts(
    encoder: TextEncoder,
    texts: Sequence[str],
    *,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> np.ndarray:
    """Vectors fp32 [n, d] of texts."""
    out = np.empty((len(texts), encoder.width), dtype=np.float32)
    for start in range(0, len(texts), SHARD):
        tokens = Tokens.of(encoder.tokenizer, texts[start : start + SHARD], encoder.max_length)
        shard = out[start : start + SHARD]
        encode_tokens(encoder, tokens, shard, precision=precision, tokens_per_batch=tokens_per_batch, progress=progress)
    return out
