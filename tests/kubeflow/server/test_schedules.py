"""`gnn-encoder schedule`: what is sent to create a recurring run, what is listed, and what is removed."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from gate_inputs import write_inputs
from kfp_api import EXAMPLE, KfpServer, arguments_of, tasks_of
from mlflow_store import write_store
from submitting import IMAGES, submit

from gnn_encoder.artifacts import Dataset
from gnn_encoder.promotion.registry import open_registry
from gnn_encoder.steps.promote import promote


def schedule(host: str, *arguments: str) -> int:
    if arguments[0] == "add":
        if "--cluster" not in arguments:
            Path("images.yaml").write_text(IMAGES, "utf-8")
            arguments = (*arguments, "--cluster", "images.yaml")
        arguments = (*arguments, "--preset", "quickstart")
    return call("schedule", *arguments, "--host", host)


def test_what_is_sent(server: KfpServer, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    at_three = ("add", "--cron", "0 3 * * *", "--set", "train_gnn.epochs=3", "--cluster", cluster)
    assert schedule(server.url, *at_three) == 0
    shown = capsys.readouterr().out
    assert shown == f"scheduled  quickstart\npage       {server.url}/#/recurringrun/details/0\n"
    assert submit(server.url, "--cluster", cluster, "--set", "train_gnn.epochs=3") == 0
    (sent,), (once,) = server.seen("POST", ".*/recurringruns"), server.seen("POST", ".*/runs")
    assert sent["trigger"] == {"cron_schedule": {"cron": "0 0 3 * * *"}}  # KFP's first field is the second
    assert (sent["mode"], sent["max_concurrency"], sent["no_catchup"]) == ("ENABLE", "1", True)
    assert sent["display_name"] == "quickstart"
    assert sent["experiment_id"] == once["experiment_id"] == "experiment-0"
    assert sent["service_account"] == once["service_account"] == "pipeline-runner"
    # The run is that of `submit`, except for the cache and the digest of data that may have changed by then.
    spec, other = sent["pipeline_spec"]["pipeline_spec"], once["pipeline_spec"]["pipeline_spec"]
    assert sent["pipeline_spec"]["platform_spec"] == once["pipeline_spec"]["platform_spec"]
    arguments, now = arguments_of(sent), arguments_of(once)
    assert {task for task in now if arguments[task] != now[task]} == {"promote"}
    digests, digests_now = (json.loads(run["promote"])["source_digests"] for run in (arguments, now))
    assert set(digests_now) - set(digests) == {"run.data"} and digests["run.settings"] == digests_now["run.settings"]
    for run, cached in ((sent, False), (once, True)):
        tasks = tasks_of(run)
        assert {bool(task.pop("cachingOptions").get("enableCache")) for task in tasks.values()} == {cached}
        del tasks["promote"]["inputs"]["parameters"]["arguments"]
    assert spec == other
    assert sent["runtime_config"] == once["runtime_config"]


@pytest.mark.slow
def test_options(server: KfpServer) -> None:
    more = ("--every", "1d12h", "--name", "Nightly: ü", "--at-once", "3", "--catch-up")
    assert schedule(server.url, "add", *more) == 0
    rerank = ("--pipeline", "rerank", "--systems", "k_nrm", "--every", "90m")
    assert schedule(server.url, "add", *rerank) == 0
    first, second = server.seen("POST", ".*/recurringruns")
    assert first["display_name"] == "Nightly: ü" and second["display_name"] == "rerank-quickstart"
    assert first["trigger"] == {"periodic_schedule": {"interval_second": "129600"}}
    assert second["trigger"] == {"periodic_schedule": {"interval_second": "5400"}}
    assert (first["max_concurrency"], first["no_catchup"]) == ("3", False)
    assert "rerank-k-nrm" in tasks_of(second)
    assert not any(task["cachingOptions"].get("enableCache") for task in tasks_of(second).values())


def test_list_and_remove(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule(server.url, "list") == 0
    no_runs = "no recurring runs under gnn-encoder yet: create one with gnn-encoder schedule add\n"
    assert capsys.readouterr().out == no_runs
    assert schedule(server.url, "remove", "quickstart") == 2
    assert "no recurring run 'quickstart' under gnn-encoder" in capsys.readouterr().err
    assert schedule(server.url, "add", "--cron", "*/15 8-17 * * mon-fri") == 0
    assert schedule(server.url, "add", "--every", "36h", "--name", "other") == 0
    server.schedules[1]["status"] = "DISABLED"
    foreign = {**server.schedules[1], "display_name": "theirs", "recurring_run_id": "7"}
    server.schedules += [
        {**foreign, "trigger": {"cron_schedule": {"cron": "30 0 9 ? * 2-6"}}},
        {**foreign, "trigger": {"periodic_schedule": {"interval_second": "90"}}},
        {**foreign, "experiment_id": "experiment-9"},
    ]
    capsys.readouterr()
    assert schedule(server.url, "list") == 0
    head, *rows = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    cells = [[cell.strip() for cell in row if cell.strip()] for row in (head, *rows)]
    assert [row[:4] for row in cells] == [
        ["name", "when", "at once", "state"],
        ["quickstart", "cron */15 8-17 * * mon-fri", "1", "enabled"],
        ["other", "every 1d12h", "1", "disabled"],
        ["theirs", "cron 30 0 9 ? * 2-6", "1", "disabled"],
        ["theirs", "every 90s", "1", "disabled"],
    ]
    assert cells[1][-1] == f"{server.url}/#/recurringrun/details/0"
    assert schedule(server.url, "remove", "theirs") == 2
    assert "gnn-encoder has 2 recurring runs 'theirs': delete one on its page" in capsys.readouterr().err

    assert schedule(server.url, "remove", "quickstart") == 0
    assert capsys.readouterr().out == "removed quickstart\n"
    assert [one["display_name"] for one in server.schedules] == ["other", "theirs", "theirs", "theirs"]


def test_a_removed_schedules_run_goes_on(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = []
    handle = server.handle

    def seen(method: str, address: str, *more: Any) -> Any:
        queries.append(address.partition("?")[2] if method == "DELETE" else "")
        return handle(method, address, *more)

    monkeypatch.setattr(server, "handle", seen)
    assert schedule(server.url, "add", "--every", "24h") == 0
    assert schedule(server.url, "remove", "quickstart") == 0
    assert [query for query in queries if query] == ["propagation_policy=ORPHAN"]


def test_a_name_is_taken_once(server: KfpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule(server.url, "add", "--every", "24h") == 0
    assert schedule(server.url, "add", "--every", "12h") == 2
    error = capsys.readouterr().err
    assert "gnn-encoder has a recurring run 'quickstart': choose another --name" in error and error.count("\n") == 1
    (tmp_path / "c.yaml").write_text(f"{IMAGES}experiment: mine\n", "utf-8")
    assert schedule(server.url, "add", "--every", "24h", "--cluster", str(tmp_path / "c.yaml")) == 0
    assert len(server.schedules) == 2


@pytest.mark.slow
def test_several_users() -> None:
    with KfpServer(multi_user=True) as server:
        assert schedule(server.url, "add", "--every", "24h", "--cluster", str(EXAMPLE)) == 0
        assert schedule(server.url, "list") == 2  # it needs the cluster file's namespace
        assert server.schedules[0]["namespace"] == "retrieval"
        assert server.problems == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "give either --cron, as '0 3 * * *', or --every, as 24h"),
        (("--cron", "0 3 * * *", "--every", "24h"), "give either --cron"),
        (("--every", "24h", "--name", " "), "--name is empty"),
        (("--every", "24h", "--first-stage", "pool"), "add --pipeline rerank"),
        (("--every", "24h", "--at-once", "11"), "less than or equal to 10"),
        (("--every", "24h"), "cannot reach http://127.0.0.1:1"),
    ],
)
def test_mistakes(more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert schedule("http://127.0.0.1:1", "add", *more) == 2
    assert words in capsys.readouterr().err


def test_a_lost_answer_says_that_it_may_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnn_encoder.kubeflow import server as kubeflow_server

    monkeypatch.setattr(kubeflow_server, "ANSWER_SECONDS", 1.0)
    with KfpServer(silent=lambda place: place == "POST /apis/v2beta1/recurringruns") as server:
        assert schedule(server.url, "add", "--every", "24h") == 2
    assert "quickstart may have been created all the same: see gnn-encoder schedule list" in capsys.readouterr().err


@pytest.mark.slow
def test_retrain_trains_after_a_scheduled_run_because_its_data_are_unknown(
    server: KfpServer,
    tmp_path: Path,
    tiny_dataset: Dataset,
    tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = write_store(tmp_path / "mlflow.db")
    text = f"{IMAGES}pipeline_root: s3://bucket/root\ndefaults: {{environment: {{MLFLOW_TRACKING_URI: '{uri}'}}}}\n"
    (tmp_path / "c.yaml").write_text(text, "utf-8")
    assert schedule(server.url, "add", "--every", "24h", "--cluster", str(tmp_path / "c.yaml")) == 0
    arguments_sent = arguments_of(server.schedules[0])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    inputs = write_inputs(tmp_path / "run", tiny_dataset, tiny_backbone, 8)
    promote(arguments_sent["promote"], **inputs, decision=tmp_path / "run" / "decision")
    (version,) = open_registry(uri, "gnn-encoder").versions()
    assert "run.settings" in version.tags and "run.data" not in version.tags
    server.progress = [{"state": "FAILED"}]
    capsys.readouterr()
    arguments = ("retrain", "--preset", "quickstart", "--cluster", str(tmp_path / "c.yaml"), "--host", server.url)
    assert call(*arguments) == 1
    assert capsys.readouterr().out.startswith("changed since version 1, the champion: data\n")
