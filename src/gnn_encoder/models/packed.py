"""Texts of several lengths in one row of tokens, without padding.

A transformer takes the row [1, t] for one text whose positions restart; the attention that it calls is replaced by
one that stays inside each text. Whether a backbone can be read so, and where its positions begin, is not looked up by
its name but found out: a few random texts are read both ways, and the results must be alike (`first_position`). That
tries the GPU's kernel too, on the very GPU.

In a row of a fixed number of tokens, filled up after its texts, every matrix product has one shape, and a text's vector
is the same to the last bit whatever it is read with (batch invariance; measured on CPUs alone). Padding rules that out:
how long a text was padded, and how many tokens there were in all, shows in the last bits.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "gnn_encoder_packed"
"""What transformers knows the attention by."""
PROBE_LENGTHS = (160, 31, 2)
"""Longer than the windows of backbones with local attention, as far as they take such texts."""
TOLERANCE = 0.2
"""How far off the probe may be, as a share of how far off it is with attention across texts. bf16 rounds: 0.02."""
CPU_STEP = 16
"""Attention on a CPU runs over texts padded to multiples of this; in bf16 other lengths take up to twice as long."""
HEAD_STEP, WIDEST_HEAD = 8, 256
"""Widths of a head that the GPU's kernel takes: multiples of the one up to the other."""


class CannotPack(Exception):
    """A backbone cannot be read without padding."""


class Attention(Protocol):
    """Attention inside each of several texts in a row; the signature is that of torch's `varlen_attn`."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        /,
        *,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool,
    ) -> Tensor:
        """Result [t, h, e] of query [t, h, e], key and value [t, g, e]; text i is rows `cu_seq[i:i + 2]`."""
        ...


def packed_attention(where: torch.device, dtype: torch.dtype) -> Attention | None:
    """On a CPU `cpu_attention`; torch's kernel in half precision on NVIDIA GPUs from Ampere on; None elsewhere."""
    if where.type == "cpu":
        return cpu_attention
    half = dtype in (torch.bfloat16, torch.float16)
    if where.type != "cuda" or not half or not torch.version.cuda or torch.cuda.get_device_capability(where) < (8, 0):
        return None
    from torch.nn.attention.varlen import varlen_attn

    def attention(
        query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, _: Tensor, longest: int, *others: Any, **options: Any
    ) -> Tensor:
        if query.shape[-1] % HEAD_STEP or query.shape[-1] > WIDEST_HEAD:
            raise CannotPack(f"attention heads of width {query.shape[-1]}")
        # Of one token each, texts with grouped queries would be read by their number, which a filled row belies.
        longest = max(longest, 2)
        # What it leaves after the last text is any number, and is read into no text.
        result: Tensor = varlen_attn(query, key, value, bounds, bounds, longest, longest, **options)  # type: ignore[assignment]
        return result

    return attention


def cpu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    *others: Any,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """What `Attention` says, of texts that attend to themselves, and zero after the last of them.

    Neighbours of about one length, as sorted texts are, run together. How far a text is padded here follows from its
    own length alone. `bounds` int32 [b + 1] is `cu_seq_q`; `others` (`cu_seq_k`, both maxima) follow from it.
    """
    result, lengths = torch.zeros_like(query), bounds.diff()
    widths, counts = (-(-lengths // CPU_STEP) * CPU_STEP).unique_consecutive(return_counts=True)
    first = 0
    for width, texts in zip(widths.tolist(), counts.tolist(), strict=True):
        last, places = first + texts, torch.arange(width)
        begins, own = bounds[first:last, None], lengths[first:last, None]
        inside = places < own
        # Beyond its end a text's last token stands again, and none sees it.
        rows = (begins + places.minimum(own - 1)).flatten()
        q, k, v = (x.index_select(0, rows).unflatten(0, inside.shape).transpose(1, 2) for x in (query, key, value))
        seen = _seen(inside, *window_size)
        found = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa)
        result[bounds[first] : bounds[last]] = found.transpose(1, 2)[inside]
        first = last
    return result


def _seen(inside: Tensor, left: int, right: int) -> Tensor | None:
    """Which tokens of texts `inside` [n, l] each token sees, so far to either side (-1: to the end); None: all."""
    length = inside.shape[1]
    left, right = (length if side < 0 else min(side, length) for side in (left, right))
    if min(left, right) >= length - 1:
        return None if inside.all() else inside[:, None, None]
    place = torch.arange(length)
    apart = place[None] - place[:, None]
    return inside[:, None, None] & (apart >= -left) & (apart <= right)


Packed = tuple[np.ndarray, np.ndarray, np.ndarray, int, *tuple[np.ndarray, ...]]


def pack(first_position: int, ids: np.ndarray, mask: np.ndarray, *types: np.ndarray, whole: int = 0) -> Packed:
    """A padded batch [b, l] as what a `Row` holds: ids and positions [1, t], bounds int32 [b + 1], longest, types.

    After the texts the row is filled up to `whole` tokens, which are in none of them.
    """
    kept = mask.astype(bool)
    kept[:, 0] = True  # An empty text is its padding: without a token it would be given its neighbour's vector.
    lengths = kept.sum(1)
    bounds = np.zeros(len(ids) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    positions = first_position + np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    filler = max(0, whole - len(positions))

    def row(tokens: np.ndarray, fill: int = 0) -> np.ndarray:
        return np.pad(tokens, (0, filler), constant_values=fill)[None]

    types = tuple(row(kind[kept]) for kind in types)
    return row(ids[kept]), row(positions, first_position), bounds, int(lengths.max()), *types


@dataclass(frozen=True)
class Row:
    """b texts in one row, and how attention runs over them.

    `ids`, `positions` int64 [1, t]; `bounds` int32 [b + 1], where each text begins and the last ends (what follows
    is in none); `longest`, the tokens of the longest; `types` int64 [1, t] for a backbone that tells two texts apart.
    """

    attention: Attention
    ids: Tensor
    positions: Tensor
    bounds: Tensor
    longest: int
    types: Tensor | None = None

    def hidden(self, backbone: Any) -> Tensor:
        """The last layer's vectors [t, d]; only inside `reads_packed`."""
        types = {} if self.types is None else {"token_type_ids": self.types}
        vectors: Tensor = backbone(input_ids=self.ids, position_ids=self.positions, packed=self, **types)[0][0]
        return vectors

    def first(self, hidden: Tensor) -> Tensor:
        """Each text's first token's vector [b, d]."""
        return hidden[self.bounds[:-1].long()]

    def mean(self, hidden: Tensor) -> Tensor:
        """The mean of each text's vectors fp32 [b, d]."""
        # Checked offsets would be read back from the GPU, and everything queued there waited for.
        return torch.segment_reduce(hidden.float(), "mean", offsets=self.bounds.long(), axis=0, unsafe=True)


@contextmanager
def reads_packed(backbone: Any) -> Iterator[None]:
    """The backbone reads `Row`s inside the block, and nothing else."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attend)
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation(NAME)
    try:
        yield
    finally:
        backbone.set_attn_implementation(before)


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
    **others: Any,
) -> tuple[Tensor, None]:
    """Result [1, t, h, e] of query, key and value [1, h, t, e], as transformers calls it."""
    if packed is None:
        raise CannotPack(f"{type(module).__name__} is not told where texts begin")
    if getattr(module, "is_causal", False):
        raise CannotPack(f"{type(module).__name__} looks back alone")
    # Transformers' windows count a token itself, the kernels' do not.
    side = -1 if sliding_window is None else sliding_window - 1
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    bounds, longest, grouped = packed.bounds, packed.longest, query.shape[1] != key.shape[1]
    result = packed.attention(
        q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(side, side), enable_gqa=grouped
    )
    return result[None], None


def first_position(backbone: Any, attention: Attention) -> int | None:
    """The number of a text's first position, 0 or, as in RoBERTa, the one after padding's; None: cannot be packed."""
    takes_positions = "position_ids" in inspect.signature(backbone.forward).parameters
    if not takes_positions or not getattr(backbone, "_supports_attention_backend", False):
        return None
    where, padding = next(backbone.parameters()).device, backbone.config.pad_token_id or 0
    ids, mask = _probe(backbone.config, padding)
    padded = backbone(input_ids=torch.from_numpy(ids).to(where), attention_mask=torch.from_numpy(mask).to(where))[0]
    expected = padded[torch.from_numpy(mask.astype(bool)).to(where)].float()

    def difference(start: int, *, across: bool = False) -> float:
        tokens, positions, bounds, longest, *_ = pack(start, ids, mask)
        if across:
            bounds, longest = bounds[[0, -1]], int(bounds[-1])
        row_ids, row_positions, row_bounds = (torch.from_numpy(x).to(where) for x in (tokens, positions, bounds))
        row = Row(attention, row_ids, row_positions, row_bounds, longest)
        return float((row.hidden(backbone).float() - expected).norm())

    with reads_packed(backbone):
        try:
            differences = {start: difference(start) for start in (0, padding + 1)}
            nearest = min(differences, key=lambda start: differences[start])
            return nearest if differences[nearest] < TOLERANCE * difference(nearest, across=True) else None
        except CannotPack:
            return None


def _probe(config: Any, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask [b, l] of random texts, none of whose tokens is the padding."""
    longest = getattr(config, "max_position_embeddings", PROBE_LENGTHS[0]) - padding - 1
    lengths = np.minimum(PROBE_LENGTHS, longest)
    mask = np.arange(lengths.max()) < lengths[:, None]
    tokens = np.random.default_rng(0).integers(1, config.vocab_size, mask.shape)
    tokens[tokens == padding] = 0 if padding else 1
    return np.where(mask, tokens, padding), mask.astype(np.int64)
