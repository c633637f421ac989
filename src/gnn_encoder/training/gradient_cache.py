"""Gradient cache: batches of any size in the memory of one part of them.

1. Each part runs forward without keeping its activations; its vectors alone stay.
2. The loss over all the batch's vectors gives their gradients.
3. Backward, part by part: the part runs forward once more and its vectors' gradients go on through it. The
   random state of the first time is put back before, so that dropout draws the same.

Memory: the batch's vectors, a bool for each of its (query, passage) pairs, and one part's activations.
Time: a forward pass more, a third of a training step.
It is GradCache's algorithm (Gao et al., 2021, section 3) as torch's checkpointing does it.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import count

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

TRIMMED = 32
"""Parts after which the C library is told to give back what it holds."""
_parts = count(1)


def run_part(function: Callable[..., Tensor], *arguments: object, cached: bool) -> Tensor:
    """`function(*arguments)`; `cached`: its activations are made again in the backward pass."""
    if not cached:
        return function(*arguments)
    out: Tensor = checkpoint(_part, function, *arguments, use_reentrant=False)
    return out


def _part(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    if next(_parts) % TRIMMED == 0:
        _trim()(0)
    return function(*arguments)


@cache
def _trim() -> Callable[[int], int]:
    """glibc's malloc_trim. A part's vectors stay, its activations go: in between, the heap fills with holes too small
    for the next part's, some 4 MB a part of 1,024 tokens."""
    trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
    return trim


def by_parts(function: Callable[[Tensor, int], Tensor], rows: Tensor, size: int, *, cached: bool) -> Tensor:
    """`function(part, start)` of `rows` [b, ...] in parts [size, ...] that begin at `start`, results concatenated.

    All of them are one part where nothing is cached.
    """
    parts = rows.split(size) if cached else (rows,)
    return torch.cat([run_part(function, part, number * size, cached=cached) for number, part in enumerate(parts)])
