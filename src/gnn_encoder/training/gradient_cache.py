"""Gradient cache: batches of any size in the memory of one part of them.

1. Each part runs forward without keeping its activations; its vectors alone stay.
2. The loss over all the batch's vectors gives their gradients.
3. Backward, part by part: the part runs forward once more and its vectors' gradients go on through it. The
   random state of the first time is put back before, so that dropout draws the same.

Memory: the batch's vectors and one part's activations.
Time: a forward pass more, a third to a half of a training step.
It is GradCache's algorithm (Gao et al., 2021, section 3) as torch's checkpointing does it.
"""

from collections.abc import Callable, Iterable
from itertools import count

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gnn_encoder.machine.threads import give_back

TRIMMED = 32
"""Parts after which the C library is told to give back what is free: a part's vectors stay, its activations go."""
_parts = count(1)


def run_parts(function: Callable[..., Tensor], parts: Iterable[tuple[Tensor, ...]], *, cached: bool) -> Tensor:
    """`function(*part)` [b_i, d] of each part, concatenated to [Σ b_i, d]; `cached`: its activations are made again in
    the backward pass.

    The function may use its part and a model's parameters: what else was computed with a gradient would be walked back
    once per part. So the first pass goes without autograd, half a megabyte of whose nodes would stay for each part.
    """
    if not cached:
        return torch.cat([function(*part) for part in parts])
    anchor = torch.zeros(0, requires_grad=True)  # without an argument that needs a gradient there is no backward pass
    vectors = torch.cat([checkpoint(_part, function, anchor, *part, use_reentrant=True) for part in parts])
    if vectors.requires_grad:
        vectors.register_hook(lambda gradient: give_back())  # the loss is done, the parts begin again
    return vectors


def _part(function: Callable[..., Tensor], anchor: Tensor, *part: Tensor) -> Tensor:
    if next(_parts) % TRIMMED == 0:
        give_back()
    return function(*part)


def by_rows(function: Callable[[Tensor, int], Tensor], rows: Tensor, size: int, *, cached: bool) -> Tensor:
    """`function(part, start)` of `rows` [b, ...] in parts [size, ...] that begin at `start`, results concatenated.

    All of them are one part where nothing is cached. Whatever the function uses may need a gradient.
    """
    if not cached:
        return function(rows, 0)
    parts = enumerate(rows.split(size))
    return torch.cat([checkpoint(function, part, number * size, use_reentrant=False) for number, part in parts])
