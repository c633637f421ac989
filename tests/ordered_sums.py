"""Sums whose order depends on the threads.

On a CPU the backward pass of `values[rows]` adds up the gradients of a row that is there several times with several
threads in any order (`index_put` with `accumulate`, torch 2.13), so a training would not have the same bits twice.
`index_select` and `embedding` add in one order.
"""

from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

UNORDERED = (torch.ops.aten.index_put, torch.ops.aten.index_put_, torch.ops.aten._index_put_impl_)


class OrderedSums(TorchDispatchMode):
    """In the block, an operation whose result may depend on the order of threads is an AssertionError."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.overloadpacket in UNORDERED and args[3:4] == (True,):
            indices = [index for index in args[1] if index is not None]
            parts = [index.nonzero(as_tuple=True) if index.dtype is torch.bool else (index,) for index in indices]
            places = torch.stack([rows.flatten() for rows in torch.broadcast_tensors(*chain(*parts))])
            assert places.unique(dim=1).shape[1] == places.shape[1], "several threads add to one place in any order"
        return operation(*args, **(kwargs or {}))
