"""When a retraining has nothing to do, and what it says of one that had. With training: tests/test_after_a_run.py."""

import math
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from command_line import call
from mlflow_store import write_store
from registered import register
from trained_root import tiny_settings, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.cli import app
from gnn_encoder.engines import pipelines
from gnn_encoder.engines.climbing import Climb, climbing
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import ORIGIN, PLAN
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.promotion import retraining
from gnn_encoder.promotion.registry import Registry, open_registry

WORKFLOW = Path(__file__).parents[2] / ".github" / "workflows" / "retrain.yml"


class Root:
    """A root, a preset and a data set to retrain with."""

    def __init__(self, folder: Path, dataset: Dataset, backbone: Path, seq2seq: Path) -> None:
        self.folder, self.preset = folder, folder / "tiny.yaml"
        self.preset.write_text(yaml.safe_dump(tiny_settings(backbone, seq2seq)))
        self.beir = write_beir(dataset, folder / "beir")
        (folder / "root").mkdir()
        self._uri = write_store(folder.resolve() / "root" / "mlflow.db")

    @property
    def models(self) -> Registry:
        return open_registry(self._uri, "gnn-encoder")

    def plan(self, *overrides: str, dataset: Path | None = None) -> retraining.Plan:
        data = str(dataset or self.beir)
        return retraining.plan(pipelines.training(str(self.preset), data, overrides, self.folder / "root"))

    def register(self, plan: retraining.Plan, decision: str, **changes: str) -> str:
        digests = plan.arguments["promote"].source_digests
        tags = {**{name: digests[name] for name in ORIGIN}, **changes, "decision": decision, "reason": "so it was"}
        number = register(self.models, "/bundle", tags)
        if decision == "promote":
            self.models.promote(number)
        return number


@pytest.fixture
def root(tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path) -> Root:
    return Root(tmp_path, tiny_dataset, tiny_backbone, tiny_seq2seq)


@pytest.mark.slow
def test_it_trains_unless_the_champion_or_the_newest_is_of_the_same(root: Root) -> None:
    first = root.plan()
    assert first.same is None and first.news == "no version of gnn-encoder is registered yet"
    root.register(first, "promote")
    second = root.plan()
    assert second.same and second.news == (
        "nothing to do: data, settings and code are those of version 1, the champion"
    )

    # Other data, refused by the gate: to train on them again, or on the champion's, gives nothing.
    labels = root.beir / "qrels" / "train.tsv"
    before = labels.read_bytes()
    other = before.replace(b"\tp1\t", b"\tp2\t")
    labels.write_bytes(other)
    changed = root.plan()
    assert changed.same is None and changed.news == "changed since version 1, the champion: data"
    root.register(changed, "keep")
    assert root.plan().news == (
        "nothing to do: data, settings and code are those of version 2, which was kept back (so it was)"
    )
    labels.write_bytes(before)
    assert root.plan().same is not None

    # From the newest somebody rolled back: to train on its data again would only bring it back.
    labels.write_bytes(other)
    root.register(root.plan(), "promote")
    root.models.roll_back()
    assert root.plan().news.endswith("those of version 3, which is not the champion any more")

    # A process that was killed before it moved the aliases has promoted nothing.
    labels.write_bytes(before.replace(b"\tp1\t", b"\tp3\t"))
    register(root.models, "/bundle", {**root.plan().origin, "decision": "promote"})
    undone = root.plan()
    assert undone.same is None and undone.news == "version 4 passed the gate, but its promotion did not end"


def test_a_climb_is_known_from_its_last_rung_on(root: Root) -> None:
    def plan(until: str) -> retraining.Plan:
        said: list[str] = []
        job = climbing(
            str(root.preset), str(root.beir), [], root.folder / "root", until, math.inf, lambda *of: said.extend(of)
        )
        return retraining.plan(job)

    def registered(plan: retraining.Plan, rung: str) -> None:
        digests = plan.arguments[f"promote: {rung}"].source_digests
        tags = {**{name: digests[name] for name in ORIGIN}, "decision": "promote", "reason": "", "rung": rung}
        root.models.promote(register(root.models, "/bundle", tags))

    first = plan("labels")
    assert first.same is None
    registered(first, "words")
    assert plan("labels").news == "version 1, the champion, is of a rung below labels", "it was interrupted"
    registered(first, "labels")
    assert plan("labels").news.startswith("nothing to do: data, settings and code are those of version 2, the champion")
    assert plan("as-it-is").news == "changed since version 2, the champion: settings, code"


def test_of_a_climb_on_a_cluster_the_last_promoted_version_is_told(root: Root) -> None:
    job = climbing(str(root.preset), str(root.beir), [], root.folder / "root", "labels", math.inf, lambda *_: None)
    plan = retraining.plan(job)
    for rung, decision in {"words": "promote", "as it is": "promote", "labels": "keep"}.items():
        tags = {**plan.origin, "decision": decision, "reason": "so it was", "rung": rung}
        register(root.models, "/bundle", tags)
    with pytest.raises(UserError, match=r"version 2 is registered \(promote: so it was\), but not its decision's"):
        retraining.registered_facts(plan, root.models)


def test_of_a_plan_the_options_count_and_not_what_it_decides(root: Root) -> None:
    def settings_of(climb: Climb) -> str:
        return climb.arguments()["promote: words"].source_digests[ORIGIN[1]]

    climb = climbing(str(root.preset), str(root.beir), [], root.folder / "root", "words", math.inf, lambda *_: None)
    evaluate = climb.settings.evaluate.model_copy(update={"permutations": 7})
    slower = replace(climb, graph=ladder(climb.settings.model_copy(update={"evaluate": evaluate}), "words"))
    assert settings_of(climb) != settings_of(slower), "the control: without a plan all settings count"
    assert settings_of(replace(climb, of_options="30m")) == settings_of(replace(slower, of_options="30m"))
    assert settings_of(replace(climb, of_options="30m")) != settings_of(replace(climb, of_options="1h"))
    plans = [
        replace(of, of_options="30m").arguments()["promote: words"].source_digests[PLAN]
        for of in (climb, climb, slower)
    ]
    assert plans[0] == plans[1] != plans[2], "the gate does not take two plans for one climb"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "quickstart", "--budget", "5m"], "--budget is for a run without --preset, or with --until"),
        (["--preset", "quickstart", "--encoder", "minilm"], "a preset's encoder is --set shared.backbone=…"),
        (["--until", "label"], "--until label: did you mean 'labels'?"),
        (["--dataset", "no/data", "--host", "http://127.0.0.1:1"], "for a cluster name --preset and --until"),
    ],
)
def test_options_of_a_climb_that_do_not_fit(
    options: list[str], message: str, root: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("retrain", *options, "--root", str(root.folder / "root")) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_run_climbed_is_climbed_again_after_a_change(
    root: Root, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root.folder / "root"
    options = f"--dataset {root.beir} --root {folder} --until labels --budget 10m --encoder {tiny_backbone}".split()
    for change in ("fuse_parts.kinds=[linear]", "encode_with_labels.kinds=[]", "evaluate.permutations=50"):
        options += ["--set", change]
    assert call("run", *options) == 0
    shutil.rmtree(folder / "auto")  # the plan is made again, as on another runner
    capsys.readouterr()
    assert call("retrain", *options) == 0
    assert "nothing to do: data, settings and code are those of version 3" in capsys.readouterr().out
    with (root.beir / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "later", "title": "", "text": "a passage that came later"}\n')
    page = root.folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert call("retrain", *options) == 0
    shown = capsys.readouterr().out
    assert "changed since version" in shown and ": data\n" in shown
    assert [line.partition(":")[0] for line in page.read_text().splitlines() if line.startswith("- ")][:5] == [
        "- registered", "- bundle", "- words", "- as it is", "- labels",
    ]  # fmt: skip
    assert [version.tags["rung"] for version in root.models.versions()] == ["labels", "as it is", "words"] * 2


def test_each_thing_that_a_run_is_made_of_counts(root: Root, tmp_path: Path) -> None:
    plan = root.plan()
    root.register(plan, "promote", **{"run.code": "older"})
    assert root.plan().news == "changed since version 1, the champion: code"
    root.register(plan, "promote")
    assert root.plan("train_gnn.epochs=2").news == "changed since version 2, the champion: settings"
    assert root.plan("promote.smallest_effect=0.1").news == "changed since version 2, the champion: settings"
    moved = root.beir.rename(tmp_path / "elsewhere")
    assert root.plan(dataset=moved).same, "where the data lie means nothing"


def test_with_more_registered_the_gate_decides_anew(root: Root) -> None:
    plan = root.plan()
    root.register(plan, "keep", **{"run.data": "other"})
    later = root.plan()
    differing = {step for step in plan.arguments if plan.arguments[step] != later.arguments[step]}
    assert differing == {"promote"}


ALL_QUERIES = {
    "queries": 1200, "challenger": {"RR@10": 0.45}, "other": {"RR@10": 0.4}, "p_values": {"RR@10": 0.0123},
}  # fmt: skip
NEW_QUERIES = {
    "queries": 55, "challenger": {"RR@10": 0.3}, "other": {"RR@10": 0.1}, "p_values": {"RR@10": 0.002},
}  # fmt: skip
COMPARISON = {
    "version": "3", "gone": 7,
    "challenger": {"query_ms": 12.0, "index_bytes": 1536.0},
    "champion": {"query_ms": 10.0, "index_bytes": 1536.0},
    "strata": {"all": ALL_QUERIES, "warm": ALL_QUERIES, "new": NEW_QUERIES},
}  # fmt: skip


@pytest.mark.parametrize("comparison", [COMPARISON, None])
def test_the_summary_has_old_against_new(comparison: dict[str, Any] | None) -> None:
    facts = {
        "decision": "promote", "reason": "it is better", "split": "test", "model_name": "m", "version": "4",
        "figures": {"test/RR@10": 0.45}, "comparison": comparison, "bundle": "s3://b/c",
    }  # fmt: skip
    news = "changed since version 3, the champion: data"
    shown = retraining.summary(news, facts, "https://me:secret@host", {"log": Path("a.log")})
    assert shown.startswith("## m: promote\n\nit is better.\n\nTrained because: changed since version 3")
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    if comparison:
        assert rows[0] == "| 1,200 queries | version 3 | version 4 | difference | p |"
        assert rows[2] == "| MRR@10 | 0.4000 | 0.4500 | +0.0500 | 0.012 |"
        assert rows[3] == "| MRR@10, 55 new queries | 0.1000 | 0.3000 | +0.2000 | 0.002 |"
        assert rows[4] == "| ms for a question | 10.0 | 12.0 | × 1.20 | |"
        assert "- new: queries with a relevant passage that was not in the earlier corpus" in shown
        assert "warm" not in shown, "a stratum of all queries says nothing more"
        assert "7 of the former champion's passages" in shown
    else:
        assert rows == ["| test | version 4 |", "|---|---|", "| MRR@10 | 0.4500 |"]
    assert (
        "- registered: https://host/#/models/m/versions/4\n- bundle: s3://b/c\n- log: a.log\n" in shown
        and "secret" not in shown
    )


def workflow() -> dict[Any, Any]:
    read: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    return read


def test_the_workflow_runs_one_retraining_at_a_time() -> None:
    steps = workflow()
    triggers = steps[True]  # YAML 1.1 takes the key `on` for a boolean
    assert set(triggers) == {"schedule", "workflow_dispatch", "repository_dispatch"}
    assert triggers["schedule"][0]["cron"] and triggers["repository_dispatch"]["types"] == ["new-data"]
    assert steps["concurrency"] == {"group": "retrain", "cancel-in-progress": False}
    assert steps["permissions"] == {"contents": "read"}


def test_what_the_workflow_calls_is_a_command() -> None:
    (job,) = workflow()["jobs"].values()
    script = next(step["run"] for step in job["steps"] if "gnn-encoder retrain" in step.get("run", ""))
    assert "${{" not in script, "what somebody else wrote must not be part of a script"
    words = shlex.split(next(line for line in script.splitlines() if "gnn-encoder retrain" in line), comments=True)
    arguments = words[words.index("retrain") + 1 :]
    retrain = typer.main.get_group(app.app).commands["retrain"]
    retrain.make_context("retrain", [word.strip('"') for word in arguments if word != "${arguments[@]}"])
    options = {option for parameter in retrain.params for option in parameter.opts}
    used = {word for word in shlex.split(script.replace("(", " ").replace(")", " ")) if word.startswith("--")}
    assert used <= options and "--fail-on-keep" in used
