"""Waits for what another thread or process does."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(look: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What `look` returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (result := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return result
