"""What a finished run shows, and what it says where one of its files is damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import write_tiny_dataset

from gnn_encoder.artifacts import Decision, Report, drafting
from gnn_encoder.cli import console
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.errors import UserError

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"
METRICS = {
    "measures": ["RR@10"],
    "baseline": BASELINE,
    "test": "randomization",
    "candidate": CANDIDATE,
    "fusions": {},
    "queries": {"test": 20},
    "results": {"test": {BASELINE: {"RR@10": 0.25}, CANDIDATE: {"RR@10": 0.5}}},
    "p_holm": {"test": {CANDIDATE: {"RR@10": 0.5}}},
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
        draft.manifest.metrics = {"headline": "keep: no gain"}
    outputs = {name: tmp_path / name for name in ("dataset", "report", "decision")}
    return Outcome("FINISHED", tmp_path / "log", outputs={**outputs, "bundle": tmp_path / "dataset"})


def end(outcome: Outcome) -> None:
    console.show_results(Path("root"), console.follow(("promote",), lambda show: outcome))


def cut(content: bytes) -> bytes:
    return content[:-2] + b"  "


def rename_a_key(content: bytes) -> bytes:
    return content.replace(b'"results"', b'"resalts"')


def empty(content: bytes) -> bytes:
    return b"[]".ljust(len(content))


def zero(content: bytes) -> bytes:
    return bytes(len(content))


def test_the_table_and_the_decision_are_shown(outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    end(outcome)
    shown = capsys.readouterr().out
    assert "0.500" in shown and "all 20 test queries are cold" in shown and "decision   keep: no gain\n" in shown


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
