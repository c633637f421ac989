"""Text → vectors: tokenized once into flat arrays, length-sorted token-budget batches, native bf16.

Padding is what a naive encoder wastes most on: batches here hold texts of nearly one length, and as
many of them as fit a budget of tokens, so that every matrix product has about the same, cache-friendly
size. Texts are read in shards of `SHARD` rows, so memory does not grow with the corpus. On a CPU
a text's vector does not depend on what it is encoded with, if it can be packed (`gnn_encoder.models.packed`).
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.inference.replicas import read_batches
from gnn_encoder.inference.tokens import SHARD, Tokens, tokens_at
from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.tracking.progress import Progress

Module = TypeVar("Module", bound=nn.Module)


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
        # A batch runs in parts: with one cast of a weight for all of them, its gradients would be summed in bf16. And a
        # cast made in the gradient cache's first pass, without autograd, would lead no gradient to its weight.
        return torch.autocast(device().type, dtype=torch.bfloat16, cache_enabled=False)
    return nullcontext()


@contextmanager
def inference_copy(model: Module, precision: str) -> Iterator[Module]:
    """The model in eval mode on its device, for inference only; a copy where bf16 would round its weights."""
    dtype, was_training = inference_dtype(precision), model.training
    tokenizer = getattr(model, "tokenizer", None)
    # The tokenizer stays one: its vocabulary takes longer to copy than the weights.
    ready = model if dtype is torch.float32 else copy.deepcopy(model, {id(tokenizer): tokenizer})
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
    pad = encoder.tokenizer.pad_token_id or 0

    def store(rows: np.ndarray, vectors: np.ndarray) -> None:
        out[rows] = vectors
        if progress:
            progress.advance(len(rows))

    with inference_copy(encoder, precision) as model:
        batches = list(budget_batches(tokens.lengths, tokens_per_batch))
        read_batches(model, batches, lambda rows: tokens.padded(rows, pad), store, tokens_per_batch)


def encode_question(encoder: TextEncoder, text: str) -> np.ndarray:
    """Vector fp32 [1, d] of a question that somebody waits for: alone, in fp32, in a batch of its own length."""
    tokens = Tokens.of(encoder.tokenizer, [text], encoder.max_length)
    with inference_copy(encoder, "fp32") as model:
        ids, mask = (torch.from_numpy(array).to(device()) for array in tokens.padded(np.zeros(1, np.int64), 0))
        vectors: np.ndarray = model(ids, mask).cpu().numpy()
    return vectors


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
