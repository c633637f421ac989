"""The command line, called in this process."""

import sys

import pytest

from gnn_encoder.cli import app


def call(*arguments: str) -> int:
    """The exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(sys, "argv", ["gnn-encoder", *arguments])
        app.main()
    return int(caught.value.code or 0)
