"""What a step says when the disk under it is full or its settings are wrong: one line, nothing half-written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from gnn_encoder.artifacts import Draft
from gnn_encoder.context import Context
from gnn_encoder.errors import UserError
from gnn_encoder.settings import Ingest
from gnn_encoder.steps.step import step


def failing(error: Exception) -> Callable[..., None]:
    """A step that raises `error` half-way."""

    @step(dataset="dataset")
    def ingest(context: Context, settings: Ingest, dataset: Draft) -> dict[str, object]:
        (dataset / "half.txt").write_text("half")
        raise error

    return ingest


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "file"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_line_for_the_user(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(UserError, match=r"No space left on device.*free space") as caught:
        failing(error)(Ingest(), dataset=tmp_path / "dataset")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError):
        failing(SafetensorError("header too large"))(Ingest(), dataset=tmp_path / "dataset")
    assert list(tmp_path.iterdir()) == []
