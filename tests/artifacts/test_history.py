"""What an artifact knows of the steps before it."""

import json
from pathlib import Path

import pytest
from manifests import write_manifest

from gnn_encoder.artifacts import drafting, read_manifest
from gnn_encoder.artifacts.folder import HISTORY, MANIFEST, sha256
from gnn_encoder.artifacts.history import History, Record, joined, read_history, write_history
from gnn_encoder.errors import UserError


def run_with(path: Path, history: History) -> Path:
    with drafting(path, "run") as draft:
        (draft / "run.txt").write_text("run")
        write_history(draft.path, history)
    return path


def test_it_is_read_back_and_leaves_the_digest_alone(tmp_path: Path) -> None:
    history = {"ingest": Record({"seed": 1}, {}, {"seconds": 2.0}, "c", {"loss": [(1, 0.5)]})}
    with_history, without = run_with(tmp_path / "a", history), run_with(tmp_path / "b", {})
    (record,) = read_history(with_history).values()
    assert (record.settings, record.metrics, record.code_digest) == ({"seed": 1}, {"seconds": 2.0}, "c")
    assert [tuple(point) for point in record.curves["loss"]] == [(1, 0.5)]
    assert (
        read_manifest(with_history).digest == read_manifest(without).digest
        and HISTORY not in read_manifest(with_history).files
    )
    (with_history / HISTORY).unlink()
    assert read_history(with_history) == {}


def test_a_damaged_history_is_one_line(tmp_path: Path) -> None:
    artifact = run_with(tmp_path / "run", {"ingest": Record(metrics={"seconds": 2.0})})
    text = (artifact / HISTORY).read_text()
    (artifact / HISTORY).write_text(text.replace("2.0", "3.0"))
    with pytest.raises(UserError, match="its digest differs"):
        read_history(artifact)
    unknown = text.replace('"metrics"', '"surprise": 1, "metrics"')
    facts = json.loads((artifact / MANIFEST).read_text())
    for content in (text[:-9], "[1]", '{"ingest": 3}', "[" * 100_000, unknown, text):
        (artifact / HISTORY).write_text(content)
        write_manifest(artifact, facts | {"history": sha256(artifact / HISTORY)})
        if content != text:
            with pytest.raises(UserError, match=r"history\.json is corrupt"):
                read_history(artifact)
    assert read_history(artifact)["ingest"].metrics == {"seconds": 2.0}, "control"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_steps_of_several_artifacts_come_after_what_they_need(tmp_path: Path, order: tuple[int, ...]) -> None:
    first, bm25, dpr = Record({"n": 1}), Record({"n": 2}), Record({"n": 3})
    histories = [{"ingest": first}, {"ingest": first, "bm25": bm25}, {"ingest": first, "bm25": bm25, "dpr": dpr}]
    paths = [run_with(tmp_path / str(i), history) for i, history in enumerate(histories)]
    assert list(joined(paths[i] for i in order)) == ["ingest", "bm25", "dpr"]


def test_what_made_the_artifacts_counts_more_than_what_lies_behind_them(tmp_path: Path) -> None:
    """After an update the models stand on the data set of before, and everything else on the new one."""
    before, now = Record({"of": "before"}), Record({"of": "now"})
    model = run_with(tmp_path / "model", {"ingest": before, "train": Record()})
    data = run_with(tmp_path / "data", {"ingest": now})
    for paths in ([model, data], [data, model]):
        assert joined(paths)["ingest"] == now
    assert joined([model])["ingest"] == before
