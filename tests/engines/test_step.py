"""What a step says when the disk under it is full or its settings are wrong: one line, nothing half-written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from gnn_encoder.artifacts import Draft, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.step import MOST_PRIMITIVES, PRIMITIVES, step
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
from gnn_encoder.tracking.context import Context


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


def test_an_artifact_knows_the_steps_before_it(tmp_path: Path) -> None:
    @step(dataset="dataset")
    def ingest(context: Context, settings: Ingest, dataset: Draft) -> dict[str, object]:
        context.metric("rows", 5.0, at=1)
        return {"headline": "five rows"}

    @step(bm25_run="run")
    def bm25_retrieve(context: Context, settings: Bm25Retrieve, dataset: Path, bm25_run: Draft) -> dict[str, object]:
        return {"headline": "a run"}

    ingest(Ingest(seed=3), dataset=tmp_path / "dataset")
    bm25_retrieve(Bm25Retrieve(), dataset=tmp_path / "dataset", bm25_run=tmp_path / "run")
    history = read_history(tmp_path / "run")
    assert list(history) == ["ingest", "bm25_retrieve"]
    assert history["ingest"].settings["seed"] == 3
    assert history["ingest"].curves == {"rows": [[1, 5.0]]}
    assert {"headline", "seconds", "peak_memory_gib"} <= set(history["ingest"].metrics)
    assert history["bm25_retrieve"].inputs == {"dataset": read_manifest(tmp_path / "dataset").digest}


@pytest.mark.parametrize("own", [None, "7"])
def test_a_step_in_a_pipeline_bounds_what_onednn_keeps(own: str | None, tmp_path: Path, monkeypatch) -> None:
    """In a function call, the process is the caller's, and so is its environment; a user's own value stays."""
    monkeypatch.setenv(PRIMITIVES, "before")  # restored afterwards
    monkeypatch.delenv(PRIMITIVES) if own is None else monkeypatch.setenv(PRIMITIVES, own)
    monkeypatch.setattr(lifeline, "attach", lambda: None)
    seen = []

    @step(dataset="dataset")
    def ingest(context: Context, settings: Ingest, dataset: Draft) -> dict[str, object]:
        seen.append(os.environ.get(PRIMITIVES))
        return {}

    ingest(Ingest(), dataset=tmp_path / "called")
    ingest(StepArguments(settings=Ingest().model_dump()).model_dump_json(), dataset=tmp_path / "pipeline")
    assert seen == [own, own or MOST_PRIMITIVES]
