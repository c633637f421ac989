"""Vectors of tokenized texts, with gradient; with the gradient cache, in the memory of one part of a batch.

The gradient cache (GradCache, Gao et al., 2021, section 3, by torch's checkpointing):

1. Each part runs forward without keeping activations; only the vectors are kept.
2. The loss over all vectors of the batch gives their gradients.
3. Backward, part by part: the random state of the first forward pass is restored, so that dropout is the same. The part
   runs forward again, and the gradients of its vectors are propagated back.

Memory: the batch's vectors and one part's activations.
Time: one more forward pass, a third to a half of a training step.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gnn_encoder.inference.encoding import budget_batches
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.threads import give_back
from gnn_encoder.models.dual_encoder import TextEncoder, device, on_device
from gnn_encoder.models.packed import Row, first_position, is_packed, pack, packed_attention
from gnn_encoder.training.ranks import shared

TOKENS_PER_PASS = {"cpu": 1024, "cuda": 8192}
"""Tokens per pass through a model in training. On two cores, texts of 190 tokens train 1.05 times as fast as with 2,048
and 1.7 times as fast as with 8,192, because activations stay in the caches. An H200 took 0.34 s a step with 8,192,
0.26 s with 32,768, with cuDNN's attention, which is off now (`benchmarks/RESULTS.md`)."""
IF_KEPT = {"cpu": 1, "cuda": 4}
"""So many times as many, where the activations of all parts of a batch are kept: smaller parts then save no memory."""
ROW = 1024
"""A packed row in training has a multiple of so many tokens: a GPU's products then have few shapes."""
TRIMMED = 32
"""After so many parts the freed memory of their activations is returned to the operating system."""
_parts = count(1)


def passes(lengths: np.ndarray, tokens: int = 0, *, kept: bool = False) -> Iterator[np.ndarray]:
    """Row numbers of a batch's texts of `lengths` [b] tokens, in length-sorted parts: saves padding and memory.

    A part has at most `tokens` tokens, padding included (0: `TOKENS_PER_PASS`; `kept`: see `IF_KEPT`).
    """
    where = device().type
    return budget_batches(lengths, tokens or TOKENS_PER_PASS[where] * (IF_KEPT[where] if kept else 1))


def embed(encoder: TextEncoder, tokens: Tokens, rows: np.ndarray, *, cached: bool = False) -> Tensor:
    """Vectors [b, d] of the texts at `rows` [b], in this order, with gradient; `cached`: by the gradient cache.

    If several processes train together, each process embeds its share (`ranks`).
    """
    where, pad = next(encoder.parameters()).device, encoder.tokenizer.pad_token_id or 0
    attention = packed_attention(where, torch.bfloat16) if is_packed(encoder.backbone) else None
    start = first_position(encoder.backbone, attention) if attention else None

    def arrays(part: np.ndarray) -> tuple[np.ndarray | int, ...]:
        padded = tokens.padded(part, pad)
        return padded if start is None else pack(start, *padded, multiple=ROW, closed=True)

    def read(*inputs: Any) -> Tensor:
        return encoder.packed(Row(attention, *inputs))[:-1] if attention else encoder(*inputs)

    def vectors(share: np.ndarray) -> Tensor:
        order = list(passes(tokens.lengths[share], kept=not cached))
        parts = (tuple(a if isinstance(a, int) else on_device(a, where) for a in arrays(share[part])) for part in order)
        inverse = np.argsort(np.concatenate(order))
        return run_parts(read, parts, cached=cached).index_select(0, on_device(inverse, where))

    return shared(vectors, rows, next(encoder.parameters()).new_zeros(0, encoder.width))


def run_parts(function: Callable[..., Tensor], parts: Iterable[tuple[Tensor | int, ...]], *, cached: bool) -> Tensor:
    """`function(*part)` [b_i, d] of each part, concatenated to [Σ b_i, d]; `cached`: the backward pass computes the
    activations again.

    The function may use its part and a model's parameters, but no other tensor that needs a gradient: backward
    would pass through it once per part. The first pass runs without autograd: its nodes would take half a megabyte
    per part.
    """
    if not cached:
        return torch.cat([function(*part) for part in parts])
    anchor = torch.zeros(0, requires_grad=True)  # checkpoint needs one such argument to run backward
    vectors = torch.cat([checkpoint(_part, function, anchor, *part, use_reentrant=True) for part in parts])
    if vectors.requires_grad:
        vectors.register_hook(
            lambda gradient: give_back()
        )  # the loss's backward has ended; the parts are computed again
    return vectors


def _part(function: Callable[..., Tensor], anchor: Tensor, *part: Tensor | int) -> Tensor:
    if next(_parts) % TRIMMED == 0:
        give_back()
    return function(*part)


def by_rows(function: Callable[[Tensor, int], Tensor], rows: Tensor, size: int, *, cached: bool) -> Tensor:
    """`function(part, start)` of `rows` [b, ...] in parts [size, ...] that begin at `start`; concatenates the results.

    Without the cache all rows are one part. Unlike in `run_parts`, any value that the function uses may need a
    gradient.
    """
    if not cached:
        return function(rows, 0)
    parts = enumerate(rows.split(size))
    return torch.cat([checkpoint(function, part, number * size, use_reentrant=False) for number, part in parts])
