"""Who makes batches changes neither what comes nor in which order; an error comes where its item would have."""

import dataclasses
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Graph, KnownPositives, TrainingSet, reverse_csr
from gnn_encoder.query_graph.neighborhoods import Neighbourhood, neighbourhood
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.batches import Batch, ExampleBatches
from gnn_encoder.training.masked_graph import MaskedBatches, SampledBatches
from gnn_encoder.training.prefetch import BatchPlan, batches_of, prefetched


@pytest.mark.parametrize("count", [0, 1, 7])
def test_same_items(count: int) -> None:
    assert list(prefetched(iter(range(count)))) == list(range(count))


def test_made_ahead_and_not_by_the_consumer() -> None:
    makers: list[int] = []
    threads: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(10):
            makers.append(number)
            threads.add(threading.get_ident())
            yield number

    stream = prefetched(items(), ahead=3)
    assert next(stream) == 0
    stream.close()  # waits for what is being made
    assert 3 <= len(makers) <= 4 and threads and threading.get_ident() not in threads


def test_an_error_keeps_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("no third")

    stream = prefetched(items())
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="no third"):
        next(stream)


def plan(kind: str) -> BatchPlan:
    """A plan over 60 random examples; the masked one's batches come with 2 neighbours of each passage, drawn."""
    generator = np.random.default_rng(0)
    query = np.sort(generator.integers(0, 40, 60)).astype(np.int32)
    examples = TrainingSet(
        [""] * 60, query, generator.integers(0, 50, 60).astype(np.int32),
        generator.integers(-1, 50, (60, 6)).astype(np.int32), np.zeros(60),
    )  # fmt: skip
    known = KnownPositives(query, examples.positive)
    if kind == "examples":
        return ExampleBatches(examples, 8, 2, known, seed=1)
    nodes = np.unique(query)
    edges = generator.integers(0, 50, (len(nodes), 8)).astype(np.int32)
    features = np.zeros((*edges.shape, 2), np.float16)
    graph = Graph(nodes, edges, edges < -1, features, *reverse_csr(edges, 50))

    def sample(batch: Batch) -> Neighbourhood:
        drawn = np.random.default_rng(batch.seed)
        return neighbourhood(graph, batch.passages, masked=batch.masked, dropped=None, limit=2, generator=drawn)

    settings = TrainGnn.model_validate({"mask": kind, "mask_fraction": 0.2, "batch_size": 5, "negatives": 2, "seed": 1})
    masked = MaskedBatches(examples, np.searchsorted(nodes, query), np.arange(len(nodes)), known, settings)
    return SampledBatches(masked, sample, 3)


def arrays(batch: Any) -> list[Any]:
    """What a batch holds, comparable."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    values = [v for part in parts for v in (dataclasses.astuple(part) if dataclasses.is_dataclass(part) else [part])]
    return [(v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values]


@pytest.mark.parametrize("kind", ["examples", "folds", "sample", "none"])
def test_workers_make_the_same_batches(kind: str) -> None:
    state = torch.get_rng_state()
    alone, next_epoch = ([arrays(batch) for batch in batches_of(plan(kind), epoch)] for epoch in (1, 2))
    assert len(alone) == plan(kind).steps_per_epoch and alone != next_epoch
    for workers in (1, 2):
        assert [arrays(batch) for batch in batches_of(plan(kind), 1, workers=workers)] == alone
    for workers in (0, 2):
        assert [arrays(batch) for batch in batches_of(plan(kind), 1, skip=4, workers=workers)] == alone[4:]
    assert torch.equal(torch.get_rng_state(), state)  # dropout comes from there


class Numbers:
    """Batches are what `make` makes of 0…9."""

    steps_per_epoch, batch_examples = 10, 1

    def __init__(self, make: Any) -> None:
        self.batch = make

    def draws(self, epoch: int) -> Iterator[int]:
        return iter(range(10))


def test_skipped_batches_are_not_made() -> None:
    numbers: list[int] = []
    list(batches_of(Numbers(numbers.append), 0, skip=7))
    assert numbers == [7, 8, 9]


def test_workers_are_other_processes_and_end_with_the_batches() -> None:
    batches = batches_of(Numbers(lambda number: os.getpid()), 0, workers=2)
    first = next(batches)
    assert len(multiprocessing.active_children()) == 2
    assert len({first, *batches} - {os.getpid()}) == 2
    assert not multiprocessing.active_children()


def test_a_workers_error_keeps_its_place_and_its_message() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise ValueError("no third")
        return number

    batches = batches_of(Numbers(make), 0, workers=2)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no third"):
        next(batches)
    assert not multiprocessing.active_children()


def test_a_killed_worker_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed"):
        list(batches_of(Numbers(lambda number: os._exit(9)), 0, workers=1))
    assert not multiprocessing.active_children()


def test_mapped_arrays_stay_shared(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "array", np.int64, mode="w+", shape=10)
    batches = batches_of(Numbers(lambda number: int(mapped[number])), 0, workers=1)
    assert next(batches) == 0
    mapped[9] = 7  # after the worker began; of a copy it would see nothing
    assert list(batches)[-1] == 7
