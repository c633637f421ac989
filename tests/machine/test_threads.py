"""Work in several threads: all of it done once, errors told, torch's own threads as before."""

import threading
import time

import pytest
import torch

from gnn_encoder.machine import threads
from gnn_encoder.machine.threads import chunk_by_core, side_by_side
from gnn_encoder.tracking.progress import Progress

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 3])
def cores(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_chunk_once_by_as_many_threads_as_cores(cores):
    seen, workers, inner = [], set(), set()
    met = threading.Barrier(cores)

    def work(chunk: int) -> int:
        if chunk < cores:
            met.wait(timeout=30)  # only passed when all of them are at work at once
        seen.append(chunk)
        workers.add(threading.get_ident())
        inner.add(torch.get_num_threads())
        return 2

    progress = Progress("step", "stage", 200, "units")
    chunk_by_core(work, range(100), CPU, progress)
    assert sorted(seen) == list(range(100)) and progress.done == 200
    assert len(workers) == cores and inner == {1}
    assert torch.get_num_threads() == cores


@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_few_chunks_share_the_cores(chunks):
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        inner = []
        chunk_by_core(lambda chunk: inner.append(torch.get_num_threads()) or 1, range(chunks), CPU)
        assert inner == [5 // max(chunks, 1)] * chunks and torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


def test_workers_are_bounded(monkeypatch):
    monkeypatch.setattr("gnn_encoder.machine.threads.WORKERS", 2)
    before, workers = torch.get_num_threads(), set()
    torch.set_num_threads(6)
    try:
        chunk_by_core(lambda chunk: workers.add(threading.get_ident()) or time.sleep(0.001) or 1, range(50), CPU)
        assert len(workers) <= 2
    finally:
        torch.set_num_threads(before)


def test_an_error_ends_the_others_and_is_told(cores):
    begun = []

    def work(chunk: int) -> int:
        begun.append(chunk)
        if chunk == 5:
            raise ValueError("chunk 5")
        return 1

    with pytest.raises(ValueError, match="chunk 5"):
        chunk_by_core(work, range(1_000_000), CPU)
    assert len(begun) < 100_000 if cores > 1 else begun == [0, 1, 2, 3, 4, 5]
    assert torch.get_num_threads() == cores


def test_side_by_side_numbers_its_threads():
    met, numbers = threading.Barrier(4), []

    def work(number: int, stop: threading.Event) -> None:
        met.wait(timeout=30)
        numbers.append(number)

    side_by_side(work, 4)
    assert sorted(numbers) == [0, 1, 2, 3]


@pytest.mark.parametrize(("chunks", "times"), [(63, 0), (64, 1), (100, 3)])
def test_long_work_gives_memory_back_now_and_then(monkeypatch: pytest.MonkeyPatch, chunks: int, times: int) -> None:
    returned: list[None] = []
    monkeypatch.setattr(threads, "give_back", lambda: returned.append(None))
    chunk_by_core(lambda chunk: 1, range(chunks), CPU)
    assert len(returned) == times
