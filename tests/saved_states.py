"""Trainings whose states are saved at known steps, although a thread writes them."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from safetensors.torch import save_file

from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Saver


def wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a state is due, training waits until the state before is written, so none is left out."""
    ready = Saver.ready

    def waiting(saver: Saver) -> bool:
        while not ready(saver):
            time.sleep(0.001)
        return True

    monkeypatch.setattr(Saver, "ready", waiting)


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """In the block, files of states are written only after the event is set."""
    ready = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", lambda *given, **named: (ready.wait(60), save_file(*given, **named)))
        try:
            yield ready
        finally:
            ready.set()
