"""What a finished run shows, and what it says where one of its files is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from conftest import write_tiny_dataset

from gnn_encoder.artifacts import Dataset, Decision, Report, drafting
from gnn_encoder.cli import console, endings
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.errors import UserError

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"
METRICS = {
    "measures": ["RR@10"],
    "baseline": BASELINE,
    "test": "randomization",
    "candidate": CANDIDATE,
    "fusions": {},
    "queries": {"test": 20, "dev": 8},
    "results": {"test": {BASELINE: {"RR@10": 0.25}, CANDIDATE: {"RR@10": 0.5}}, "dev": {CANDIDATE: {"RR@10": 0.4}}},
    "p_holm": {"test": {CANDIDATE: {"RR@10": 0.5}}},
    "written": ["test"],
    "recommendation": {
        "system": CANDIDATE,
        "measure": "RR@10",
        "queries": 8,
        "sentence": "Recommended: …",
        "standings": [{"system": BASELINE, "mean": 0.3}, {"system": CANDIDATE, "mean": 0.45}],  # of weighted queries
    },
    "detectable": {"test": {CANDIDATE: {"RR@10": 0.07}}},
    "headline_split": "test",
    "strata": {"cold": {"queries": {"test": 20}}},
}


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    write_tiny_dataset(tmp_path / "dataset")
    with drafting(tmp_path / "report", "report") as draft:
        Report.write(draft, metrics=METRICS, per_query=pa.table({"query": [0]}), plots={}, page="")
    with drafting(tmp_path / "decision", "decision") as draft:
        Decision.write(draft, {"decision": "keep"}, "")
        draft.manifest.metrics = {"headline": "keep: no gain; and more"}
    outputs = {name: tmp_path / name for name in ("dataset", "report", "decision")}
    return Outcome("FINISHED", tmp_path / "log", outputs={**outputs, "bundle": tmp_path / "dataset"})


def end(outcome: Outcome, missing: str | None = None, as_json: bool = False) -> None:
    with console.following(as_json=as_json) as screen:
        endings.show_results(screen, Path("root"), console.follow(screen, lambda show: outcome), missing)


def cut(content: bytes) -> bytes:
    return content[:-2] + b"  "


def rename_a_key(content: bytes) -> bytes:
    return content.replace(b'"results"', b'"resalts"')


def empty(content: bytes) -> bytes:
    return b"[]".ljust(len(content))


def zero(content: bytes) -> bytes:
    return bytes(len(content))


def test_an_end_says_what_to_use_how_and_where_to_look(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    end(outcome, missing="training (about --budget 20m)")
    table, lines = capsys.readouterr().out.strip().rsplit("\n\n", 1)
    assert f"▸ {CANDIDATE}" in table and "0.500" in table and "all 20 test queries are cold" in table
    ending = dict(line.split(maxsplit=1) for line in lines.splitlines())
    chosen = "MRR@10 0.500 on 20 generated test queries; 0.400 on the 8 labelled dev queries that chose it"
    assert ending["use"] == f"{CANDIDATE}: {chosen}" and ending["decision"] == "keep: no gain"
    assert f"serve --bundle {outcome.outputs['bundle']}" in ending["serve"] and "search " in ending["search"]
    assert ending["report"].endswith("report.html") and ending["dashboard"].endswith("--root root")
    assert ending["more"].endswith("the test queries show gains from 0.070") and len(ending) <= 8


def test_queries_that_all_differ_alike_show_no_gain_from_nought(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Report.read(outcome.outputs["report"]).metrics
    metrics["detectable"]["test"] = {
        system: dict.fromkeys(of, 0.0) for system, of in metrics["detectable"]["test"].items()
    }
    monkeypatch.setattr(Report, "metrics", metrics)
    end(outcome, missing="training (about --budget 20m)")
    printed = capsys.readouterr().out
    assert "training (about --budget 20m)" in printed and "show gains" not in printed


def test_an_end_says_that_the_dev_queries_are_generated(
    outcome: Outcome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Report.read(outcome.outputs["report"]).metrics | {"written": ["dev"]}
    monkeypatch.setattr(Report, "metrics", read)
    end(outcome)
    chosen = "on 20 labelled test queries; 0.400 on the 8 generated dev queries that chose it\n"
    assert chosen in capsys.readouterr().out
    monkeypatch.setitem(read, "recommendation", METRICS["recommendation"] | {"standings": []})
    end(outcome)
    assert "on 20 labelled test queries\n" in capsys.readouterr().out, "the baseline, which no dev query chose"


def test_a_table_of_a_rung_is_not_printed_again(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    outcome.rung = "words"
    with console.following() as screen:
        screen.table(outcome, 61.0)
        endings.show_results(screen, Path("root"), outcome)
    shown = capsys.readouterr().out
    assert "words, after 1 min 01 s" in shown and shown.count(f"▸ {CANDIDATE}") == 1


def test_a_query_of_the_data_cannot_control_the_terminal(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Dataset, "query_texts", lambda *_: ["no \x1b[2Jfile\n\x9b31m here"])
    end(outcome)
    shown = capsys.readouterr().out
    assert "search 'no [2Jfile 31m here' --bundle" in shown and not {"\x1b", "\x9b"} & set(shown)


def test_programs_read_the_end_as_events(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    end(outcome, as_json=True)
    table, advice, paths = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["event"] for one in (table, advice, paths)] == ["table", "recommendation", "paths"]
    assert table["recommended"] == CANDIDATE
    assert {row["system"]: row["figures"]["RR@10"] for row in table["systems"]} == {BASELINE: 0.25, CANDIDATE: 0.5}
    assert (advice["system"], advice["value"], advice["kind"]) == (CANDIDATE, 0.5, "generated")
    assert Path(paths["report"]).is_file() and "use" not in paths and "rung" not in table
    outcome.rung = "words"
    end(outcome, as_json=True)
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rung"] == "words", "a climb that was reused"


def test_programs_read_an_error_as_an_event(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError), console.following(as_json=True):
        print("of a library")
        raise UserError("no preset of that name")
    failed = Outcome("KILLED", outcome.log, failed_step="ingest")
    with pytest.raises(typer.Exit), console.following(as_json=True) as screen:
        console.follow(screen, lambda show: failed)
    printed, complaints = capsys.readouterr()
    before, within = map(json.loads, printed.splitlines())
    assert (before["message"], before["exit_code"]) == ("no preset of that name", 2)
    assert (within["event"], within["step"], within["message"], within["exit_code"]) == (
        "error", "ingest", "interrupted", 130,
    )  # fmt: skip
    assert "of a library" in complaints and "interrupted." in complaints


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no data"), 2),
        (PermissionError(13, "Permission denied", "settings.yaml"), 2),
        (OSError("of a library"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_programs_read_every_error(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), console.following(as_json=True):
        raise error
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["step"], event["exit_code"]) == ("error", "", code) and event["message"]
    with pytest.raises(type(error)), console.following():
        raise error
    assert capsys.readouterr().out == "", "people read what `main` prints"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("report/metrics.json", cut),
        ("report/metrics.json", rename_a_key),
        ("report/metrics.json", empty),
        ("report/metrics.json", zero),
        ("dataset/queries.parquet", zero),
    ],
)
def test_a_damaged_file_is_named(outcome: Outcome, tmp_path: Path, file: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=rf"{path} is corrupt.*; delete .* and run again") as caught:
        end(outcome)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_logged_decision_that_is_damaged_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "decision.json").write_text(content)
    with pytest.raises(UserError, match=rf"{tmp_path}/decision.json is corrupt"):
        Decision.logged_facts(tmp_path)
    (tmp_path / "decision.json").write_text(json.dumps({"decision": "keep"}))
    assert Decision.logged_facts(tmp_path) == {"decision": "keep"}


def test_data_without_training_labels_do_not_climb_on() -> None:
    assert endings.climbs_on("auto", "labels", "as it is", "30m").startswith(
        "none: the next rung needs labelled training"
    )
    assert endings.climbs_on("auto", "labels", "labels", "12h") == "--budget 12h instead of --until labels climbs on"
    assert endings.climbs_on("plan.yaml", "as-it-is", "as it is", "30m").startswith(
        "--until training instead of --until as-it-"
    )
    assert endings.climbs_on("auto", "training", "training", "30m") == ""
