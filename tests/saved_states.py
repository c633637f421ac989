"""Trainings whose states are saved at known steps, although a thread writes them."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import pytest
from safetensors.torch import save_file

from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Saver


def wait_for_each(monkeypatch: pytest.MonkeyPatch, share: float = math.inf) -> None:
    """Where a state is due, training waits until the state before is written; only `share` makes states rarer."""
    begin, ready = Saver.__init__, Saver.ready

    def waiting(saver: Saver) -> bool:
        ready(saver)
        assert saver._work
        wait([saver._work])
        return ready(saver)

    def sharing(saver: Saver, *arguments: Any) -> None:
        begin(saver, *arguments)
        saver._share = share

    monkeypatch.setattr(Saver, "__init__", sharing)
    monkeypatch.setattr(Saver, "ready", waiting)


@contextmanager
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """In the block, files of states are written only after the event is set."""
    ready = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint, "save_file", lambda *arguments, **named: (ready.wait(60), save_file(*arguments, **named))
        )
        try:
            yield ready
        finally:
            ready.set()
