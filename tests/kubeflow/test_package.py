"""The package for the example cluster: the right needs on the right steps, and the pipeline itself untouched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kfp
import pytest
import yaml
from kfp_api import EXAMPLE, check_pipeline

from gnn_encoder.kubeflow.package import load_cluster, package_arguments, write_package
from gnn_encoder.engines import launch
from gnn_encoder.engines.provenance import call_arguments
from gnn_encoder.engines.trainer_api import TRAINER
from gnn_encoder.settings.calls import calls
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.settings.pipeline import ON_NODES, PIPELINES, Settings, StepArguments
from gnn_encoder.settings.tasks import by_parameter

STEPS = PIPELINES["train"]

REGISTRY = "registry.example.com/retrieval/gnn-encoder-python:0.1.0"
ON_GPU = {
    "train_dpr", "dense_retrieve", "train_cross_encoder", "score_candidates", "train_query_generator",
    "generate_queries", "train_dual_encoder", "build_graph", "train_gnn", "encode_nodes", "encode_corpus", "rerank",
}  # fmt: skip


def packaged(cluster: Cluster, folder: Path, pipeline: str = "train") -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The package's text, its pipeline and its platforms."""
    path = folder / "package.yaml"
    write_package(pipeline, cluster, path)
    text = path.read_text("utf-8")
    spec, *platforms = yaml.safe_load_all(text)
    return text, spec, platforms[0] if platforms else {}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
        patch.setenv("GNN_ENCODER_KFP_TOKEN", "hunter22")
        yield packaged(load_cluster(EXAMPLE), tmp_path_factory.mktemp("package"))


def label(step: str) -> str:
    return f"exec-{step.replace('_', '-')}"


@pytest.mark.parametrize("step", [*STEPS, "encode_nodes", "rerank"])
def test_a_step_asks_for_what_the_file_says(step: str, package: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    _, spec, platforms = package
    container = spec["deploymentSpec"]["executors"][label(step)]["container"]
    resources = dict(container["resources"])
    accelerator = resources.pop("accelerator", None)
    on = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"][label(step)]
    tolerations = {(each["key"], each["operator"], each["effect"]) for each in on["tolerations"]}
    mounts = {each["mountPath"]: each["sizeLimit"] for each in on["emptyDirMounts"]}
    spot = ("cloud.example.com/spot", "Equal", "NoSchedule")
    if step in ON_GPU:
        assert accelerator == {"resourceType": "nvidia.com/gpu", "resourceCount": "4" if step == "train_gnn" else "1"}
        assert container["image"] == f"{REGISTRY}-gpu"
        unreachable = ("node.kubernetes.io/unreachable", "Exists", "NoExecute")
        assert tolerations == {spot, ("nvidia.com/gpu", "Exists", "NoSchedule"), unreachable}
        assert [each.get("tolerationSeconds") for each in on["tolerations"]] == [None, None, "300"]
        assert on["nodeSelector"]["labels"] == {
            "kubernetes.io/arch": "amd64",
            "cloud.example.com/accelerator": "nvidia-l4",
        }
        assert on["activeDeadlineSeconds"] == ("86400" if step == "train_gnn" else "43200")
        assert mounts == {"/tmp": "20Gi", "/dev/shm": "8Gi", "/scratch": "200Gi"}
        asked = ["4", "8", "32Gi", "64Gi"]
    else:
        assert accelerator is None
        assert "gpu" not in str(on).lower() and "gpu" not in str(container["resources"]).lower()
        assert container["image"] == REGISTRY
        assert tolerations == {spot}
        assert on["nodeSelector"]["labels"] == {"kubernetes.io/arch": "amd64"}
        assert on["activeDeadlineSeconds"] == "7200"
        assert mounts == {"/tmp": "20Gi"}
        asked = ["2", "2", "32Gi", "32Gi"] if step == "evaluate" else ["2", "2", "8Gi", "16Gi"]
    names = ["resourceCpuRequest", "resourceCpuLimit", "resourceMemoryRequest", "resourceMemoryLimit"]
    assert resources == dict(zip(names, asked, strict=True))
    assert on["nodeAffinity"] == [
        {"weight": 80, "matchExpressions": [{"key": "cloud.example.com/spot", "operator": "In", "values": ["true"]}]}
    ]
    assert every_task(spec)[step.replace("_", "-")]["retryPolicy"] == {
        "maxRetryCount": 3,
        "backoffDuration": "30s",
        "backoffFactor": 2,
        "backoffMaxDuration": "604800s",
    }
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "MLFLOW_TRACKING_URI": "http://mlflow.retrieval.svc:5000",
        "AWS_ENDPOINT_URL": "https://store.retrieval.svc:7443",
        "AWS_CA_BUNDLE": "/authority/ca.pem",
        "HF_TOKEN_PATH": "/hub/token",
        "GNN_ENCODER_CHECKPOINTS": "s3://retrieval/checkpoints",
        **({"TMPDIR": "/scratch"} if step in ON_GPU else {}),
        **({TRAINER: "ClusterTrainingRuntime/torch-distributed"} if step in ON_NODES else {}),
    }
    # A volume of a storage class would belong to root, and the image is user 1000.
    assert "genericEphemeralVolume" not in on
    assert ([each["secretName"] for each in on["imagePullSecret"]], on["imagePullPolicy"]) == (
        ["retrieval-registry"],
        "IfNotPresent",
    )
    (secret,), (config_map,), (claim,) = on["secretAsEnv"], on["configMapAsEnv"], on["pvcMount"]
    assert secret["secretName"] == "retrieval-store"
    assert {each["secretKey"]: each["envVar"] for each in secret["keyToEnv"]} == {
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


def graphs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks of the pipeline, and those of each loop and condition."""
    components = [each["dag"]["tasks"] for each in spec["components"].values() if "dag" in each]
    return [spec["root"]["dag"]["tasks"], *components]


def every_task(spec: dict[str, Any]) -> dict[str, Any]:
    """The tasks of the pipeline, those of loops too."""
    return {name: task for graph in graphs(spec) for name, task in graph.items()}


@pytest.mark.parametrize("pipeline", ["train", "rerank"])
def test_the_pipeline_itself_is_the_one_that_runs_here(pipeline: str, tmp_path: Path) -> None:
    _, spec, _ = packaged(load_cluster(EXAMPLE), tmp_path, pipeline)
    (compiled,) = yaml.safe_load_all(launch.pipeline_file(pipeline).read_text("utf-8"))
    bare = yaml.safe_load(yaml.safe_dump(spec))
    assert bare != compiled
    for name, executor in bare["deploymentSpec"]["executors"].items():
        if "importer" not in executor:
            container = executor["container"]
            del container["env"], container["resources"]
            container["image"] = compiled["deploymentSpec"]["executors"][name]["container"]["image"]
    for name, task in ((name, task) for tasks in graphs(bare) for name, task in tasks.items()):
        if not name.startswith(("for-loop", "condition", "importer")):
            del task["retryPolicy"]
    assert bare == compiled
    bare["deploymentSpec"]["executors"][label("ingest")]["container"]["args"][-1] = "other"
    assert bare != compiled


@pytest.mark.parametrize("pipeline", ["train", "rerank"])
def test_without_a_file_nothing_is_asked_for(pipeline: str, tmp_path: Path) -> None:
    _, spec, platforms = packaged(load_cluster(None), tmp_path, pipeline)
    (compiled,) = yaml.safe_load_all(launch.pipeline_file(pipeline).read_text("utf-8"))
    assert (spec, platforms) == (compiled, {})


def test_steps_inside_loops_get_their_needs(tmp_path: Path) -> None:
    cluster = Cluster.model_validate({
        "images": {"cpu": "c", "gpu": "g"},
        "caching": False,
        "steps": {"train_reranker": {"gpu": {"count": 2}, "timeout_seconds": 9}, "rerank": {"cpu": 3}},
    })  # fmt: skip
    text, spec, platforms = packaged(cluster, tmp_path, "rerank")
    containers = {
        name.removeprefix("exec-"): each["container"]
        for name, each in spec["deploymentSpec"]["executors"].items()
        if "container" in each
    }
    timed = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    trainings = {f"train-reranker{number}" for number in ("", "-2", "-3", "-4", "-5")}
    assert {name for name, each in containers.items() if each["image"] == "g"} == trainings
    assert {name.removeprefix("exec-") for name in timed} == trainings
    asked = {name: each["resources"] for name, each in containers.items() if "resources" in each}
    gpus = {name: each["accelerator"]["resourceCount"] for name, each in asked.items() if "accelerator" in each}
    assert gpus == dict.fromkeys(trainings, "2")
    assert {name for name, each in asked.items() if "resourceCpuRequest" in each} == {
        "rerank",
        "rerank-2",
        "rerank-3",
        "rerank-4",
    }
    tasks = every_task(spec)
    assert not any(tasks[name]["cachingOptions"].get("enableCache") for name in containers)
    kfp.components.load_component_from_text(text)
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})


def test_kfp_reads_it_and_has_every_field(package: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    text, spec, platforms = package
    component = kfp.components.load_component_from_text(text)
    assert set(component.component_spec.inputs) == set(by_parameter(dict.fromkeys(calls(Settings(), STEPS), "")))
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors[label("ingest")]["nodeSelektor"] = {}
    with pytest.raises(ValueError, match="nodeSelektor"):
        check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    del executors[label("ingest")]["nodeSelektor"]


def test_nothing_secret_is_in_it(package: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    text, *_ = package
    assert "AWS_SECRET_ACCESS_KEY" in text  # the variable's name, and where its value is kept
    assert "wJalrXUtnFEMI" not in text and "hunter22" not in text


def test_a_volume_of_a_storage_class(tmp_path: Path) -> None:
    volume = {"mount": "/scratch/", "size": "200Gi", "storage_class": "fast-ssd"}
    cluster = Cluster.model_validate({"steps": {"ingest": {"volumes": [volume]}}})
    _, spec, platforms = packaged(cluster, tmp_path)
    check_pipeline({"pipeline_spec": spec, "platform_spec": platforms})
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    (fast,) = executors[label("ingest")]["genericEphemeralVolume"]
    assert (fast["mountPath"], fast["size"], fast["storageClassName"]) == ("/scratch", "200Gi", "fast-ssd")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"deadline_seconds": 5}, {"activeDeadlineSeconds": 5}),
        ({"ttl_seconds": 60}, {"resourceTtlOnCompletion": 60}),
        (
            {"ttl_seconds": {"succeeded": 70, "failed": 80}},
            {"resourceTtlOnSuccess": 70, "resourceTtlOnFailure": 80},
        ),
    ],
)
def test_limits_of_a_run_are_all_that_is_asked_for(
    given: dict[str, Any], expected: dict[str, int], tmp_path: Path
) -> None:
    _, spec, platforms = packaged(Cluster.model_validate(given), tmp_path)
    (compiled,) = yaml.safe_load_all(launch.pipeline_file("train").read_text("utf-8"))
    assert spec == compiled
    assert platforms == {"platforms": {"kubernetes": {"pipelineConfig": expected}}}


def test_root_is_a_user_that_can_be_asked_for(tmp_path: Path) -> None:
    cluster = Cluster.model_validate({"steps": {"ingest": {"security": {"run_as_user": 0, "run_as_non_root": False}}}})
    _, _, platforms = packaged(cluster, tmp_path)
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors == {label("ingest"): {"securityContext": {"runAsUser": "0", "runAsNonRoot": False}}}


def test_without_caching_the_package_says_so(tmp_path: Path) -> None:
    _, spec, _ = packaged(Cluster(caching=False), tmp_path)
    steps = {name: task for name, task in every_task(spec).items() if not name.startswith("for-loop")}
    assert not any(task["cachingOptions"].get("enableCache") for task in steps.values())


def test_the_loop_of_a_training_has_the_leader_alone_where_a_trainjob_has_the_other_nodes(tmp_path: Path) -> None:
    made = calls(Settings(train_gnn=TrainGnn(nodes=3)), STEPS)
    shared = {name: call for name, call in made.items() if name.startswith(("train_gnn", "encode_nodes"))}
    arguments = by_parameter(call_arguments(shared))
    trainer, plain = Cluster.model_validate({"trainer": {"runtime": "mine", "kind": "TrainingRuntime"}}), Cluster()
    sent, (_, spec, _) = package_arguments(arguments, trainer), packaged(trainer, tmp_path)
    assert [StepArguments.model_validate_json(each).label for each in sent["train_gnn"]] == ["node 1 of 3"]
    assert {name for name in arguments if sent[name] != arguments[name]} == {"train_gnn"}
    containers = {name: each.get("container", {}) for name, each in spec["deploymentSpec"]["executors"].items()}
    trainings = {name for name in containers if launch.step_of(name.removeprefix("exec-")) in ON_NODES}
    assert {name: each["env"] for name, each in containers.items() if "env" in each} == {
        name: [{"name": TRAINER, "value": "TrainingRuntime/mine"}] for name in trainings
    }
    assert len(trainings) == 6
    assert len(arguments["train_gnn"]) == 3 and package_arguments(arguments, plain) == arguments
    with pytest.raises(ValueError, match="read s3:// and minio:// addresses, not a pipeline_root at gs://"):
        Cluster.model_validate({"trainer": {}, "pipeline_root": "gs://bucket"})


def test_a_retry_without_pauses(tmp_path: Path) -> None:
    cluster = Cluster.model_validate({"steps": {"ingest": {"retries": {"count": 2}}}})
    _, spec, _ = packaged(cluster, tmp_path)
    tasks = spec["root"]["dag"]["tasks"]
    assert tasks["ingest"]["retryPolicy"]["backoffDuration"] == "0s"
    assert [name for name, task in tasks.items() if "retryPolicy" in task] == ["ingest"]
