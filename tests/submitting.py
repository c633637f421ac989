"""Submits the quickstart, as the command line does."""

import pytest
from command_line import call


def submit(monkeypatch: pytest.MonkeyPatch, host: str, *more: str) -> int:
    return call(monkeypatch, "submit", "--preset", "quickstart", "--host", host, *more)
