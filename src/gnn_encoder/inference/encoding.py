"""Encodes texts to vectors in length-sorted batches of limited token count.

Padding dominates the cost of naive batching. Batches here hold texts of similar length, as many as the token budget
allows, so that every matrix product has about the same, cache-friendly size. Texts are read in shards of `SHARD` rows,
so memory does not grow with the corpus. If the backbone supports packed texts (`gnn_encoder.models.packed`), a text's
vector on a CPU is the same in every batch.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch import nn

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.inference.replicas import read_batches
from gnn_encoder.inference.tokens import SHARD, Tokens, tokens_at
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.models.packed import is_packed
from gnn_encoder.tracking.progress import Progress

Module = TypeVar("Module", bound=nn.Module)
TIMES_TOKENS = {"cpu": 1, "cuda": 8}
"""A batch has so many times `tokens_per_batch` tokens, or less and a multiple of it: on a GPU the calls of a batch cost
milliseconds, and the matrix products of 4,096 tokens half a millisecond (MiniLM on an H200, computed)."""
PASSAGES = 1024
"""Passages in memory at a time that are sent to a service (`models.address`)."""
FEW_TOKENS = 32
"""A packed batch that is not `filled` has a multiple of this number of tokens, so that products have few shapes."""
_counting, _blocks, _allowed = Lock(), 0, True
"""`attention_of_any_shape`: open blocks in all threads, and whether cuDNN was allowed before the first of them."""


class ReadOptions(TypedDict, total=False):
    """How a model reads many texts or pairs: `precision` ("auto"), `tokens_per_batch` (4096; see `TIMES_TOKENS`),
    `filled` (True), and `progress`, which counts the texts or pairs.

    filled: each packed batch is padded to `tokens_per_batch` tokens, so that a text's vector on a CPU has the same bits
    in every batch. Not filled, a few short texts take the time of their own tokens, and their last bits depend on the
    batch."""

    precision: str
    tokens_per_batch: int
    filled: bool
    progress: Progress | None


def budget_batches(lengths: np.ndarray, tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Yields batches of row numbers, longest texts first; each padded batch has at most `tokens_per_batch` tokens.

    With the longest texts first, a batch that does not fit in memory fails at once and not at the end.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, int(tokens_per_batch // max(int(lengths[order[start]]), 1)))
        yield order[start : start + size]
        start += size


def fast_bf16() -> bool:
    """Whether the hardware computes matrix products in bf16 faster than in fp32.

    Emulated products are slower. So are those of Intel's AVX-512 without AMX, which virtual machines may hide: 163
    GFLOP/s against 281 (Emerald Rapids, two cores, torch 2.13), and a MiniLM encodes 5,500 tokens a second against
    8,800. With AMX bf16 is several times as fast, and AMD's AVX-512 is about twice as fast.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(has.get("amx_bf16") or (has.get("avx512_bf16") and "Intel" not in has.get("cpu_name", "")))


def inference_dtype(precision: str) -> torch.dtype:
    """The type of weights for inference. `auto`: bf16 where it is faster (`fast_bf16`), otherwise fp32."""
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and fast_bf16()) else torch.float32


def autocast(precision: str) -> AbstractContextManager[Any]:
    """The context of a training step: bf16 autocast, or no autocast for fp32."""
    if inference_dtype(precision) is torch.bfloat16:
        # Autocast's weight cache is off for two reasons. Batch parts that share a cast sum their gradients in bf16.
        # A cast made in the gradient cache's first pass, without autograd, passes no gradient to its weight.
        return torch.autocast(device().type, dtype=torch.bfloat16, cache_enabled=False)
    return nullcontext()


@contextmanager
def attention_of_any_shape() -> Iterator[None]:
    """In the block, attention on a GPU is not computed by cuDNN, which prepares a plan for each new shape.

    Batches here differ in shape. In a training step of 0.34 s in bf16 on an H200 (torch 2.11, MiniLM, 64 queries,
    at most 192 tokens), the plans took 0.22 s and all kernels 0.03 s. torch has one switch for
    the whole process: the first open block of all threads turns it off, and the end of the last one restores it.
    """
    global _blocks, _allowed
    with _counting:
        if not _blocks:
            _allowed = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _blocks += 1
    try:
        yield
    finally:
        with _counting:
            _blocks -= 1
            if not _blocks:
                torch.backends.cuda.enable_cudnn_sdp(_allowed)


@contextmanager
def inference_copy(model: Module, precision: str) -> Iterator[Module]:
    """The model in eval mode on its device, for inference. bf16 uses a copy, so that the model keeps exact weights.

    The copy's modules that the model names in `full_precision` stay fp32.
    """
    dtype, was_training = inference_dtype(precision), model.training
    tokenizer = getattr(model, "tokenizer", None)
    ready = model
    if dtype is not torch.float32:
        # The tokenizer is shared: copying the vocabulary takes longer than copying the weights. These are copied in
        # their new type at once: a copy in fp32 of 600 million would take 2.4 GB more.
        known: dict[int, Any] = {id(tokenizer): tokenizer}
        known |= {id(p): nn.Parameter(p.detach().to(device(), dtype), requires_grad=False) for p in model.parameters()}
        ready = copy.deepcopy(model, known)
        packed: list[Any] = [part for part in ready.modules() if is_packed(part)]  # in training
        for part in packed:
            part.set_attn_implementation("sdpa")
    ready.to(device=device())  # and no type: rotary frequencies are not parameters, and stay fp32
    for name in getattr(model, "full_precision", ()) if ready is not model else ():
        setattr(ready, name, copy.deepcopy(getattr(model, name)).to(device()))
    ready.eval()
    try:
        with torch.inference_mode(), attention_of_any_shape():
            yield ready
    finally:
        model.train(was_training)


def read_rows(
    model: nn.Module,
    lengths: np.ndarray,
    padded: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    store: Callable[..., None],
    *,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    filled: bool = True,
    progress: Progress | None = None,
) -> None:
    """Calls `store(rows, *results)` with a model's results for n texts or pairs of `lengths` [n] tokens, in any order.

    `model`, `padded`: see `read_batches`.
    """

    def store_and_count(rows: np.ndarray, *results: np.ndarray) -> None:
        store(rows, *results)
        if progress:
            progress.advance(len(rows))

    times = TIMES_TOKENS[device().type]
    with inference_copy(model, precision) as ready:
        batches = list(budget_batches(lengths, times * tokens_per_batch))
        if filled and times == 1:
            size = {"whole": tokens_per_batch}
        else:
            size = {"whole": 0, "multiple": tokens_per_batch if filled else FEW_TOKENS}
        read_batches(ready, batches, padded, store_and_count, **size)


def encode_tokens(encoder: TextEncoder, tokens: Tokens, out: np.ndarray, **options: Unpack[ReadOptions]) -> None:
    """Fills `out` [n, d] with the vectors of n tokenized texts."""
    pad = encoder.tokenizer.pad_token_id or 0
    read_rows(encoder, tokens.lengths, lambda rows: tokens.padded(rows, pad), out.__setitem__, **options)


def encode_question(encoder: TextEncoder, text: str) -> np.ndarray:
    """The fp32 vector [1, d] of one query, encoded alone, in fp32 and without padding."""
    if isinstance(encoder, AddressEncoder):
        return encoder.encode([text])
    tokens = Tokens.of(encoder.tokenizer, [text], encoder.max_length, encoder.prompt)
    with inference_copy(encoder, "fp32") as model:
        ids, mask = (torch.from_numpy(array).to(device()) for array in tokens.padded(np.zeros(1, np.int64), 0))
        vectors: np.ndarray = model(ids, mask).cpu().numpy()
    return vectors


def encode_texts(encoder: TextEncoder, texts: Sequence[str], **options: Unpack[ReadOptions]) -> np.ndarray:
    """Vectors fp32 [n, d] of texts."""
    out = np.empty((len(texts), encoder.width), dtype=np.float32)
    for start in range(0, len(texts), SHARD):
        part = slice(start, start + SHARD)
        if isinstance(encoder, AddressEncoder):
            out[part] = encoder.encode(texts[part])
            continue
        tokens = Tokens.of(encoder.tokenizer, texts[part], encoder.max_length, encoder.prompt)
        encode_tokens(encoder, tokens, out[part], **options)
    return out


def encode_passages(
    encoder: TextEncoder,
    passages: PassageTable,
    out: np.ndarray,
    *,
    rows: np.ndarray | None = None,
    first: int = 0,
    **options: Unpack[ReadOptions],
) -> None:
    """Fills `out` [m, d], memory-mapped or not, with the vectors of all passages (title and text), or of `rows`.

    first: the passage row of the first vector in `out`, for an array of a part of the passages.
    """
    rows = np.arange(len(passages)) if rows is None else rows
    encoding = options.get("progress")
    if isinstance(encoder, AddressEncoder):
        for start in range(0, len(rows), PASSAGES):
            batch = rows[start : start + PASSAGES]
            out[batch - first] = encoder.encode(passages.take(batch).full_texts())
            if encoding:
                encoding.advance(len(batch))
        return
    tokenizing = partial(Progress, encoding.step) if encoding else None
    tokens, index = tokens_at(
        encoder.tokenizer, passages, rows, encoder.max_length, progress=tokenizing, prompt=encoder.prompt
    )
    for start in range(0, len(rows), SHARD):
        part = slice(start, start + SHARD)
        vectors = np.empty((len(rows[part]), encoder.width), np.float32)
        encode_tokens(encoder, tokens.take(index[part]), vectors, **options)
        out[rows[part] - first] = vectors
