"""How tests of readers have a corpus read."""

import pytest

from gnn_encoder.data import beir, lines


@pytest.fixture(params=["one block", "a line a block", "Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a corpus in BEIR's layout is read."""
    if request.param == "a line a block":
        monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    if request.param == "Python":
        monkeypatch.setattr(beir, "json_lines", lambda *_: None)
