"""A training as a TrainJob: what is created, and what ends it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from kubernetes_api import JOBS, PODS, STEP_POD, KubernetesApi, check_train_job, steps_pod
from slow_store import slow_store
from trainjobs import REQUESTS, ROOT, cluster
from waiting import wait_for

from gnn_encoder.artifacts import Dataset, Draft, drafting
from gnn_encoder.engines import elastic, trainer, trainer_api
from gnn_encoder.engines.rank import _leave
from gnn_encoder.engines.trainer import Training, follow, own_run, train_job, trouble
from gnn_encoder.engines.trainer_api import TRAINING
from gnn_encoder.engines.trainer_requests import TRAINER, Requests
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.steps.train_dpr import train_dpr
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog

pytestmark = pytest.mark.timeout(600)
PLACE = f"{ROOT}/train_gnn-{'k' * 20}-training"
TRAINED = Training("train_gnn", "train_gnn", "k" * 64, nodes=3, processes=2, address=PLACE)
FORBIDDEN = 'trainjobs is forbidden: User "system:serviceaccount:retrieval:runner" cannot create resource "trainjobs"'


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubernetesApi]:
    with cluster(monkeypatch, tmp_path / "cluster", ROOT, starts=False) as api:
        yield api


def test_a_trainjob_has_what_the_steps_pod_has_and_nothing_of_kfp(tmp_path: Path) -> None:
    environment = {"AWS_ENDPOINT_URL": "https://store:7443", TRAINER: REQUESTS.model_dump_json()}
    pod = steps_pod(environment, {"AWS_SECRET_ACCESS_KEY": "secret-key"}, tmp_path / "log")
    job = train_job("train-gnn-1", REQUESTS, TRAINED, pod)
    check_train_job(json.loads(json.dumps(job)))
    assert job["metadata"]["labels"] == {
        "gnn-encoder/training": "k" * 20, "kueue.x-k8s.io/queue-name": "gpus", "pipeline/runid": "run-0",
    }  # fmt: skip
    assert job["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": STEP_POD, "uid": "b1"}]
    node = job["spec"]["trainer"]
    assert (node["numNodes"], node["numProcPerNode"]) == (3, 2)
    assert node["image"] == "registry.example.com/gnn-encoder-python:0.1.0-gpu"
    assert node["command"] == ["python3", *elastic.COMMAND] and node["args"] == [PLACE]
    assert node["env"] == [
        {"name": "AWS_ENDPOINT_URL", "value": "https://store:7443"},
        {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "store", "key": "secret-key"}}},
        {"name": "GNN_ENCODER_TERMINATION_LOG", "value": str(tmp_path / "log")},
    ]
    assert node["resourcesPerNode"] == REQUESTS.resources, "those of the cluster file, not those of the waiting pod"
    (jobs,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = jobs["template"]["spec"]["template"]
    assert template["metadata"]["labels"] == {
        "pipeline/runid": "run-0",
        "team": "search",
        "sidecar.istio.io/inject": "false",
    }
    spec = template["spec"]
    assert [volume["mountPath"] for volume in spec["containers"][0]["volumeMounts"]] == ["/hub", "/dev/shm"]
    assert [volume["name"] for volume in spec["volumes"]] == ["hub", "shm"]
    assert spec["containers"][0]["securityContext"]["runAsUser"] == 1000
    assert spec["serviceAccountName"] == "pipeline-runner" and spec["nodeSelector"] and spec["tolerations"]
    with pytest.raises(ValueError, match="strict decoding error"):
        check_train_job({**job, "spec": {**job["spec"], "podTemplateOverrides": []}})


@pytest.mark.parametrize("address", ["", "/minio/bucket/graph", "gs://bucket/graph"])
def test_an_input_that_pods_cannot_read_is_named(address: str) -> None:
    assert elastic.readable({"graph": "minio://bucket/run/graph"}) == {"graph": "s3://bucket/run/graph"}
    with pytest.raises(UserError, match=f"the input graph is at {address or 'no address'}, which the pods of a Train"):
        elastic.readable({"graph": address})


def test_nodes_without_a_package_for_them_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRAINER, raising=False)
    with pytest.raises(UserError, match="needs GNN_ENCODER_TRAINER, which a package with nodes sets"):
        Requests.read()


@pytest.mark.parametrize(
    ("request_", "status", "said", "line"),
    [
        (
            f"GET {PODS}/{STEP_POD}",
            403,
            FORBIDDEN,
            r"service account may not get pods in retrieval: .*docs/guides/kubeflow.md",
        ),
        (
            f"GET {JOBS}",
            403,
            FORBIDDEN,
            r"service account may not list trainjobs in retrieval: .*docs/guides/kubeflow.md",
        ),
        (f"POST {JOBS}", 403, "exceeded quota: gpus", "the cluster refuses to create trainjobs: exceeded quota: gpus"),
        (f"POST {JOBS}", 404, 'namespaces "retrieval" not found', "refuses to create trainjobs: namespaces"),
        (f"POST {JOBS}", 403, FORBIDDEN, r"service account may not create trainjobs in retrieval: .*kubeflow.md"),
        (
            f"GET {JOBS}",
            404,
            "page not found",
            r"no TrainJob .trainer.kubeflow.org/v1alpha1.: ask its administrator to install Kubeflow Trai",
        ),
        (
            f"POST {JOBS}",
            403,
            'admission webhook "v" denied the request: no runtime',
            r"refuses to create .* no runtime",
        ),
        (
            f"POST {JOBS}",
            400,
            'unknown field "spec.runtimePatches"',
            r"runtimePatches\"; Kubeflow Trainer 2.2 or newer",
        ),
        (f"POST {JOBS}", 500, "etcd", r"the Kubernetes API answers 500 \(etcd\); run again"),
        (f"GET {PODS}", 403, FORBIDDEN, r"service account may not list pods in retrieval: .*docs/guides/kubeflow.md"),
    ],
)
def test_what_the_cluster_refuses_is_one_line(
    request_: str, status: int, said: str, line: str, api: KubernetesApi
) -> None:
    api.refusals[request_] = status, said
    with pytest.raises(UserError, match=line) as raised:
        follow(TRAINED)
    assert "\n" not in str(raised.value)
    assert not api.jobs


def with_condition(api: KubernetesApi, kind: str, message: str = "") -> Thread:
    """Gives the next TrainJob a condition as soon as it exists."""

    def set_it() -> None:
        wait_for(lambda: bool(api.created))
        api.created[-1]["status"] = {
            "conditions": [{"type": kind, "status": "True", "reason": kind, "message": message}]
        }

    thread = Thread(target=set_it)
    thread.start()
    return thread


def test_a_failed_trainjob_ends_the_step_and_is_deleted(api: KubernetesApi) -> None:
    thread = with_condition(api, "Failed", "jobset failed")
    with pytest.raises(UserError, match=r"^TrainJob train-gnn-\w{8}: it failed: Failed: jobset failed; run again"):
        follow(TRAINED)
    thread.join()
    assert not api.jobs and len(api.created) == 1


def test_a_complete_trainjob_is_deleted(api: KubernetesApi) -> None:
    thread = with_condition(api, "Complete")
    follow(TRAINED)
    thread.join()
    assert not api.jobs and len(api.deleted) == 1


def test_an_interrupted_step_deletes_its_trainjob(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_await_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        follow(TRAINED)
    assert not api.jobs and len(api.created) == 1


def test_a_trainjob_of_an_earlier_attempt_is_deleted_first(api: KubernetesApi) -> None:
    for name, key in (("old", "k" * 20), ("other", "x")):
        api.jobs[name] = {"metadata": {"name": name, "labels": {TRAINING: key, "pipeline/runid": "run-0"}}}
    api.jobs["others"] = {"metadata": {"name": "others", "labels": {TRAINING: "k" * 20, "pipeline/runid": "run-1"}}}
    thread = with_condition(api, "Complete")
    follow(TRAINED)
    thread.join()
    assert set(api.jobs) == {"other", "others"} and api.deleted[0] == "old"


@pytest.mark.slow
def test_pods_of_an_earlier_attempt_do_not_join(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"metadata": {"name": "old", "labels": {TRAINING: "k" * 20, "pipeline/runid": "run-0"}}}
    api.jobs["old"], api.pods["old"] = old, [{"metadata": {"name": "pod"}}]
    Timer(1.5, api.pods.clear).start()
    thread = with_condition(api, "Complete")
    follow(TRAINED)
    thread.join()
    assert not api.pods
    monkeypatch.setattr(trainer_api, "GONE_SECONDS", 0.1)
    api.jobs["old"], api.pods["old"] = old, [{"metadata": {"name": "pod"}}]
    with pytest.raises(UserError, match=r"pods of TrainJob old, of an earlier attempt, do not end; .* kubectl delete"):
        follow(TRAINED)


def test_a_trainjob_that_cannot_be_deleted_is_named(api: KubernetesApi, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        wait_for(lambda: bool(api.created))
        name = api.created[0]["metadata"]["name"]
        api.refusals[f"DELETE {JOBS}/{name}"] = 403, "forbidden"
        with_condition(api, "Complete").join()

    thread = Thread(target=refuse)
    thread.start()
    follow(TRAINED)
    thread.join()
    (name,) = api.jobs
    warning = f"warning: TrainJob {name} was not deleted (forbidden): kubectl delete trainjob -n retrieval {name}"
    assert warning in capsys.readouterr().err


def node(state: dict[str, Any], index: int = 2, **before: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "node", "state": state, "lastState": before}
    label = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {"metadata": {"name": "pod", "labels": label}, "status": {"containerStatuses": [status]}}


BROKE = node({"terminated": {"exitCode": 1, "message": "rank 0: RuntimeError: [gloo/transport] closed"}}, index=0)


@pytest.mark.parametrize(
    ("pods", "conditions", "cause", "waits"),
    [
        ([], [], "", True),
        ([], ["Suspended"], "", False),
        ([node({"running": {}})], [], "", False),
        ([node({"waiting": {"reason": "ContainerCreating"}})], [], "", False),
        (
            [node({"waiting": {"reason": "ImagePullBackOff", "message": "no\nimage"}})],
            [],
            "node 3 cannot start: ImagePullBackOff: no image",
            False,
        ),
        (
            [BROKE, node({"running": {}}, terminated={"exitCode": 137, "reason": "OOMKilled"})],
            [],
            "node 3 ended with exit code 137: OOMKilled",
            False,
        ),
        ([BROKE], [], "node 1 ended with exit code 1: rank 0: RuntimeError: [gloo/transport] closed", False),
        ([node({"terminated": {"exitCode": 0}})], [], "", False),
        (
            [{"metadata": {"name": "a"}, "status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}],
            [],
            "pod a failed: Evicted: disk",
            False,
        ),
        ([], ["Failed"], "it failed: why: what", False),
    ],
)
def test_the_trouble_of_a_trainjob(pods: list[dict[str, Any]], conditions: list[str], cause: str, waits: bool) -> None:
    reported = [{"type": condition, "status": "True", "reason": "why", "message": "what"} for condition in conditions]
    assert trouble({"status": {"conditions": reported}}, pods) == (cause, waits)
    assert trouble({}, []) == ("it was deleted", False)


def test_the_address_of_a_training_is_of_its_run(api: KubernetesApi) -> None:
    assert own_run("train_gnn") == "run-0"
    api.pod["metadata"]["labels"].pop("pipeline/runid")
    assert own_run("train_gnn") == "b1"


@pytest.mark.slow
def test_a_hand_over_that_cannot_be_deleted_ends_no_step(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is at an address of the run. What the pods do is left out but for what rank 0 leaves."""
    addresses: list[str] = []
    context = Context("train_dpr", StepLog(), "k" * 64)

    def leave_a_result(training: Training) -> None:
        addresses.append(training.address)
        drafts = {"dpr": Draft(tmp_path / "rank", "model")}
        (drafts["dpr"] / "weights").write_text("1")
        (tmp_path / "scratch").mkdir()
        _leave(training.address, tmp_path / "scratch", elastic.result_of({"steps": 2}, context, drafts), drafts)

    def refuse(address: str) -> None:
        raise UserError("the store denies access")

    monkeypatch.setattr(trainer, "follow", leave_a_result)
    monkeypatch.setattr(elastic, "remove_folder", refuse)
    with slow_store(monkeypatch), drafting(tmp_path / "dpr", "model") as draft:
        metrics = elastic.train_on_nodes(train_dpr, 1, 2, context, TrainDpr(nodes=2), {"dpr": draft})
    assert metrics["steps"] == 2 and (tmp_path / "dpr" / "weights").read_text() == "1"
    assert addresses == [f"{ROOT}/train_dpr-{'k' * 20}-training-run-0"]
    assert f"{addresses[0]}/outputs/dpr, which nobody needs, is left in the store" in capsys.readouterr().err


@contextmanager
def without_an_answer(api: KubernetesApi, seconds: float) -> Iterator[None]:
    """For so long the API answers nothing about the next TrainJob, which then is complete."""

    def refuse() -> None:
        wait_for(lambda: bool(api.created))
        path = f"GET {JOBS}/{api.created[0]['metadata']['name']}"
        api.refusals[path] = 503, "etcd"
        time.sleep(seconds)
        del api.refusals[path]
        time.sleep(0.3)
        with_condition(api, "Complete").join()

    thread = Thread(target=refuse)
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
def test_an_api_that_does_not_answer_for_long_ends_the_step(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PATIENCE_SECONDS", 0.3)
    with without_an_answer(api, 2.0), pytest.raises(UserError, match=r"the Kubernetes API answers 503 .*; run again"):
        follow(TRAINED)


@pytest.mark.slow
def test_an_api_that_does_not_answer_says_nothing_about_pods(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PODLESS_SECONDS", 1.0)
    with without_an_answer(api, 1.5):
        follow(TRAINED)


def test_a_trainjob_without_pods_ends_the_step(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "PODLESS_SECONDS", 0.5)
    what = r"it has no pods after 0 s; run again, or see kubectl get events -n retrieval \| grep train-gnn-\w{8}$"
    with pytest.raises(UserError, match=what):
        follow(TRAINED)


def test_a_place_on_one_machine_is_refused(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    with pytest.raises(UserError, match=r"train_dpr.nodes = 2: the pods of a TrainJob read their call at the place"):
        train_dpr(TrainDpr(nodes=2), dataset=tiny_dataset.path, bm25_run=tiny_dataset.path, dpr=tmp_path / "dpr")
