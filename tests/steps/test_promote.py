"""The rule, and what it does to a real MLflow registry."""

from pathlib import Path

import pyarrow as pa
import pytest

from gnn_encoder.artifacts import drafting, read_manifest
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.artifacts.report import Decision, Report
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import BASELINE, CANDIDATE
from gnn_encoder.settings import Promote
from gnn_encoder.steps.promote import MEASURE, MEASURED_ON, VALUE, decide, promote

LABELS = {MEASURED_ON: "data", MEASURE: "RR@10", VALUE: "0.5"}


@pytest.mark.parametrize(
    ("value", "minimum_gain", "champion", "expected", "because"),
    [
        (0.50, 0.0, None, "promote", "there was no champion"),
        (0.39, 0.0, None, "keep", "where at least"),
        (0.40, 0.0, None, "promote", "there was no champion"),
        (0.45, 0.1, None, "keep", "where at least +0.1000"),
        (0.45, -0.1, None, "promote", "there was no champion"),
        (0.50, 0.0, {**LABELS, VALUE: "0.6"}, "keep", "the champion has 0.6000"),
        (0.50, 0.0, {**LABELS, VALUE: "0.45"}, "promote", "the champion had 0.4500"),
        (0.50, 0.0, {**LABELS, VALUE: "0.6", MEASURED_ON: "other"}, "promote", "on other data"),
        (0.50, 0.0, {**LABELS, VALUE: "0.6", MEASURE: "AP"}, "promote", "by another measure"),
        (0.50, 0.0, {}, "promote", "on other data"),
    ],
)
def test_the_rule(value: float, minimum_gain: float, champion: dict | None, expected: str, because: str) -> None:
    verdict, reason = decide(value, 0.40, minimum_gain, champion, LABELS, "test RR@10")
    assert verdict == expected
    assert because in reason
    assert "\n" not in reason


def write_bundle_and_report(folder: Path, value: float) -> dict[str, Path]:
    with drafting(folder / "bundle", "bundle") as draft:
        (draft / "weights").write_text(str(value))
    figures = {BASELINE: dict.fromkeys(NAMES, 0.4), CANDIDATE: dict.fromkeys(NAMES, value)}
    metrics = {
        "measures": list(NAMES),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": "test",
        "results": {"test": figures},
        "digests": {"test": "data"},
        "queries": {"test": 1234},
        "p_holm": {"test": {CANDIDATE: dict.fromkeys(NAMES, 0.031)}},
        "profile": {"passages": 5000, "labels_with_neighbors": {"test": 0.65}},
    }
    with drafting(folder / "report", "report") as draft:
        Report.write(draft, metrics=metrics, per_query=pa.table({"query": [0]}), plots={}, page="")
        draft.manifest.inputs = {"bundle": read_manifest(folder / "bundle").digest}
        draft.manifest.metrics = {"headline": f"GNN-encoder MRR@10 {value:.3f}"}
        facts = {"seconds": 12.4, "headline": f"loss {value}"}
        steps = [f"train_{i}" for i in range(300 if value == 0.6 else 2)]
        write_history(draft.path, dict.fromkeys(steps, Record(metrics=facts)))
    return {"bundle": folder / "bundle", "report": folder / "report"}


def decided(folder: Path, settings: Promote, value: float) -> Decision:
    promote(settings, decision=folder / "decision", **write_bundle_and_report(folder, value))
    return Decision.read(folder / "decision")


def test_without_tracking_it_decides_and_registers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    decision = decided(tmp_path, Promote(), 0.5)
    assert decision.facts["decision"] == "promote"
    assert decision.facts["version"] is None
    assert decision.facts["bundle_digest"] == read_manifest(tmp_path / "bundle").digest
    assert "no tracking store is configured" in decision.facts["reason"]
    assert decision.manifest.metrics["headline"].startswith("promote: test RR@10 0.5000, +0.1000")


def test_the_alias_moves_only_on_promote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    client, settings = MlflowClient(uri, uri), Promote(model_name="tiny")

    def champion() -> str:
        return str(client.get_model_version_by_alias("tiny", "champion").version)

    assert decided(tmp_path / "first", settings, 0.5).facts["decision"] == "promote"
    assert champion() == "1"
    worse = decided(tmp_path / "second", settings, 0.45).facts
    assert (worse["decision"], worse["version"], worse["champion_before"]) == ("keep", "2", "1")
    assert champion() == "1"
    assert decided(tmp_path / "third", settings, 0.6).facts["decision"] == "promote"
    assert champion() == "3"
    version, longest = (client.get_model_version("tiny", number) for number in ("2", "3"))
    assert version.description == Decision.read(tmp_path / "second" / "decision").card
    assert longest.description.endswith("loss 0.6 |\n…") and 4900 < len(longest.description) <= 5000
    assert version.tags["decision"] == "keep"
    assert version.tags["digest"] == read_manifest(tmp_path / "second" / "bundle").digest
    assert Path(version.source.removeprefix("file://")) == (tmp_path / "second" / "bundle").resolve()


def test_the_card_tells_what_the_model_reaches_and_was_made_of(tmp_path: Path) -> None:
    card = decided(tmp_path, Promote(), 0.5).card
    assert "GNN-encoder MRR@10 0.500. Promote: test RR@10 0.5000" in card
    header, _, *rows = [line for line in card.splitlines() if line.startswith("|")]
    assert header.startswith("| system | MRR@10 | nDCG@10 |")
    assert rows[0] == "| Dual encoder | " + "0.400 | " * len(NAMES)
    assert rows[1] == "| GNN-encoder | " + "0.500 (p 0.031) | " * len(NAMES)
    assert rows[-1] == "| train_1 | 12 | loss 0.5 |"
    assert "65 % of the test labels" in card and str(tmp_path / "bundle") in card


def test_a_report_of_another_bundle_is_refused(tmp_path: Path) -> None:
    paths = write_bundle_and_report(tmp_path / "a", 0.5)
    other = write_bundle_and_report(tmp_path / "b", 0.6)
    with pytest.raises(UserError, match="does not evaluate"):
        promote(Promote(), decision=tmp_path / "decision", report=paths["report"], bundle=other["bundle"])
    assert not (tmp_path / "decision").exists()
