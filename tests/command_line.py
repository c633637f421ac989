"""The command line, called in this process."""

import sys

import pytest

from gnn_encoder.cli import app


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gnn-encoder", *arguments])
    with pytest.raises(SystemExit) as caught:
        app.main()
    return int(caught.value.code or 0)


def called(*arguments: str) -> int:
    """`call` where no test's monkeypatch is at hand."""
    with pytest.MonkeyPatch.context() as patch:
        return call(patch, *arguments)
