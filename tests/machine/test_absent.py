"""A package is imported as if an optional dependency were not installed."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_encoder.machine.absent import absent


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package of which another one makes use if it finds it."""
    (tmp_path / "some_accelerator.py").write_text("FAST = True\n")
    (tmp_path / "some_library.py").write_text(
        "try:\n    import some_accelerator\n    FAST = True\nexcept ImportError:\n    FAST = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "some_library"
    for name in ("some_library", "some_accelerator"):
        sys.modules.pop(name, None)


def test_a_dependency_is_not_found_in_the_block_and_is_found_after_it(library: str) -> None:
    with absent("some_accelerator"):
        assert not importlib.import_module(library).FAST
    assert importlib.import_module("some_accelerator").FAST


def test_control_without_the_block_it_is_found(library: str) -> None:
    assert importlib.import_module(library).FAST


def test_what_is_already_imported_stays(library: str) -> None:
    imported = importlib.import_module("some_accelerator")
    with absent("some_accelerator"):
        assert importlib.import_module(library).FAST
    assert sys.modules["some_accelerator"] is imported


@pytest.mark.slow
@pytest.mark.parametrize("package", ["jax", "scipy"])
def test_bm25_starts_no_jax_and_no_scipy(package: str, tmp_path: Path) -> None:
    """bm25s does where they are installed; with a package of that name in its place, nothing imports it."""
    (tmp_path / package).mkdir()
    for name in ("__init__", "lax"):
        (tmp_path / package / f"{name}.py").write_text("raise SystemExit('it was started')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    stop_words = "from gnn_encoder.retrieval.terms import stop_words; assert stop_words('en')"
    for code, ends in (("import gnn_encoder.retrieval.bm25", 0), (stop_words, 0), ("import bm25s", 1)):  # a control
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
        assert done.returncode == ends, done.stderr
