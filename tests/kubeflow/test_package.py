"""The package of a graph for the example cluster: its calls and artifacts, and the right needs on the right tasks."""

from collections.abc import Iterator
from typing import Any

import kfp
import pytest
import yaml
from kfp_api import EXAMPLE, check_pipeline
from packages import arguments_without_digests, documents, graph_of, packaged

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.engines.trainer_requests import TRAINER, Requests
from gnn_encoder.flow.arguments import StepArguments, task_name
from gnn_encoder.flow.graph import Given, Output
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import load_cluster, write_package
from gnn_encoder.kubeflow.step_needs import StepNeeds
from gnn_encoder.models.trusted_code import TRUSTED
from gnn_encoder.settings.services import ALLOWED

WITH_ALL_STEPS = "evaluate.rerank_depth=10"
GRAPH = graph_of("train", WITH_ALL_STEPS)
STEPS = list(dict.fromkeys(node.step for node in GRAPH.nodes))

REGISTRY = "registry.example.com/retrieval/gnn-encoder-python:0.1.0"
ON_GPU = {
    "train_dpr", "dense_retrieve", "train_cross_encoder", "score_candidates", "train_query_generator",
    "generate_queries", "train_dual_encoder", "build_graph", "train_gnn", "encode_nodes", "encode_corpus", "rerank",
}  # fmt: skip
Documents = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The written text of the package for the example, its pipeline and its platforms."""
    path = tmp_path_factory.mktemp("package") / "package.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
        patch.setenv("GNN_ENCODER_KFP_TOKEN", "hunter22")
        write_package(GRAPH, arguments_without_digests(GRAPH), load_cluster(EXAMPLE), path)
    text = path.read_text("utf-8")
    spec, platforms = yaml.safe_load_all(text)
    yield text, spec, platforms


def compiled(cluster: Cluster, pipeline: str = "train", *overrides: str) -> Documents:
    return documents(cluster.model_dump_json(exclude_unset=True), pipeline, *overrides)


def tasks_of(spec: dict[str, Any]) -> dict[str, Any]:
    tasks: dict[str, Any] = spec["root"]["dag"]["tasks"]
    return tasks


def executor(spec: dict[str, Any], task: str) -> str:
    """The label of a task's executor, by which both documents name what it needs."""
    return str(spec["components"][tasks_of(spec)[task]["componentRef"]["name"]]["executorLabel"])


def containers(spec: dict[str, Any]) -> dict[str, Any]:
    """Task → its container."""
    executors = {task: spec["deploymentSpec"]["executors"][executor(spec, task)] for task in tasks_of(spec)}
    return {task: one["container"] for task, one in executors.items() if "container" in one}


def needs_on_kubernetes(platforms: dict[str, Any]) -> dict[str, Any]:
    """Label of an executor → what its pod needs."""
    executors: dict[str, Any] = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return executors


@pytest.mark.parametrize("step", STEPS)
def test_each_call_of_a_step_asks_for_what_the_file_says(
    step: str, package: tuple[str, dict[str, Any], dict[str, Any]]
) -> None:
    _, spec, platforms = package
    for node in GRAPH.of(step):
        task = task_name(node.title)
        on = needs_on_kubernetes(platforms)[executor(spec, task)]
        check_needs(step, containers(spec)[task], on)
        assert tasks_of(spec)[task]["retryPolicy"] == {
            "maxRetryCount": 3,
            "backoffDuration": "30s",
            "backoffFactor": 2,
            "backoffMaxDuration": "604800s",
        }


def check_needs(step: str, container: dict[str, Any], on: dict[str, Any]) -> None:
    resources = dict(container["resources"])
    accelerator = resources.pop("accelerator", None)
    tolerations = {(entry["key"], entry["operator"], entry["effect"]) for entry in on["tolerations"]}
    mounts = {entry["mountPath"]: entry["sizeLimit"] for entry in on["emptyDirMounts"]}
    spot = ("cloud.example.com/spot", "Equal", "NoSchedule")
    if step in ON_GPU:
        assert accelerator == {"resourceType": "nvidia.com/gpu", "resourceCount": "4" if step == "train_gnn" else "1"}
        assert container["image"] == f"{REGISTRY}-gpu"
        unreachable = ("node.kubernetes.io/unreachable", "Exists", "NoExecute")
        assert tolerations == {spot, ("nvidia.com/gpu", "Exists", "NoSchedule"), unreachable}
        assert [entry.get("tolerationSeconds") for entry in on["tolerations"]] == [None, None, "300"]
        assert on["nodeSelector"]["labels"] == {
            "kubernetes.io/arch": "amd64",
            "cloud.example.com/accelerator": "nvidia-l4",
        }
        assert on["activeDeadlineSeconds"] == ("86400" if step == "train_gnn" else "43200")
        assert mounts == {"/tmp": "20Gi", "/dev/shm": "8Gi", "/scratch": "200Gi"}
        requested = ["4", "8", "32Gi", "64Gi"]
    else:
        assert accelerator is None
        assert "gpu" not in str(on).lower() and "gpu" not in str(container["resources"]).lower()
        assert container["image"] == REGISTRY
        assert tolerations == {spot}
        assert on["nodeSelector"]["labels"] == {"kubernetes.io/arch": "amd64"}
        assert on["activeDeadlineSeconds"] == "7200"
        assert mounts == {"/tmp": "20Gi"}
        requested = ["2", "2", "32Gi", "32Gi"] if step == "evaluate" else ["2", "2", "8Gi", "16Gi"]
    names = ["resourceCpuRequest", "resourceCpuLimit", "resourceMemoryRequest", "resourceMemoryLimit"]
    assert resources == dict(zip(names, requested, strict=True))
    assert on["nodeAffinity"] == [
        {"weight": 80, "matchExpressions": [{"key": "cloud.example.com/spot", "operator": "In", "values": ["true"]}]}
    ]
    assert {entry["name"]: entry["value"] for entry in container["env"]} == {
        "MLFLOW_TRACKING_URI": "http://mlflow.retrieval.svc:5000",
        "AWS_ENDPOINT_URL": "https://store.retrieval.svc:7443",
        "AWS_CA_BUNDLE": "/authority/ca.pem",
        "HF_TOKEN_PATH": "/hub/token",
        "GNN_ENCODER_CHECKPOINTS": "s3://retrieval/checkpoints",
        **({"TMPDIR": "/scratch"} if step in ON_GPU else {}),
    }
    # A volume of a storage class would belong to root, and the image is user 1000.
    assert "genericEphemeralVolume" not in on
    assert ([entry["secretName"] for entry in on["imagePullSecret"]], on["imagePullPolicy"]) == (
        ["retrieval-registry"],
        "IfNotPresent",
    )
    (secret,), (config_map,), (claim,) = on["secretAsEnv"], on["configMapAsEnv"], on["pvcMount"]
    assert secret["secretName"] == "retrieval-store"
    assert {entry["secretKey"]: entry["envVar"] for entry in secret["keyToEnv"]} == {
        "access-key": "AWS_ACCESS_KEY_ID",
        "secret-key": "AWS_SECRET_ACCESS_KEY",
    }
    assert (config_map["configMapName"], config_map["keyToEnv"]) == (
        "retrieval-settings",
        [{"configMapKey": "region", "envVar": "AWS_DEFAULT_REGION"}],
    )
    (authority,) = on["configMapAsVolume"]
    assert (authority["configMapName"], authority["mountPath"]) == ("company-authority", "/authority")
    (hub,) = on["secretAsVolume"]
    assert (hub["secretName"], hub["mountPath"]) == ("model-hub", "/hub")
    queue = "retrieval-gpu" if step in ON_GPU else "retrieval-cpu"
    assert on["podMetadata"] == {
        "labels": {"kueue.x-k8s.io/queue-name": queue, "company.example.com/cost-center": "search"},
        "annotations": {"company.example.com/contact": "search team"},
    }
    assert on["securityContext"] == {"runAsUser": "1000", "runAsGroup": "1000", "runAsNonRoot": True}
    assert (claim["constant"], claim["mountPath"], claim["subPath"]) == (
        "retrieval-work",
        "/shared",
        "work",
    )


def artifacts_of(task: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Input of a task → the task and the output that it reads, or the address of an importer."""
    artifacts: dict[str, Any] = {}
    for name, argument in task["inputs"].get("artifacts", {}).items():
        source = argument["taskOutputArtifact"]
        artifacts[name] = source["producerTask"], source["outputArtifactKey"]
        if source["producerTask"].startswith("importer"):
            importer = spec["deploymentSpec"]["executors"][executor(spec, source["producerTask"])]["importer"]
            artifacts[name] = importer["artifactUri"]["constant"]
    return artifacts


@pytest.mark.parametrize("pipeline", ["train", "ladder", "rerank", "update", "ablation"])
def test_each_call_of_the_graph_is_a_task_with_its_arguments_inputs_and_order(pipeline: str) -> None:
    graph, (spec, _) = graph_of(pipeline), compiled(Cluster(), pipeline)
    tasks = {name: task for name, task in tasks_of(spec).items() if not name.startswith("importer")}
    assert set(tasks) == {task_name(node.title) for node in graph.nodes}
    for node in graph.nodes:
        task = tasks[task_name(node.title)]
        call = StepArguments.model_validate_json(task["inputs"]["parameters"]["arguments"]["runtimeValue"]["constant"])
        assert (call.settings, call.label) == (node.settings.model_dump(mode="json"), node.label)
        expected: dict[str, Any] = {}
        for name, value in node.inputs.items():
            several = value if isinstance(value, tuple) else (value,)
            for number, artifact in enumerate(several):
                key = f"{name}_{number}" if isinstance(value, tuple) else name
                known = (task_name(artifact.node.title), artifact.name) if isinstance(artifact, Output) else None
                expected[key] = known or (artifact.address if isinstance(artifact, Given) else "")
        assert artifacts_of(task, spec) == expected
        assert {task_name(before.title) for before in node.before()} <= set(task.get("dependentTasks", ()))
        container = containers(spec)[task_name(node.title)]
        assert container["command"] == ["python3", "-m", "gnn_encoder.steps", node.step]
    importers = [name for name in tasks_of(spec) if name not in tasks]
    imported = {artifact for node in graph.nodes for _, artifact in node.artifacts() if isinstance(artifact, Given)}
    assert len(importers) == len(imported), "an artifact that several tasks read is imported once"


@pytest.mark.parametrize("pipeline", ["train", "rerank"])
def test_a_cluster_file_changes_needs_alone(pipeline: str) -> None:
    spec, _ = compiled(load_cluster(EXAMPLE), pipeline)
    plain, _ = compiled(Cluster(), pipeline)
    bare = yaml.safe_load(yaml.safe_dump(spec))
    assert bare != plain
    for container in containers(bare).values():
        del container["env"], container["resources"]
        container["image"] = IMAGE
    for name in containers(bare):
        del tasks_of(bare)[name]["retryPolicy"]
    assert bare == plain
    containers(bare)["ingest"]["args"][-1] = "other"
    assert bare != plain


def test_without_a_file_nothing_is_asked_for() -> None:
    spec, platforms = compiled(Cluster())
    assert platforms == {}
    assert all(set(container) == {"image", "command", "args"} for container in containers(spec).values())
    assert {container["image"] for container in containers(spec).values()} == {IMAGE}
    assert not any("retryPolicy" in task for task in tasks_of(spec).values())


def test_all_calls_of_a_step_have_its_needs_and_no_other_call() -> None:
    cluster = Cluster.model_validate({
        "images": {"cpu": "c", "gpu": "g"},
        "caching": False,
        "steps": {"train_reranker": {"gpu": {"count": 2}, "timeout_seconds": 9}, "rerank": {"cpu": 3}},
    })  # fmt: skip
    spec, platforms = compiled(cluster, "rerank")
    graph, container_of = graph_of("rerank"), containers(spec)
    trained = {task_name(node.title) for node in graph.of("train_reranker")}
    ranked = {task_name(node.title) for node in graph.of("rerank")}
    assert len(trained) > len(ranked) > 3, "one of them is a teacher, which ranks nothing"
    assert {name for name, container in container_of.items() if container["image"] == "g"} == trained
    assert set(needs_on_kubernetes(platforms)) == {executor(spec, task) for task in trained}
    resources_of = {
        name: container["resources"] for name, container in container_of.items() if "resources" in container
    }
    gpus = {
        name: container["accelerator"]["resourceCount"]
        for name, container in resources_of.items()
        if "accelerator" in container
    }
    assert gpus == dict.fromkeys(trained, "2")
    assert {name for name, container in resources_of.items() if "resourceCpuRequest" in container} == ranked
    assert not any(tasks_of(spec)[name]["cachingOptions"].get("enableCache") for name in container_of)
    kfp.components.load_component_from_text(yaml.safe_dump_all([spec, platforms]))
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})


def test_kfp_reads_it_with_the_parameters_of_a_run(package: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    text, spec, platforms = package
    inputs = kfp.components.load_component_from_text(text).component_spec.inputs
    assert {name: parameter.default for name, parameter in inputs.items()} == {
        "dataset": "python-docs",
        "seed": "",
        "label": "",
    }
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    needs_on_kubernetes(platforms)[executor(spec, "ingest")]["nodeSelektor"] = {}
    with pytest.raises(ValueError, match="nodeSelektor"):
        check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    del needs_on_kubernetes(platforms)[executor(spec, "ingest")]["nodeSelektor"]


def test_the_parameters_of_a_run_reach_the_steps_that_use_them(
    package: tuple[str, dict[str, Any], dict[str, Any]],
) -> None:
    _, spec, _ = package
    reached: dict[str, set[str]] = {"dataset": set(), "seed": set(), "label": set()}
    for node in GRAPH.nodes:
        for argument in tasks_of(spec)[task_name(node.title)]["inputs"]["parameters"].values():
            if name := argument.get("componentInputParameter"):
                reached[name].add(node.step)
    drawing = {node.step for node in GRAPH.nodes if hasattr(node.settings, "seed")}
    seeded = {*drawing, "promote", "report"}  # the report has settings that repeat the run
    assert reached == {"dataset": {"ingest", "promote"}, "seed": seeded, "label": set(STEPS)}
    promote = tasks_of(spec)["promote"]["inputs"]["parameters"]["arguments"]["runtimeValue"]["constant"]
    assert StepArguments.model_validate_json(promote).dataset == "python-docs"


def test_nothing_secret_is_in_it(package: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    text, *_ = package
    assert "AWS_SECRET_ACCESS_KEY" in text  # the variable's name, and where its value is kept
    assert "wJalrXUtnFEMI" not in text and "hunter22" not in text


def test_quantities_that_kubernetes_knows_and_kfps_own_methods_refuse() -> None:
    amounts = {"cpu": {"request": "1e1", "limit": "12500m"}, "memory": "1.5Gi"}
    spec, platforms = compiled(Cluster.model_validate({"steps": {"ingest": amounts}}), "update")
    assert containers(spec)["ingest"]["resources"] == {
        "resourceCpuRequest": "1e1",
        "resourceCpuLimit": "12500m",
        "resourceMemoryRequest": "1.5Gi",
        "resourceMemoryLimit": "1.5Gi",
    }
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})


def test_a_request_without_a_limit_and_a_limit_without_a_request() -> None:
    amounts = {"cpu": {"request": 1}, "memory": {"limit": "2Gi"}}
    spec, _ = compiled(Cluster.model_validate({"steps": {"ingest": amounts}}), "update")
    resources = {"resourceCpuRequest": "1", "resourceMemoryLimit": "2Gi"}
    assert containers(spec)["ingest"]["resources"] == resources


def test_a_volume_of_a_storage_class() -> None:
    volume = {"mount": "/scratch/", "size": "200Gi", "storage_class": "fast-ssd"}
    spec, platforms = compiled(Cluster.model_validate({"steps": {"ingest": {"volumes": [volume]}}}), "update")
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    (fast,) = needs_on_kubernetes(platforms)[executor(spec, "ingest")]["genericEphemeralVolume"]
    assert (fast["mountPath"], fast["size"], fast["storageClassName"]) == ("/scratch", "200Gi", "fast-ssd")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"deadline_seconds": 5}, {"activeDeadlineSeconds": 5}),
        ({"ttl_seconds": 60}, {"resourceTtlOnCompletion": 60}),
        (
            {"ttl_seconds": {"succeeded": 70, "failed": 80}},
            {"resourceTtlOnSuccess": 70, "resourceTtlOnFailure": 80},
        ),
    ],
)
def test_limits_of_a_run_are_all_that_is_asked_for(limits: dict[str, Any], expected: dict[str, int]) -> None:
    spec, platforms = compiled(Cluster.model_validate(limits), "update")
    plain, _ = compiled(Cluster(), "update")
    assert spec == plain
    assert platforms == {"platforms": {"kubernetes": {"pipelineConfig": expected}}}


def test_root_is_a_user_that_can_be_asked_for() -> None:
    security = {"run_as_user": 0, "run_as_non_root": False}
    spec, platforms = compiled(Cluster.model_validate({"steps": {"ingest": {"security": security}}}), "update")
    needs = {executor(spec, "ingest"): {"securityContext": {"runAsUser": "0", "runAsNonRoot": False}}}
    assert needs_on_kubernetes(platforms) == needs


def test_without_caching_the_package_says_so() -> None:
    spec, _ = compiled(Cluster(caching=False), "update")
    cached, _ = compiled(Cluster(), "update")
    assert not any(tasks_of(spec)[task]["cachingOptions"].get("enableCache") for task in containers(spec))
    assert all(tasks_of(cached)[task]["cachingOptions"]["enableCache"] for task in containers(cached))


def test_a_training_with_nodes_is_one_task_that_knows_the_runtime_of_its_trainjob() -> None:
    graph = graph_of("train", "train_gnn.nodes=3")
    trainer = {"runtime": "mine", "kind": "TrainingRuntime"}
    needs = {"cpu": {"request": "4", "limit": "8"}, "memory": "16Gi", "gpu": {"count": 2}}
    cluster = Cluster.model_validate({"trainer": trainer, "steps": {"train_gnn": needs, "train_dpr": needs}})
    spec, _ = packaged(cluster, graph)
    assert [name for name in tasks_of(spec) if name.startswith("train-gnn")] == ["train-gnn"]
    waiting = containers(spec)["train-gnn"]
    (variable,) = waiting["env"]
    assert variable["name"] == TRAINER and Requests.model_validate_json(variable["value"]) == Requests(
        **trainer,
        resources={
            "limits": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2"},
            "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"},
        },
    )
    assert waiting["resources"] == {"resourceCpuRequest": "500m", "resourceMemoryRequest": "2Gi"}, "it has no GPU"
    assert containers(spec)["train-dpr"]["resources"]["accelerator"]["resourceCount"] == "2"
    assert [name for name, container in containers(spec).items() if "env" in container] == ["train-gnn"]
    with pytest.raises(ValueError, match="read s3:// and minio:// addresses, not a pipeline_root at gs://"):
        Cluster.model_validate({"trainer": {}, "pipeline_root": "gs://bucket"})


def test_trusted_code_is_trusted_by_every_step_that_may_read_the_model() -> None:
    graph = graph_of("train", "shared.trusted_code=abc")
    spec, _ = packaged(Cluster(), graph)
    assert all({"name": TRUSTED, "value": "abc"} in container["env"] for container in containers(spec).values())
    assert TRUSTED not in str(compiled(Cluster(), "train")[0])


@pytest.mark.parametrize("pipeline", ["train", "ladder"])
def test_kfp_takes_a_run_of_documents(pipeline: str) -> None:
    changes = ["ingest.dataset=s3://bucket/docs", "ingest.format=documents", "write_queries.generator=titles"]
    spec, platforms = compiled(Cluster(), pipeline, *changes)
    kfp.components.load_component_from_text(yaml.safe_dump_all([spec, platforms] if platforms else [spec]))
    if platforms:
        check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    tasks = tasks_of(spec)
    assert "ingest" in tasks["write-queries"]["dependentTasks"]
    assert {"write-queries", "index-bm25"} <= set(tasks["select-queries"]["dependentTasks"])
    assert spec["root"]["inputDefinitions"]["parameters"]["dataset"]["defaultValue"] == "s3://bucket/docs"


def test_services_that_the_run_names_get_the_key_of_the_cluster() -> None:
    address = "https://models.example/v1"
    spec, _ = compiled(
        Cluster(defaults=StepNeeds(environment={ALLOWED: "http://here/v1"})),
        "train",
        f"write_queries.generator={address}#m",
    )
    assert all({"name": ALLOWED, "value": f"http://here/v1 {address}"} in c["env"] for c in containers(spec).values())
    spec, _ = compiled(Cluster(), "train", "write_queries.generator=http://10.0.0.1/v1#m")
    assert ALLOWED not in str(spec), "whoever is on the way could read the key"


def test_a_retry_without_pauses() -> None:
    spec, _ = compiled(Cluster.model_validate({"steps": {"ingest": {"retries": {"count": 2}}}}), "update")
    policy = tasks_of(spec)["ingest"]["retryPolicy"]
    assert (policy["maxRetryCount"], policy["backoffDuration"], policy["backoffFactor"]) == (2, "0s", 2)
    assert [name for name, task in tasks_of(spec).items() if "retryPolicy" in task] == ["ingest"]


def test_steps_that_share_work_are_merged() -> None:
    spec, _ = compiled(Cluster(), "train", "score_candidates.shards=3")
    parts = [f"score-candidates-{part}-of-3" for part in (1, 2, 3)]
    merge = tasks_of(spec)["merge-score-candidates"]["inputs"]["artifacts"]
    assert [merge[f"parts_{part}"]["taskOutputArtifact"]["producerTask"] for part in range(3)] == parts
    assert "parts_3" not in merge
