"""Packs texts of several lengths into one row of tokens, without padding.

A transformer reads the row [1, t] as one text. Position numbers restart at each text, and a replacement attention keeps
each token inside its text. `first_position` compares packed with padded results on random texts. From that it finds
whether packing works on a backbone, and the number of the first position. The same test covers the GPU kernel.

A row is filled up to a fixed number of tokens, so that every matrix product has the same shape. The vector of a text is
then bit-identical in every batch (measured on CPUs only). The transformers library packs texts only for FlashAttention,
on GPUs. On one core, attention over 60 texts of 40 to 99 tokens (12 heads of 32) takes 30 ms here, 100 ms with nested
tensors, 560 ms with a mask over the whole row.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "gnn_encoder_packed"
"""Name of the replacement attention in transformers."""
PROBE_LENGTHS = (160, 31, 2)
"""Tokens of each random text, cut to the backbone's maximum. The first text is longer than local attention windows."""
TOLERANCE, TOLERANCE_FP32 = 0.2, 2e-4
"""Packing is accepted if each token's error is below this share of the largest error of attention across texts. bf16
alone: 0.02. A convolution that reads the end of the text before changes few tokens, so no token may be wrong."""
CHANGES = ("softcap", "s_aux", "position_bias", "head_mask")
"""Arguments of an attention that change its weights, which no attention here does."""
CPU_STEP = 16
"""Attention on a CPU pads texts to multiples of this number; in bf16 other lengths take up to twice as long."""

Attention = Callable[..., Tensor]
"""Attention inside each text of a row. Arguments: query [t, h, e], key and value [t, g, e], `bounds` and `longest` of a
`Row`, the options `scale`, `window_size` and `enable_gqa` of torch's `varlen_attn`, and in training `dropout`, the rate
of the weights. Result: [t, h, e]."""
Packed = tuple[np.ndarray, np.ndarray, np.ndarray, int, *tuple[np.ndarray, ...]]
"""The arrays that `pack` returns."""
_first_positions: WeakKeyDictionary[Any, dict[tuple[Any, ...], int | None]] = WeakKeyDictionary()
"""Backbone → the results of `first_position`, by attention, device and type of weights."""


class CannotPack(Exception):
    """Raised if a backbone cannot read packed texts."""


def packed_attention(where: torch.device, dtype: torch.dtype) -> Attention | None:
    """`cpu_attention` on a CPU; torch's kernel in half precision on NVIDIA GPUs from Ampere on; otherwise None."""
    if where.type == "cpu":
        return cpu_attention
    half = dtype in (torch.bfloat16, torch.float16)
    if where.type == "cuda" and half and torch.version.cuda and torch.cuda.get_device_capability(where) >= (8, 0):
        return _gpu_attention
    return None


def _gpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    *,
    enable_gqa: bool,
    dropout: float = 0.0,
    **options: Any,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if query.shape[-1] % 8 or query.shape[-1] > 256:
        raise CannotPack(f"the GPU's kernel takes no attention heads of width {query.shape[-1]}")
    # At a longest text of one token, the kernel may reshape the query from one token per text to groups of heads. A
    # filled row has more tokens than texts, so the reshape would fail.
    longest = max(longest, 2)
    if torch.is_autocast_enabled("cuda"):  # rotated queries and keys may be fp32
        query, key, value = (x.to(torch.get_autocast_dtype("cuda")) for x in (query, key, value))
    if dropout:  # of which `varlen_attn`, a call of the same kernel, knows nothing
        left, right = options["window_size"]
        kernel = partial(torch.ops.aten._flash_attention_forward, return_debug_mask=False, scale=options["scale"])
        masked: Tensor = kernel(
            query, key, value, bounds, bounds, longest, longest, dropout, (left, right) == (-1, 0),
            window_size_left=left, window_size_right=right,
        )[0]  # fmt: skip
        return masked
    if enable_gqa:
        if "enable_gqa" not in inspect.signature(varlen_attn).parameters:  # torch 2.11
            raise CannotPack("the GPU's kernel of this torch takes as many heads of keys as of queries")
        options["enable_gqa"] = True
    # The result after the last text is undefined; no text uses it.
    result: Tensor = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)  # type: ignore[assignment]
    return result


def cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    longest: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
    dropout: float = 0.0,
) -> Tensor:
    """`Attention` on a CPU; the result is zero after the last text.

    Adjacent texts of about the same length run together. A text's padded length depends only on its own length.
    """
    result, lengths = torch.zeros_like(query), bounds.diff()
    widths, counts = (-(-lengths // CPU_STEP) * CPU_STEP).unique_consecutive(return_counts=True)
    first = 0
    for width, texts in zip(widths.tolist(), counts.tolist(), strict=True):
        last, positions = first + texts, torch.arange(width)
        begins, text_lengths = bounds[first:last, None], lengths[first:last, None]
        inside = positions < text_lengths
        # A text is padded with its last token, which is masked.
        rows = (begins + positions.minimum(text_lengths - 1)).flatten()
        q, k, v = (x.index_select(0, rows).unflatten(0, inside.shape).transpose(1, 2) for x in (query, key, value))
        # A text's padding comes after it, where a causal model does not look.
        causal = window_size[1] == 0 and not 0 <= window_size[0] < int(width) - 1
        mask = None if causal else _attention_mask(inside, *window_size)
        mixed = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=enable_gqa
        )
        result[bounds[first] : bounds[last]] = mixed.transpose(1, 2)[inside]
        first = last
    return result


def _attention_mask(inside: Tensor, left: int, right: int) -> Tensor | None:
    """The mask of texts `inside` [n, l], windows of `left`, `right` tokens (-1: no limit); None: nothing is masked."""
    length = inside.shape[1]
    left, right = (length if side < 0 else min(side, length) for side in (left, right))
    if min(left, right) >= length - 1:
        return None if inside.all() else inside[:, None, None]
    position = torch.arange(length)
    apart = position[None] - position[:, None]
    return inside[:, None, None] & (apart >= -left) & (apart <= right)


def pack(
    first_position: int,
    ids: np.ndarray,
    mask: np.ndarray,
    *types: np.ndarray,
    whole: int = 0,
    multiple: int = 1,
    closed: bool = False,
) -> Packed:
    """Returns the arrays of a `Row` for a padded batch [b, l]: ids, positions, bounds, longest, and types if given.

    The row is padded to `whole` tokens, and to a multiple of `multiple`; the added tokens belong to no text. `closed`,
    for training: they are one more text, of a token at least, because what a GPU's kernel leaves at tokens of no text
    may be NaN, and 0 · NaN would reach the gradients of weights.
    """
    kept = mask.astype(bool)
    kept[:, 0] = True  # An empty text keeps one token: without any token it would get the vector of the next text.
    lengths = kept.sum(1)
    bounds = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    positions = first_position + np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    filler, longest = max(whole - len(positions), -len(positions) % multiple), int(lengths.max())
    if closed:
        filler = filler or multiple
        bounds, longest = np.append(bounds, bounds[-1:] + np.int32(filler)), max(longest, filler)

    def row(tokens: np.ndarray, fill: int = 0) -> np.ndarray:
        return np.pad(tokens, (0, filler), constant_values=fill)[None]

    types = tuple(row(kind[kept]) for kind in types)
    return row(ids[kept]), row(positions, first_position), bounds, longest, *types


@dataclass(frozen=True)
class Row:
    """b texts in one row, and the attention that reads them.

    `ids`, `positions` int64 [1, t]; `bounds` int32 [b + 1]: the begin of each text and the end of the last text (later
    tokens belong to no text); `longest`: tokens of the longest text; `types` int64 [1, t]: token types of text pairs.
    """

    attention: Attention
    ids: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int
    types: Tensor | None = None

    def hidden(self, backbone: Any) -> Tensor:
        """The last layer's vectors [t, d]; must be called inside `reads_packed`."""
        types = {} if self.types is None else {"token_type_ids": self.types}
        vectors: Tensor = backbone(input_ids=self.ids, position_ids=self.positions, packed=self, **types)[0][0]
        return vectors

    def first(self, hidden: Tensor) -> Tensor:
        """The vector of each text's first token [b, d]."""
        return hidden.index_select(0, self.bounds[:-1].long())

    def mean(self, hidden: Tensor) -> Tensor:
        """The mean of each text's vectors fp32 [b, d]."""
        # `unsafe` skips torch's check of the offsets; the check would synchronise with the GPU.
        return torch.segment_reduce(hidden.float(), "mean", offsets=self.bounds.long(), axis=0, unsafe=True)


@contextmanager
def reads_packed(backbone: Any) -> Iterator[None]:
    """In the block, the backbone reads `Row`s only."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation(NAME)
    try:
        yield
    finally:
        backbone.set_attn_implementation(before)


def is_packed(model: Any) -> bool:
    """Whether a model of transformers reads `Row`s only."""
    return hasattr(model, "set_attn_implementation") and model.config._attn_implementation == NAME


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Row | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention [1, t, h, e] of query, key and value [1, h, t, e]; transformers defines the signature."""
    if packed is None:
        raise CannotPack(f"{type(module).__name__} does not pass on where texts begin")
    if changed := [name for name in CHANGES if others.get(name) is not None]:
        raise CannotPack(f"{type(module).__name__} changes the attention's weights by {', '.join(changed)}")
    if is_causal is None:
        # The configuration of a decoder may ask for attention in both directions.
        decoder = getattr(getattr(module, "config", None), "is_causal", True)
        is_causal = bool(getattr(module, "is_causal", False) and decoder)
    # The window size of transformers counts the token itself; the kernels' window does not.
    side = -1 if sliding_window is None else sliding_window - 1
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    window = (side, 0 if is_causal else side)
    options: dict[str, Any] = {"scale": scaling, "window_size": window, "enable_gqa": q.shape[1] != k.shape[1]}
    options |= {"dropout": dropout} if dropout else {}
    return packed.attention(q, k, v, packed.bounds, packed.longest, **options)[None], None


def first_position(backbone: Any, attention: Attention) -> int | None:
    """The first position number: 0, or the padding id plus 1 (RoBERTa). None if the backbone cannot be packed.

    The result is kept for each backbone, attention, device and type of weights, because the test takes as long as some
    800 tokens.
    """
    parameter = next(backbone.parameters())
    known, key = _first_positions.setdefault(backbone, {}), (attention, parameter.device, parameter.dtype)
    if key not in known:
        known[key] = _tested_first_position(backbone, attention)
    return known[key]


def _tested_first_position(backbone: Any, attention: Attention) -> int | None:
    takes_positions = "position_ids" in inspect.signature(backbone.forward).parameters
    if not takes_positions or not getattr(backbone, "_supports_attention_backend", False):
        return None
    where, padding = next(backbone.parameters()).device, backbone.config.pad_token_id or 0
    ids, mask = _random_texts(backbone.config, padding)
    padded = backbone(input_ids=torch.from_numpy(ids).to(where), attention_mask=torch.from_numpy(mask).to(where))[0]
    expected = padded[torch.from_numpy(mask.astype(bool)).to(where)].float()

    def error(start: int, *, across: bool = False) -> float:
        tokens, positions, bounds, longest, *_ = pack(start, ids, mask)
        if across:
            bounds, longest = bounds[[0, -1]], int(bounds[-1])
        row_ids, row_positions, row_bounds = (torch.from_numpy(x).to(where) for x in (tokens, positions, bounds))
        row = Row(attention, row_ids, row_positions, row_bounds, longest)
        return float((row.hidden(backbone).float() - expected).norm(dim=-1).max())

    exact = next(backbone.parameters()).dtype is torch.float32 and not torch.is_autocast_enabled(where.type)
    tolerance = TOLERANCE_FP32 if exact else TOLERANCE

    with reads_packed(backbone):
        try:
            first, later = error(0), error(padding + 1)  # alike, but for rounding, where only distances count
            best, least = (0, first) if first <= 2 * later else (padding + 1, later)
            return best if least < tolerance * error(best, across=True) else None
        except CannotPack:
            return None


def _random_texts(config: Any, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask [b, l] of random texts without padding tokens inside."""
    longest = getattr(config, "max_position_embeddings", PROBE_LENGTHS[0]) - padding - 1
    lengths = np.minimum(PROBE_LENGTHS, longest)
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.random.default_rng(0).integers(1, config.vocab_size, mask.shape)
    tokens[tokens == padding] = 0 if padding else 1
    return np.where(mask, tokens, padding), mask.astype(np.int64)
