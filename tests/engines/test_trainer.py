"""The followers of a training as a TrainJob: what is created, what ends it, and that they train what one trains."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
import torch
from conftest import write_first_run
from kubernetes_api import JOBS, LEADER, PODS, KubernetesApi, check_train_job, leaders_pod
from node_machines import LOST, Machine, machines_for, machines_of, train_apart
from slow_store import SlowStore, slow_store
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset
from gnn_encoder.engines import nodes, trainer, trainer_api
from gnn_encoder.engines.trainer import Training, train_job, trouble
from gnn_encoder.engines.trainer_api import TRAINER, TRAINING
from gnn_encoder.errors import UserError
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.pipeline import Call, StepArguments
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.tracking.context import CHECKPOINTS, TOKENS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog

pytestmark = pytest.mark.timeout(600)
ROOT = "s3://bucket/checkpoints"
RUNTIME = "ClusterTrainingRuntime/torch-distributed"
INPUTS = {"dataset": "s3://bucket/run/dataset", "graph": "minio://bucket/run/graph"}
CALL = StepArguments(settings={"nodes": 3, "node": 0, "note": "$(HOME)"}, label="node 1 of 3", code_digest="c")
TRAINED = Training("train_gnn", CALL, "k" * 64, 3, INPUTS, ("gnn_encoder",))
ENVIRONMENT = {"AWS_ENDPOINT_URL": "https://store:7443", TRAINER: RUNTIME}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    with slow_store(monkeypatch) as store:
        yield store


FORBIDDEN = 'trainjobs is forbidden: User "system:serviceaccount:retrieval:runner" cannot create resource "trainjobs"'


@contextmanager
def cluster(monkeypatch: pytest.MonkeyPatch, folder: Path, starts: bool = False, **env: str) -> Iterator[KubernetesApi]:
    """A cluster of which this process is the leader's pod; its followers have files in `folder` alone."""
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "GNN_ENCODER_S3_ADDRESSING")
    given = {name: os.environ.get(name, "") for name in names}
    own = folder / "follower"
    own.mkdir(parents=True)
    source = Path(nodes.__file__).parents[2]
    given |= {CHECKPOINTS: ROOT, nodes.LOST: str(LOST), "OMP_NUM_THREADS": "1", TOKENS: str(own / "tokens")}
    given |= {"TMPDIR": str(own), "PYTHONPATH": f"{own}{os.pathsep}{source}"}
    # Like node_training.py: some gradients are zero but for rounding.
    same = "from functools import partial\nimport torch\ntorch.optim.AdamW = partial(torch.optim.AdamW, eps=1e-4)\n"
    (own / "sitecustomize.py").write_text(same, "utf-8")
    pod = leaders_pod(
        given | env | {TRAINER: RUNTIME}, {"AWS_SECRET_ACCESS_KEY": "secret-key"}, own / "termination-log"
    )
    with KubernetesApi(pod, {"secret-key": "secret"}, folder, starts) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.config))
        monkeypatch.setenv("KFP_POD_NAME", LEADER)
        monkeypatch.setattr(trainer, "POLL_SECONDS", 0.2)
        if not starts:
            monkeypatch.setattr(trainer, "END_SECONDS", 0.0)  # a TrainJob without pods is never complete
        yield api


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KubernetesApi]:
    with cluster(monkeypatch, tmp_path / "cluster") as api:
        yield api


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    monkeypatch.setenv(nodes.LOST, "2")
    return Context("train_gnn", StepLog(), "key")


def led(context: Context) -> Any:
    """The leader's block, of a training with three nodes."""
    return nodes.gathered(context, 0, 3, partial(TRAINED.followers, RUNTIME))


def test_a_trainjob_has_what_the_leaders_pod_has_and_nothing_of_kfp(tmp_path: Path) -> None:
    pod = leaders_pod(ENVIRONMENT, {"AWS_SECRET_ACCESS_KEY": "secret-key"}, tmp_path / "log")
    job = train_job("train-gnn-1", RUNTIME, TRAINED, pod)
    check_train_job(json.loads(json.dumps(job)))
    assert job["metadata"]["labels"] == {
        "gnn-encoder/training": "k" * 20, "kueue.x-k8s.io/queue-name": "gpus", "pipeline/runid": "run-0",
    }  # fmt: skip
    assert job["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": LEADER, "uid": "b1"}]
    own = job["spec"]["trainer"]
    assert own["numNodes"] == 2 and own["image"] == "registry.example.com/gnn-encoder-python:0.1.0-gpu"
    assert own["env"] == [
        {"name": "AWS_ENDPOINT_URL", "value": "https://store:7443"},
        {
            "name": "AWS_SECRET_ACCESS_KEY",
            "valueFrom": {"secretKeyRef": {"name": "store", "key": "secret-key"}},
        },
    ]
    assert own["resourcesPerNode"]["limits"] == {"cpu": "8", "nvidia.com/gpu": "4"}
    assert "$$(HOME)" in own["args"][0] and "$(HOME)" not in own["args"][0].replace("$$", "")
    given = json.loads(own["args"][0].replace("$$", "$"))
    assert given["inputs"] == {"dataset": "s3://bucket/run/dataset", "graph": "s3://bucket/run/graph"}
    assert StepArguments.model_validate(given["arguments"]) == CALL
    (jobs,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = jobs["template"]["spec"]["template"]
    assert template["metadata"]["labels"] == {
        "pipeline/runid": "run-0",
        "team": "search",
        "sidecar.istio.io/inject": "false",
    }
    spec = template["spec"]
    assert [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]] == ["/hub", "/dev/shm"]
    assert [each["name"] for each in spec["volumes"]] == ["hub", "shm"]
    assert spec["containers"][0]["securityContext"]["runAsUser"] == 1000
    assert spec["serviceAccountName"] == "pipeline-runner" and spec["nodeSelector"] and spec["tolerations"]
    with pytest.raises(ValueError, match="strict decoding error"):
        check_train_job({**job, "spec": {**job["spec"], "podTemplateOverrides": []}})


@pytest.mark.parametrize("address", ["", "/minio/bucket/graph", "gs://bucket/graph"])
def test_an_input_that_followers_cannot_read_is_named(address: str, tmp_path: Path) -> None:
    training = Training("train_gnn", CALL, "key", 3, {"graph": address}, ())
    with pytest.raises(
        UserError, match=f"the input graph is at {address or 'no address'}, which the pods of a TrainJob"
    ):
        train_job("a", RUNTIME, training, leaders_pod({}, {}, tmp_path))


@pytest.mark.parametrize(
    ("request_", "status", "said", "line"),
    [
        (
            f"GET {PODS}/{LEADER}",
            403,
            FORBIDDEN,
            r"service account may not get pods in retrieval: .*docs/production.md",
        ),
        (f"GET {JOBS}", 403, FORBIDDEN, r"service account may not list trainjobs in retrieval: .*docs/production.md"),
        (f"POST {JOBS}", 403, "exceeded quota: gpus", "the cluster refuses to create trainjobs: exceeded quota: gpus"),
        (f"POST {JOBS}", 404, 'namespaces "retrieval" not found', "refuses to create trainjobs: namespaces"),
        (f"POST {JOBS}", 403, FORBIDDEN, r"service account may not create trainjobs in retrieval: .*production.md"),
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
        (f"GET {PODS}", 403, FORBIDDEN, r"service account may not list pods in retrieval: .*docs/production.md"),
    ],
)
def test_what_the_cluster_refuses_is_one_line(
    request_: str, status: int, said: str, line: str, api: KubernetesApi, context: Context
) -> None:
    api.refusals[request_] = status, said
    with pytest.raises(UserError, match=line) as raised, led(context):
        pass
    assert "\n" not in str(raised.value)
    assert not api.jobs and not context.meeting().read()


def test_a_failed_trainjob_ends_the_leader_before_the_meeting_and_in_training(
    api: KubernetesApi, context: Context
) -> None:
    failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "jobset failed"}

    def fail() -> None:
        wait_for(lambda: bool(api.jobs))
        for job in list(api.jobs.values()):
            job["status"] = {"conditions": [failed]}

    thread = Thread(target=fail)
    thread.start()
    with (
        pytest.raises(UserError, match=r"^TrainJob train-gnn-\w{8}: it failed: FailedJobs: jobset failed; run"),
        led(context),
    ):
        pass
    thread.join()
    with met(context) as block, pytest.raises(UserError, match="it failed: FailedJobs"), block as team:
        fail()
        assert team.alarm.poll(10), "a training waits for this"
        assert re.match("TrainJob .* it failed: FailedJobs: jobset failed", str(team.failure))
    assert not api.jobs and len(api.deleted) == 2


@contextmanager
def met(context: Context) -> Iterator[Any]:
    """The leader's block, in which two followers come; theirs are threads."""

    def follow(number: int) -> None:
        with suppress(Exception), nodes.gathered(context, number, 3):
            pass

    threads = [Thread(target=follow, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    yield led(context)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("error", [None, UserError("mend it"), KeyboardInterrupt()])
def test_the_trainjob_is_deleted_in_every_case(
    error: BaseException | None, api: KubernetesApi, context: Context
) -> None:
    with met(context) as block:
        try:
            with block:
                assert len(api.jobs) == 1
                if error:
                    raise error
        except (UserError, KeyboardInterrupt) as raised:
            assert raised is error
    assert not api.jobs and len(api.created) == 1


def test_a_trainjob_of_an_earlier_attempt_is_deleted_first(api: KubernetesApi, context: Context) -> None:
    for name, key in (("old", "k" * 20), ("other", "x")):
        api.jobs[name] = {"metadata": {"name": name, "labels": {TRAINING: key, "pipeline/runid": "run-0"}}}
    api.jobs["others"] = {"metadata": {"name": "others", "labels": {TRAINING: "k" * 20, "pipeline/runid": "run-1"}}}
    with met(context) as block, block:
        assert set(api.jobs) == {"other", "others", api.created[0]["metadata"]["name"]}


def test_pods_of_an_earlier_attempt_do_not_join(
    api: KubernetesApi, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.jobs["old"] = {"metadata": {"name": "old", "labels": {TRAINING: "k" * 20, "pipeline/runid": "run-0"}}}
    api.pods["old"] = [{"metadata": {"name": "pod"}}]
    Timer(1.5, api.pods.clear).start()
    with met(context) as block, block:
        assert not api.pods
    monkeypatch.setattr(trainer_api, "GONE_SECONDS", 0.1)
    api.jobs["old"] = {"metadata": {"name": "old", "labels": {TRAINING: "k" * 20, "pipeline/runid": "run-0"}}}
    api.pods["old"] = [{"metadata": {"name": "pod"}}]
    with pytest.raises(
        UserError, match=r"pods of TrainJob old, of an earlier attempt, do not end; .* kubectl delete pods"
    ):
        led(context).__enter__()


def test_a_trainjob_that_cannot_be_deleted_is_named(
    api: KubernetesApi, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    with met(context) as block, block:
        (name,) = api.jobs
        api.refusals[f"DELETE {JOBS}/{name}"] = 403, "forbidden"
    told = f"warning: TrainJob {name} was not deleted (forbidden): kubectl delete trainjob -n retrieval {name}"
    assert told in capsys.readouterr().err


def node(state: dict[str, Any], **before: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "node", "state": state, "lastState": before}
    label = {"batch.kubernetes.io/job-completion-index": "1"}
    return {"metadata": {"name": "pod", "labels": label}, "status": {"containerStatuses": [status]}}


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
            "node 3 of 3 cannot start: ImagePullBackOff: no image",
            False,
        ),
        (
            [node({"running": {}}, terminated={"exitCode": 137, "reason": "OOMKilled"})],
            [],
            "node 3 of 3 ended with exit code 137: OOMKilled",
            False,
        ),
        ([node({"terminated": {"exitCode": 0}})], [], "", False),
        (
            [{"metadata": {"name": "a"}, "status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}],
            [],
            "pod a failed: Evicted: disk",
            False,
        ),
        ([], ["Failed"], "it failed: why: what", False),
        ([], ["Complete"], "it is complete, although the training is not", False),
    ],
)
def test_the_trouble_of_a_trainjob(pods: list[dict[str, Any]], conditions: list[str], cause: str, waits: bool) -> None:
    found = [{"type": each, "status": "True", "reason": "why", "message": "what"} for each in conditions]
    assert trouble({"status": {"conditions": found}}, pods, 3) == (cause, waits)
    assert trouble({}, [], 3) == ("it was deleted", False)


def test_a_trainjob_without_pods_ends_the_leader(
    api: KubernetesApi, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PODLESS_SECONDS", 0.5)
    what = r"it has no pods after 0 s; run again, or see kubectl describe trainjob,jobset -n retrieval train-gnn-\w{8}$"
    with pytest.raises(UserError, match=what), led(context):
        pass


@pytest.mark.slow
def test_why_a_follower_ends_before_the_meeting_is_told(
    context: Context, store: SlowStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    why = r"node [23] of 3 ended with exit code 2: s3://bucket/run/dataset holds nothing: check the address; run again"
    with (
        cluster(monkeypatch, tmp_path / "cluster", starts=True) as api,
        pytest.raises(UserError, match=why),
        led(context),
    ):
        pass
    assert not api.jobs


@pytest.fixture(scope="module")
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    build = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
    return write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path_factory.mktemp("given"), build)


def leader_of(
    folder: Path,
    inputs: dict[str, Path],
    count: int,
    store: SlowStore,
    monkeypatch: pytest.MonkeyPatch,
    **settings: Any,
) -> Machine:
    """The leader of a training."""
    return with_stored_inputs(machines_of(folder, inputs, count, ROOT, **settings)[0], inputs, store, monkeypatch)


def with_stored_inputs(
    leader: Machine, inputs: dict[str, Path], store: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    """A leader whose inputs are in the store as KFP's launcher puts them there: without an index."""
    for name, path in inputs.items():
        files = {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        store.objects |= {f"run/{name}/{file}": content for file, content in files.items()}
    leader.addresses = {name: f"minio://bucket/run/{name}" for name in inputs}
    monkeypatch.setenv(TRAINER, RUNTIME)
    return leader


@pytest.mark.slow
def test_a_leader_and_a_trainjob_train_what_one_trains(
    inputs: dict[str, Path], store: SlowStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (alone,) = machines_of(tmp_path / "alone", inputs, 1, ROOT)
    leader = leader_of(tmp_path / "led", inputs, 3, store, monkeypatch)
    with cluster(monkeypatch, tmp_path / "cluster", starts=True) as api:
        train_apart(alone, [leader])
        assert [process.returncode for process in api.processes] == [0, 0]
    assert len(api.created) == 1 and not api.jobs
    assert not [key for key in store.objects if not key.startswith("run/")], "no checkpoints and no announcement"
    assert not list((tmp_path / "cluster" / "follower").glob("follower-*")), "the followers' inputs are deleted"


@pytest.mark.slow
def test_a_re_ranker_and_its_followers_train_what_one_trains(
    tiny_dataset: Dataset, tiny_backbone: Path, store: SlowStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inputs = {"dataset": tiny_dataset.path, "first_run": write_first_run(tiny_dataset, tmp_path / "first_run")}
    values = {
        "epochs": 1, "batch_size": 6, "learning_rate": 1e-3, "head_learning_rate": 1e-3, "precision": "fp32",
        "dropout": 0.0, "dev_queries": 0, "keep": "last", "adam_epsilon": 1e-4, "backbone": str(tiny_backbone),
    }  # fmt: skip
    made = {}
    for count in (1, 2):
        settings = TrainReranker.model_validate({**values, "nodes": count}).for_system("colbert")
        made[str(count)] = Call("train_reranker", settings, "ColBERT")
    alone, leader = machines_for(tmp_path / "machines", inputs, made, ROOT)
    with_stored_inputs(leader, inputs, store, monkeypatch)
    with cluster(monkeypatch, tmp_path / "cluster", starts=True) as api:
        train_apart(alone, [leader])
        assert [process.returncode for process in api.processes] == [0]
    assert [job["spec"]["trainer"]["numNodes"] for job in api.created] == [1] and not api.jobs


@pytest.mark.slow
def test_a_killed_leader_frees_the_followers_and_its_next_attempt_resumes_with_others(
    inputs: dict[str, Path], store: SlowStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    leader = leader_of(tmp_path / "led", inputs, 2, store, monkeypatch, epochs=10, dropout=0.1)
    with cluster(monkeypatch, tmp_path / "cluster", starts=True) as api:
        try:
            leader.start()
            wait_for(lambda: any("/states/" in key for key in store.objects))
            os.kill(leader.process.pid, signal.SIGKILL)
            assert api.processes[0].wait(60) == 0, "Kubernetes must not start it again"
            (old,) = api.jobs
            said = leader.start().end()
            assert leader.process.returncode == 0 and "resumed at" in said
        finally:
            leader.kill()
    assert api.deleted[0] == old and len(api.deleted) == 2 and not api.jobs
    assert all(torch.isfinite(weight).all() for weight in leader.weights.values())


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
