"""Batches of rows: every row once an epoch, another order each epoch and for each seed, the same when asked again."""

import numpy as np
import pytest

from gnn_encoder.training.generation import RowBatches
from gnn_encoder.training.prefetch import made


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (8, 4), (3, 64), (1, 1)])
def test_every_row_once(rows: int, size: int) -> None:
    plan = RowBatches(rows, size, seed=0)
    batches = list(made(plan, 0))
    assert len(batches) == plan.steps_per_epoch == -(-rows // size)
    assert max(map(len, batches)) <= plan.batch_examples == min(rows, size)
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))


def test_order_is_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(list(made(RowBatches(50, 8, seed), epoch))).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
