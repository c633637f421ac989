"""How a model computes while it is trained: its attention, its dropout, and the gradients of its tables of words."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gnn_encoder.inference.encoding import attention_of_any_shape, autocast, inference_dtype
from gnn_encoder.machine.memory import LARGEST_REUSED, MALLOCS_OWN
from gnn_encoder.models.dual_encoder import TextEncoder, device
from gnn_encoder.models.packed import first_position, packed_attention, reads_packed

PACKED_ON = ("cuda",)
"""Devices on which text encoders train on packed rows."""


@contextmanager
def computing_as_trained(model: nn.Module, precision: str) -> Iterator[None]:
    """In the block, the model computes in the way that trains fastest; only rounding differs.

    On a GPU, attention is not cuDNN's (`attention_of_any_shape`), and text encoders in bf16 read packed rows, if they
    can: no padding, few shapes of products, and no wait of transformers for the sum of a padding mask. On a CPU, see
    `_unfused` (in bf16) and `_added_in_place`. Backward passes belong in the block: gradient checkpointing computes
    parts of the forward pass again.
    """
    on_cpu = device().type == "cpu"
    with ExitStack() as stack:
        stack.enter_context(attention_of_any_shape())
        if on_cpu:
            stack.enter_context(_added_in_place(model))
        if on_cpu and inference_dtype(precision) is torch.bfloat16:
            stack.enter_context(_unfused(model))
        for backbone in _packable(model, precision) if device().type in PACKED_ON else ():
            stack.enter_context(reads_packed(backbone))
        yield


@contextmanager
def _unfused(model: nn.Module) -> Iterator[None]:
    """In the block, attention is computed without torch's fused kernel.

    That kernel's backward pass is slow in bf16 on a CPU (torch 2.13): 11 texts of 100 tokens, 12 heads of 32, take
    31 ms on one core with it and 7 ms without it, forward and backward; 64 texts of 48 tokens take 88 and 13 ms. In
    fp32 both are equal.
    """
    modules: list[Any] = list(model.modules())
    pretrained = [module for module in modules if hasattr(module, "set_attn_implementation")]
    fused = [module for module in pretrained if module.config._attn_implementation == "sdpa"]
    for module in fused:
        module.set_attn_implementation("eager")
    try:
        yield
    finally:
        for module in fused:
            module.set_attn_implementation("sdpa")


@contextmanager
def _added_in_place(model: nn.Module) -> Iterator[None]:
    """In the block, the gradient of a look-up in a large table of embeddings is added to the rows that were looked up.

    Torch makes a gradient as large as the table for each look-up, and a batch is read in parts of some 1,000 tokens
    (`embed.TOKENS_PER_PASS`). Where such an array is too large to be reused (`reuse_freed`), this takes a third of the
    time of a training with MiniLM's six layers and 250,037 rows of 384 numbers, as multilingual encoders have
    (`benchmarks/train.py --words`). A table whose class has a `forward` of its own, as Gemma's, stays as it is.
    """
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding) and _is_large_and_plain(part)]
    for table in tables:
        table.forward = partial(_looked_up, table)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for table in tables:
            del table.forward


def _is_large_and_plain(table: nn.Embedding) -> bool:
    """Whether a table is trained and too large for its gradients to be reused, and its look-up is torch's own, without
    options."""
    if type(table).forward is not nn.Embedding.forward or "forward" in vars(table):
        return False
    options = table.max_norm is not None or table.scale_grad_by_freq or table.sparse
    is_trained = isinstance(table.weight, nn.Parameter) and table.weight.requires_grad  # a parametrized one is computed
    return is_trained and not options and table.weight.nbytes + MALLOCS_OWN > LARGEST_REUSED


def _looked_up(table: nn.Embedding, ids: Tensor) -> Tensor:
    vectors: Tensor = _LookUp.apply(table.weight, ids, table.padding_idx)  # type: ignore[no-untyped-call]
    return vectors


class _LookUp(torch.autograd.Function):
    """`weight[ids]`; backward sums the gradient by row, adds the sums to `weight.grad` in place, and returns none."""

    @staticmethod
    def forward(context: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        """Vectors [..., d] of the ids [...]; the row `padding` gets no gradient."""
        context.weight, context.padding = weight, padding  # a saved tensor may return detached (checkpoint)
        context.save_for_backward(ids)
        return nn.functional.embedding(ids, weight)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[None, None, None]:
        """Adds the gradient [..., d]."""
        (ids,), weight = context.saved_tensors, context.weight
        rows, places = ids.unique(return_inverse=True)
        sums = gradient.new_zeros(len(rows), gradient.shape[-1])
        sums.index_add_(0, places.flatten(), gradient.flatten(0, -2))
        if context.padding is not None:
            sums[rows == context.padding] = 0
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        weight.grad.index_add_(0, rows, sums)
        return None, None, None


def _packable(model: nn.Module, precision: str) -> Iterator[Any]:
    """The backbones of the model's text encoders that can train on packed rows."""
    attention = packed_attention(device(), inference_dtype(precision))
    if attention is None:
        return
    encoders = [part for part in model.modules() if isinstance(part, TextEncoder) and not part.head]
    for backbone in dict.fromkeys(encoder.backbone for encoder in encoders):
        modes = [(part, part.training) for part in backbone.modules()]
        with torch.no_grad(), autocast(precision):
            first = first_position(backbone.eval(), attention)
        for part, mode in modes:
            part.training = mode
        if first is not None:
            yield backbone


def set_dropout(model: nn.Module, rate: float) -> None:
    """Sets every dropout rate of the model: of modules, and the plain numbers in BART's layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)
