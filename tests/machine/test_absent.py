"""A package is imported as if an optional dependency were not installed."""

import importlib
import sys
from pathlib import Path

import pytest

from gnn_encoder.machine.absent import absent


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of which another one makes use if it finds it."""
    (tmp_path / "some_accelerator.py").write_text("FAST = True\n")
    (tmp_path / "some_library.py").write_text(
        "try:\n    import some_accelerator\n    FAST = True\nexcept ImportError:\n    FAST = False\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("some_library", "some_accelerator"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "some_library"


def test_a_dependency_is_not_found_in_the_block_and_is_found_after_it(library: str) -> None:
    with absent("some_accelerator"):
        assert not importlib.import_module(library).FAST
    assert importlib.import_module("some_accelerator").FAST


def test_control_without_the_block_it_is_found_and_what_is_imported_stays(library: str) -> None:
    imported = importlib.import_module("some_accelerator")
    with absent("some_accelerator"):
        assert importlib.import_module(library).FAST
    assert sys.modules["some_accelerator"] is imported
    del sys.modules[library], sys.modules["some_accelerator"]
