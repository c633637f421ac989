"""The package of a graph for the example cluster: its calls and artifacts, and the right needs on the right tasks."""

from collections.abc import Iterator
from typing import Any

import kfp
import pytest
import yaml
from kfp_api import EXAMPLE, check_pipeline
from packages import arguments_without_digests, compiled, containers, executor, graph_of, needs_on_kubernetes, tasks_of

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.flow.arguments import StepArguments, task_name
from gnn_encoder.flow.graph import Given, Output
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import load_cluster, write_package

WITH_ALL_STEPS = "evaluate.rerank_depth=10"
GRAPH = graph_of("train", WITH_ALL_STEPS)
STEPS = list(dict.fromkeys(node.step for node in GRAPH.nodes))

REGISTRY = "registry.example.com/retrieval/gnn-encoder-python:0.1.0"
ON_GPU = {
    "train_dpr", "dense_retrieve", "train_cross_encoder", "score_candidates", "train_query_generator",
    "generate_queries", "train_dual_encoder", "build_graph", "train_gnn", "encode_nodes", "encode_corpus", "rerank",
}  # fmt: skip


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
    assert (claim["constant"], claim["mountPath"], claim["subPath"]) == ("retrieval-work", "/shared", "work")


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
