"""What `gnn-encoder submit` sends or refuses to send, and what `runs` lists: the server checks every request."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from beir_folder import write_beir
from command_line import call
from kfp_api import EXAMPLE, KfpServer, arguments_of, check, described, tasks_of
from slow_store import slow_store
from submitting import IMAGES, submit

from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.flow.arguments import task_name
from gnn_encoder.flow.graph import Graph
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.presets import load_settings


def settings_of(graph: Graph) -> dict[str, Any]:
    """Task of each call of a graph → its settings."""
    return {task_name(node.title): node.settings.model_dump(mode="json") for node in graph.nodes}


def test_what_is_sent(server: KfpServer, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(f"{server.url}/", "--cluster", cluster, "--set", "train_gnn.epochs=3") == 0
    assert submit(server.url, "--cluster", cluster) == 0
    assert server.seen("POST", ".*/experiments") == [
        {"display_name": "gnn-encoder", "namespace": ""}
    ]  # joined by the second
    sent, again = server.seen("POST", ".*/runs")
    assert sent["display_name"].startswith("quickstart-2")
    assert sent["experiment_id"] == again["experiment_id"] == "experiment-0"
    assert sent["service_account"] == "pipeline-runner"
    assert sent["runtime_config"] == {"pipeline_root": "s3://retrieval/pipelines", "parameters": {}}
    arguments = {task: json.loads(text) for task, text in arguments_of(sent).items()}
    graph = train(load_settings("quickstart", ["train_gnn.epochs=3"]))
    assert {task: call.get("settings", {}) for task, call in arguments.items()} == settings_of(graph)
    assert all(call["code_digest"] for call in arguments.values())
    assert arguments["ingest"]["source_digests"]["dataset"]
    tasks = tasks_of(sent)
    assert {call["cachingOptions"]["enableCache"] for call in tasks.values()} == {True}
    assert len(sent["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]) == len(
        tasks
    )
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in json.dumps(server.requests)
    shown = capsys.readouterr().out
    assert f"run        {server.url}/#/runs/details/run-0\n" in shown
    assert "Experiment details" not in shown


def test_the_least_of_a_cluster_file_and_without_caching(
    server: KfpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit(server.url) == 0
    (tmp_path / "c.yaml").write_text(f"{IMAGES}caching: false\nexperiment: mine\n", "utf-8")
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", server.url)
    assert call("submit", "--preset", "quickstart", "--cluster", str(tmp_path / "c.yaml")) == 0
    plain, uncached = server.seen("POST", ".*/runs")
    assert set(plain) == {"display_name", "experiment_id", "pipeline_spec", "runtime_config"}
    assert "pipeline_root" not in plain["runtime_config"]
    assert [one["display_name"] for one in server.experiments] == ["gnn-encoder", "mine"]
    assert not any(one["cachingOptions"].get("enableCache") for one in tasks_of(uncached).values())


def test_a_reranking_pipeline_is_sent(server: KfpServer, cluster: str) -> None:
    arguments = ["--pipeline", "rerank", "--systems", "k_nrm,colbert_distilled"]
    assert submit(server.url, "--cluster", cluster, *arguments) == 0
    (sent,) = server.seen("POST", ".*/runs")
    assert sent["display_name"].startswith("rerank-quickstart-2")
    assert not any(name.startswith("importer") for name in tasks_of(sent))
    settings = {task: json.loads(text).get("settings", {}) for task, text in arguments_of(sent).items()}
    assert settings == settings_of(rerank(load_settings("quickstart", []), ["k_nrm", "colbert_distilled"]))
    assert settings["train-reranker-k-nrm"]["kind"] == "k_nrm"
    assert {"score-candidates-colbert-distilled", "rerank-colbert-distilled"} <= set(settings)


@pytest.mark.slow
def test_first_stages_and_word_vectors_of_an_object_store(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("other.trec", "glove.txt"):
        (tmp_path / name).write_text("x", "utf-8")
    rerank = ["--pipeline", "rerank", "--systems", "k_nrm"]
    with slow_store(monkeypatch) as store:
        store.objects |= {"runs/other.trec.gz": b"1", "runs/glove.txt": b"2", f"runs/bundle/{MANIFEST}": b"3"}
        sent = {}
        for source in ("s3://bucket/runs/other.trec.gz", "s3://bucket/runs/bundle"):
            words = "train_reranker.word_vectors=s3://bucket/runs/glove.txt"
            assert submit(server.url, *rerank, "--first-stage", source, "--set", words) == 0
            sent[source] = server.seen("POST", ".*/runs")[-1]
        assert [imported(body) for body in sent.values()] == [[], ["s3://bucket/runs/bundle"]]
        digests = [
            {task: json.loads(text).get("source_digests") for task, text in arguments_of(body).items()}
            for body in sent.values()
        ]
        assert len({digest_of["first-stage"]["first_stage"] for digest_of in digests}) == 2
        assert all(digest_of["train-reranker-k-nrm"]["word_vectors"] for digest_of in digests)
        for source, words in (
            ("s3://bucket/runs/none.trec", "s3://bucket/runs/none.trec does not exist"),
            ("s3://bucket/runs", "s3://bucket/runs is no bundle; the name of a run file ends with .trec"),
        ):
            assert submit(server.url, *rerank, "--first-stage", source) == 2
            assert words in capsys.readouterr().err
    (tmp_path / "latest" / "bundle").mkdir(parents=True)
    (tmp_path / "backbone").mkdir()  # the default of word_vectors is no folder
    for more, words in (
        (["--first-stage", "other.trec"], "put it into an object store"),
        (["--first-stage", "none.trec"], "put it into an object store"),
        (["--first-stage", "latest"], f"gnn-encoder copy {tmp_path}/latest/bundle s3://BUCKET/FOLDER"),
        (["--set", "train_reranker.word_vectors=glove.txt"], "put it into an object store"),
    ):
        assert submit(server.url, *rerank, *more) == 2
        error = capsys.readouterr().err
        assert "lies on this machine, where no pod can read it" in error and words in error
    # ColBERT reads no word vectors.
    colbert = ["--pipeline", "rerank", "--systems", "colbert", "--set", "train_reranker.word_vectors=glove.txt"]
    assert submit(server.url, *colbert) == 0
    for more in (["--systems", "k_nrm"], ["--first-stage", ""]):
        assert submit(server.url, *more) == 2
        assert "add --pipeline rerank" in capsys.readouterr().err


def imported(sent: dict[str, Any]) -> list[str]:
    """The addresses of the artifacts that exist before a run."""
    document = sent["pipeline_spec"]
    executors = document.get("pipeline_spec", document)["deploymentSpec"]["executors"].values()
    return [executor["importer"]["artifactUri"]["constant"] for executor in executors if "importer" in executor]


def test_a_step_without_an_image_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["submit", "--preset", "quickstart", "--host", "http://127.0.0.1:1"]
    cluster = tmp_path / "c.yaml"
    for images, more in [("", []), ("{}", ["--dry-run"]), ("{gpu: a}", []), ("{cpu: a}", [])]:
        if images:
            cluster.write_text(f"images: {images}\nsteps: {{train_gnn: {{gpu: {{}}}}}}\n", "utf-8")
        assert call(*arguments, *(["--cluster", str(cluster)] if images else []), *more) == 2
        error = capsys.readouterr().err
        assert ("no image for ingest: " in error) == (images != "{cpu: a}") and error.count("\n") == 1


def test_the_description_refuses_what_it_does_not_have(server: KfpServer) -> None:
    assert submit(server.url) == 0
    (sent,) = server.seen("POST", ".*/runs")
    check(sent, "V2beta1Run")
    spec = sent["pipeline_spec"]
    wrong = [
        ({"run_name": "x"}, "no field 'run_name'"),
        ({"display_name": 5}, "is no str"),
        ({"runtime_config": {"parameters": {}, "root": "x"}}, "no field 'root'"),
        ({"state": "DONE"}, "is none of"),
        ({"pipeline_spec": {**spec, "rooot": {}}}, "rooot"),
    ]
    for change, words in wrong:
        with pytest.raises(ValueError, match=words):
            check({**sent, **change}, "V2beta1Run")
    operations = {(operation.method, operation.path): operation for operation in described()}
    assert operations["POST", "/apis/v2beta1/runs"].body == "V2beta1Run"
    assert operations["GET", "/apis/v2beta1/runs"].query >= {"experiment_id", "page_size", "sort_by"}
    status, _, _ = server.handle("POST", "/apis/v2beta1/runs", None, json.dumps({**sent, "run_name": "x"}))
    assert status == 400
    status, _, _ = server.handle("GET", "/apis/v2beta1/runs?experiment=1", None, "")
    assert status == 400
    assert len(server.problems) == 2
    server.problems.clear()


def test_runs_are_listed(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "--host", server.url) == 0
    assert capsys.readouterr().out == "no runs under gnn-encoder yet: start one with gnn-encoder submit\n"
    assert submit(server.url) == submit(server.url) == 0
    server.runs[0] |= {"state": "SUCCEEDED", "finished_at": "2026-11-22T03:10:05Z"}
    server.runs[1] |= {"state": "RUNNING", "finished_at": "1970-01-01T00:00:00Z"}
    capsys.readouterr()
    assert call("runs", "--host", server.url) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["created", "state", "took", "name", "run"]
    assert first.split()[2:4] == ["succeeded", "2:10:05"]
    assert second.split()[2] == "running" and "run-1" in second and "1970" not in second
    assert call("runs", "--host", server.url, "-n", "1") == 0
    assert "run-1" not in capsys.readouterr().out


def test_what_pods_cannot_reach_is_refused(
    tmp_path: Path, tiny_backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = "http://127.0.0.1:1"
    write_beir(tmp_path / "beir")
    (tmp_path / "trainer.yaml").write_text(f"{IMAGES}trainer: {{}}\n", "utf-8")
    (tmp_path / "kinds").mkdir()
    generator = ["--set", "write_queries.generator=http://127.0.0.1:9/v1#m"]
    for more, words in [
        (["--dataset", "kinds", "--set", "ingest.format=documents"], f"gnn-encoder copy {tmp_path}/kinds s3://"),
        (["--dataset", "beir"], f"{tmp_path}/beir lies on this machine, where no pod can read it"),
        (["--set", f"shared.backbone={tiny_backbone}", "--set", "train_gnn.heads=4"], "lies on this machine"),
        (
            ["--dataset", "s3://b/d", *generator, "--set", "write_queries.examples=asked.txt"],
            "asked.txt lies on this machine",
        ),
        (["--dataset", "s3://b/d", *generator, "--set", "write_queries.prompts=kinds"], "kinds lies on this machine"),
        (["--dataset", "s3://b/d", "--set", "ingest.log=log.csv"], "leave ingest.log out"),
        (["--pipeline", "ladder", "--dataset", "s3://b/d", "--set", "encode.vectors=k"], "leave encode.vectors out"),
        (["--cluster", str(EXAMPLE), "--set", "train_dpr.processes=2"], "gives the step 1 GPU"),
        (
            ["--cluster", "trainer.yaml", "--set", "train_gnn.nodes=2"],
            "train_gnn.nodes = 2: the pods of a TrainJob read and write beside the checkpoints: name an s3://",
        ),
        (
            ["--set", "train_gnn.nodes=2"],
            "train_gnn.nodes = 2: Kubeflow Trainer starts the nodes: set trainer in the cluster file, or "
            "train_gnn.processes instead",
        ),
        (
            ["--pipeline", "rerank", "--systems", "colbert", "--set", "train_reranker.nodes=2"],
            "train_reranker.nodes = 2: Kubeflow Trainer starts the nodes",
        ),
        (
            ["--pipeline", "rerank", "--systems", "bert_dmn_lite", "--set", "train_reranker.nodes=2"],
            "train_reranker of bert_dmn_lite: nodes = 2 needs a full re-ranker",
        ),
    ]:
        assert submit(host, *more) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


def test_a_training_with_nodes_is_sent_as_one_task(server: KfpServer, tmp_path: Path) -> None:
    needs = "defaults: {environment: {GNN_ENCODER_CHECKPOINTS: s3://bucket/checkpoints}}\ntrainer: {}\n"
    (tmp_path / "trainer.yaml").write_text(IMAGES + needs, "utf-8")
    options = ["--cluster", "trainer.yaml", "--set", "train_query_generator.nodes=2"]
    rerank = ["--pipeline", "rerank", "--systems", "colbert,ss_bert_h", "--set", "train_reranker.nodes=3"]
    assert submit(server.url, *options, "--set", "train_gnn.nodes=3") == 0
    assert submit(server.url, *options, *rerank) == 0
    trained, reranked = map(arguments_of, server.seen("POST", ".*/runs"))
    assert [task for task in trained if task.startswith("train-gnn")] == ["train-gnn"]
    assert json.loads(trained["train-gnn"])["settings"]["nodes"] == 3
    nodes = {task: json.loads(text).get("settings", {}).get("nodes") for task, text in reranked.items()}
    assert {task: count for task, count in nodes.items() if count} == {
        "train-reranker-colbert": 3,
        "train-reranker-ss-bert-h": 3,
        "train-query-generator": 2,
    }


def test_a_dry_run_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*address: Any, **more: Any) -> None:
        raise AssertionError("a dry run asked somebody")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(AssertionError):
        submit("http://127.0.0.1:1")
    arguments = ["submit", "--preset", "quickstart", "--cluster", str(EXAMPLE), "--dry-run"]
    assert call(*arguments) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "cpu", "memory", "gpu", "node", "timeout", "retries", "image"]
    (training,) = (row for row in rows if row.startswith("train_gnn "))
    needs = ["train_gnn", "4-8", "32Gi-64Gi", "4", "nvidia.com/gpu", "amd64,", "nvidia-l4", "86400", "s", "3"]
    assert training.split()[:10] == needs
    assert rows[-1] == "wrote gnn-encoder-train.yaml"
    assert (tmp_path / "gnn-encoder-train.yaml").is_file()
