"""Which state a training goes on from: the store's or this machine's, whichever is further."""

from pathlib import Path

import pytest
import torch

from gnn_encoder.storage import checkpoints
from gnn_encoder.storage.checkpoints import Checkpoints
from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Position


@pytest.mark.parametrize(("here", "fetched"), [(-1, True), (299, True), (300, False), (301, False)])
def test_the_newest_complete_state_wins(
    here: int, fetched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_store = {f"{number:012}": number < 500 for number in (200, 300, 500)}  # 500 was cut off
    asked = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(checkpoints, "versions", lambda uri: in_store)
    monkeypatch.setattr(checkpoints, "get_folder", lambda uri, folder: asked.append(uri))
    kept = Checkpoints("s3://bucket/root", "train-key")
    kept.folder.mkdir()
    (kept.folder / "state").write_bytes(b"")
    kept.fetch(here)
    assert asked == (["s3://bucket/root/train-key/000000000300"] if fetched else [])
    assert (kept.folder / "state").exists() != fetched


def test_a_folder_is_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "versions", lambda uri: pytest.fail("asked"))
    Checkpoints(str(tmp_path), "train-key").fetch()


def test_how_far_a_state_is(tmp_path: Path) -> None:
    assert checkpoint.steps_done(tmp_path) == -1
    model = torch.nn.Linear(2, 2)
    checkpoint.save(tmp_path, model, torch.optim.AdamW(model.parameters()), Position(step=7))
    assert checkpoint.steps_done(tmp_path) == 7
    file = tmp_path / checkpoint.FILE
    for content in (file.read_bytes()[:40], b""):
        file.write_bytes(content)
        assert checkpoint.steps_done(tmp_path) == -1
