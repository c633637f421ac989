"""Submits the quickstart, as the command line does."""

import functools
from pathlib import Path

import pytest
from command_line import call
from packages import remembered

from gnn_encoder import data
from gnn_encoder.kubeflow import server, submission

IMAGES = "images: {cpu: registry.example.com/gnn-encoder-python:0.1.0}\n"
"""The least that a cluster file says."""
digest = functools.cache(data.source_digest)  # a second of every submission


def quick(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Lets commands that submit run in a folder, and neither wait nor compute twice."""
    patch.chdir(folder)
    patch.setattr(server, "POLL_SECONDS", 0.01)
    patch.setattr(data, "source_digest", digest)
    patch.setattr(submission, "package", remembered)


def submit(host: str, *more: str) -> int:
    if "--cluster" not in more:
        Path("images.yaml").write_text(IMAGES, "utf-8")
        more = ("--cluster", "images.yaml", *more)
    return call("submit", "--preset", "quickstart", "--host", host, *more)
