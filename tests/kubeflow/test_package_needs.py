"""Single settings of a cluster file, and of a run, in the package."""

from typing import Any

import kfp
import pytest
import yaml
from kfp_api import check_pipeline
from packages import compiled, containers, executor, graph_of, needs_on_kubernetes, packaged, tasks_of

from gnn_encoder.engines.trainer_requests import TRAINER, Requests
from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.step_needs import StepNeeds
from gnn_encoder.models.trusted_code import TRUSTED
from gnn_encoder.settings.services import ALLOWED


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
        ({"ttl_seconds": {"succeeded": 70, "failed": 80}}, {"resourceTtlOnSuccess": 70, "resourceTtlOnFailure": 80}),
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
    merged, _ = packaged(Cluster(defaults=StepNeeds(environment={TRUSTED: "ours"})), graph)
    assert all({"name": TRUSTED, "value": "ours abc"} in container["env"] for container in containers(merged).values())
    with pytest.raises(UserError, match="comes from a secret or config map"):
        packaged(Cluster(defaults=StepNeeds(secrets={"codes": {"k": TRUSTED}})), graph)


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
