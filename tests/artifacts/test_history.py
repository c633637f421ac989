"""What an artifact knows of the steps before it."""

from pathlib import Path

import pytest

from gnn_encoder.artifacts import drafting, verify
from gnn_encoder.artifacts.history import HISTORY, History, Record, joined, read_history, write_history
from gnn_encoder.errors import UserError


def made(path: Path, history: History) -> Path:
    with drafting(path, "run") as draft:
        (draft / "run.txt").write_text("run")
        write_history(draft.path, history)
    return path


def test_it_is_read_back_and_leaves_the_digest_alone(tmp_path: Path) -> None:
    history = {"ingest": Record({"seed": 1}, {}, {"seconds": 2.0}, "c", {"loss": [(1, 0.5)]})}
    told, untold = made(tmp_path / "a", history), made(tmp_path / "b", {})
    (record,) = read_history(told).values()
    assert (record.settings, record.metrics, record.code_digest) == ({"seed": 1}, {"seconds": 2.0}, "c")
    assert [tuple(point) for point in record.curves["loss"]] == [(1, 0.5)]
    assert verify(told).digest == verify(untold).digest and HISTORY not in verify(told).files
    text = (told / HISTORY).read_text()
    (told / HISTORY).write_text(text.replace('"metrics"', '"of_a_later_version": 1, "metrics"'))
    assert list(read_history(told)) == ["ingest"]
    for broken in (text[:-9], "[1]", '{"ingest": 3}'):
        (told / HISTORY).write_text(broken)
        with pytest.raises(UserError, match="is corrupt"):
            read_history(told)
    (told / HISTORY).unlink()
    assert read_history(told) == {}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_steps_of_several_artifacts_come_after_what_they_need(tmp_path: Path, order: tuple[int, ...]) -> None:
    first, bm25, dpr = Record({"n": 1}), Record({"n": 2}), Record({"n": 3})
    histories = [{"ingest": first}, {"ingest": first, "bm25": bm25}, {"ingest": first, "bm25": bm25, "dpr": dpr}]
    paths = [made(tmp_path / str(i), history) for i, history in enumerate(histories)]
    assert list(joined(paths[i] for i in order)) == ["ingest", "bm25", "dpr"]


def test_what_made_the_artifacts_counts_more_than_what_lies_behind_them(tmp_path: Path) -> None:
    """After an update the models stand on the data set of before, and everything else on the new one."""
    before, now = Record({"of": "before"}), Record({"of": "now"})
    model = made(tmp_path / "model", {"ingest": before, "train": Record()})
    data = made(tmp_path / "data", {"ingest": now})
    for paths in ([model, data], [data, model]):
        assert joined(paths)["ingest"] == now
    assert joined([model])["ingest"] == before
