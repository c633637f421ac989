"""Reading batches with a replica of a model on each device, packed where model and device allow it."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Event, Lock
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnn_encoder.machine.threads import side_by_side
from gnn_encoder.machine.transfers import streamed
from gnn_encoder.models.packed import Row, first_position, pack, packed_attention, reads_packed


def devices() -> list[torch.device]:
    """Where models run: all visible GPUs, else the CPU. In distributed training each process uses its own GPU only."""
    if not torch.cuda.is_available():
        return [torch.device("cpu")]
    own = [torch.cuda.current_device()] if dist.is_initialized() else range(torch.cuda.device_count())
    return [torch.device("cuda", number) for number in own]


def read_batches(
    model: nn.Module,
    batches: Sequence[np.ndarray],
    padded: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    store: Callable[..., None],
    whole: int,
) -> None:
    """Call `store(rows, *results)` with the model's results for each batch, in no order.

    With several devices, model and `padded` are called in several threads; `store` is called by one at a time. After an
    exception, which is raised here, no further batch begins.

    Args:
        model: on the first of `devices`, with a `backbone`, a `forward` for padded batches and a `packed` for `Row`s.
        batches: row numbers of each batch.
        padded: ids, mask and maybe token types [b, l] of a batch.
        whole: tokens that a packed batch is filled up to, so that results do not depend on what is read together
            (`gnn_encoder.models.packed`). A longer text must be alone in its batch.
    """
    if not batches:
        return
    places = devices()[: len(batches)]
    backbone: Any = model.backbone
    attention = packed_attention(places[0], next(model.parameters()).dtype)
    start = first_position(backbone, attention) if attention else None
    replicas: list[Any] = [model, *(copy.deepcopy(model).to(where) for where in places[1:])]
    storing = Lock()

    def work(number: int, stop: Event) -> None:
        replica, where = replicas[number], places[number]

        def arrays(rows: np.ndarray) -> tuple[np.ndarray | int, ...]:
            return padded(rows) if start is None else pack(start, *padded(rows), whole=whole)

        def results(*inputs: Any) -> tuple[Tensor, ...]:
            read = replica(*inputs) if start is None else replica.packed(Row(attention, *inputs))  # type: ignore[arg-type]
            return read if isinstance(read, tuple) else (read,)

        with ExitStack() as stack:
            # Inference mode and the current device belong to a thread.
            stack.enter_context(torch.inference_mode())
            if where.type == "cuda":
                stack.enter_context(torch.cuda.device(where))
            if start is not None:
                stack.enter_context(reads_packed(replica.backbone))
            # Assigned by number, not to the next free device: a batch is read by the same device every time.
            mine = ((rows, arrays(rows)) for rows in batches[number :: len(places)] if not stop.is_set())
            for rows, read in streamed(mine, results, where):
                with storing:
                    store(rows, *read)

    side_by_side(work, len(places))
