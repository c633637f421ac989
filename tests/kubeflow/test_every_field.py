"""Every pipeline's package for the example cluster has only fields of KFP's messages, and loses no key of the file."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, components
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec import pipeline_spec_pb2 as messages
from kfp_api import EXAMPLE, check_pipeline
from packages import graph_of, packaged

from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import load_cluster
from gnn_encoder.settings.pipeline import PIPELINES

OWN_KEYS = ("node_selector", "environment", "secrets", "config_maps", "labels", "annotations")
"""Mappings whose keys the user chooses."""
KEPT = ("operator", "effect", "medium", "pull_policy", "weight", "caching", "run_as_non_root", "kind")
"""Keys whose values are a choice of few: they are looked for as they are."""
IN_THE_REQUEST = ("pipeline_root", "namespace", "experiment", "service_account")
"""Keys that are no part of the package: they are sent beside it."""


def strictly(value: dict[str, Any], kind: Any) -> Any:
    """The message of a value, which must come out of it unchanged: no field is unknown, no text is a wrong number."""
    message = json_format.ParseDict(value, kind())
    assert json_format.MessageToDict(message) == value
    return message


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_every_field_is_one_of_the_published_messages(pipeline: str) -> None:
    spec, platform = packaged(load_cluster(EXAMPLE), graph_of(pipeline))
    strictly(spec, messages.PipelineSpec)
    deployment = strictly(spec["deploymentSpec"], messages.PipelineDeploymentConfig)
    kubernetes = strictly(platform, messages.PlatformSpec).platforms["kubernetes"]
    containers = {
        label for label, executor in deployment.executors.items() if executor.WhichOneof("spec") == "container"
    }
    assert set(kubernetes.deployment_spec.executors) == containers
    for config in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        on = json_format.ParseDict(config, KubernetesExecutorConfig())
        assert on.pod_metadata.labels["kueue.x-k8s.io/queue-name"].startswith("retrieval-")
        assert on.security_context.run_as_non_root and on.active_deadline_seconds
    assert kubernetes.pipelineConfig.active_deadline_seconds == 1209600
    of_containers = [
        task
        for task in spec["root"]["dag"]["tasks"].values()
        if spec["components"][task["componentRef"]["name"]]["executorLabel"] in containers
    ]
    assert of_containers and all(executor["retryPolicy"]["maxRetryCount"] == 3 for executor in of_containers)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_kfps_compiler_takes_it_and_writes_the_same(pipeline: str, tmp_path: Path) -> None:
    documents = list(packaged(load_cluster(EXAMPLE), graph_of(pipeline)))
    component = components.load_component_from_text(yaml.safe_dump_all(documents))
    compiler.Compiler().compile(component, str(tmp_path / "again.yaml"))
    assert list(yaml.safe_load_all((tmp_path / "again.yaml").read_text("utf-8"))) == documents
    next(iter(documents[0]["root"]["dag"]["tasks"].values()))["retries"] = 3
    with pytest.raises(json_format.ParseError, match="retries"):
        components.load_component_from_text(yaml.safe_dump_all(documents))


@pytest.mark.parametrize(
    "change",
    [
        lambda kubernetes, config: config.update(podLabels={}),
        lambda kubernetes, config: config["securityContext"].update(fsGroup="1000"),
        lambda kubernetes, config: config["securityContext"].update(runAsUser="me"),
        lambda kubernetes, config: config["podMetadata"].update(labels=["a"]),
        lambda kubernetes, config: kubernetes["pipelineConfig"].update(ttlSecondsAfterFinished=60),
        lambda kubernetes, config: kubernetes["pipelineConfig"].update(resourceTtlOnFailure=2**31),
    ],
)
def test_another_field_or_type_is_seen(change: Any) -> None:
    spec, platform = packaged(load_cluster(EXAMPLE), graph_of("update"))
    check_pipeline({"pipeline_spec": spec, "platform_spec": platform})
    kubernetes = platform["platforms"]["kubernetes"]
    change(kubernetes, kubernetes["deploymentSpec"]["executors"]["exec-ingest"])
    with pytest.raises(ValueError, match="pipeline_spec: "):
        check_pipeline({"pipeline_spec": spec, "platform_spec": platform})


class Marked:
    """The example, with a value of its own in each place where any value may stand."""

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}
        """Value → its place in the file."""
        self._seen: dict[int, Any] = {}
        self.file = self._marked(yaml.safe_load(EXAMPLE.read_text("utf-8")), ())

    def _marked(self, value: Any, where: tuple[str, ...]) -> Any:
        if id(value) in self._seen:  # YAML's alias of a part that has its marks already
            return self._seen[id(value)]
        key = next((name for name in reversed(where) if not name.isdecimal()), "")
        if isinstance(value, dict):
            chosen = bool({*where[-2:]} & {*OWN_KEYS})
            marked: Any = {
                self._mark(name, (*where, name)) if chosen else name: self._marked(part, (*where, name))
                for name, part in value.items()
                if name not in IN_THE_REQUEST
            }
        elif isinstance(value, list):
            marked = [self._marked(part, (*where, str(index))) for index, part in enumerate(value)]
        elif key in KEPT:
            return value
        else:
            return self._mark(value, where)
        self._seen[id(value)] = marked
        return marked

    def _mark(self, value: Any, where: tuple[str, ...]) -> Any:
        number = 1_000_000 + len(self.marks)  # rises, so that limits are above requests
        mark: Any = f"mark-{number}"
        if isinstance(value, int) and not isinstance(value, bool):
            mark = number + 1_000_000 * (where[-1] == "within_seconds")  # above every step's own limit
        elif isinstance(value, str) and value.endswith("Gi"):
            mark = f"{number}Mi"
        elif isinstance(value, str) and value.startswith("/"):
            mark = f"/mark-{number}"
        self.marks[str(mark)] = ".".join(where)
        return mark

    def lost(self, text: str) -> list[str]:
        return [where for mark, where in self.marks.items() if mark not in text]


@pytest.mark.slow
def test_no_key_of_the_example_is_lost() -> None:
    marked = Marked()
    cluster, graph = Cluster.model_validate(marked.file), graph_of("train", "train_gnn.nodes=2")
    documents = packaged(cluster, graph)
    text = yaml.safe_dump_all(documents)
    assert len(marked.marks) > 70
    assert marked.lost(text) == []
    # The few values that have no mark, in the places that they go to.
    spec, platform = documents
    on = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-gnn"]
    assert [entry["operator"] for entry in on["tolerations"]] == ["Equal", "Exists", "Exists"]
    assert [entry["effect"] for entry in on["tolerations"]] == ["NoSchedule", "NoSchedule", "NoExecute"]
    assert (on["nodeAffinity"][0]["weight"], on["nodeAffinity"][0]["matchExpressions"][0]["operator"]) == (80, "In")
    assert [entry["medium"] for entry in on["emptyDirMounts"] if entry.get("medium")] == ["Memory"]
    assert (on["imagePullPolicy"], on["securityContext"]["runAsNonRoot"]) == ("IfNotPresent", True)
    assert '"kind":"ClusterTrainingRuntime","runtime":"mark-' in text
    tasks = spec["root"]["dag"]["tasks"].values()
    assert len(tasks) > 30 and all(task["cachingOptions"]["enableCache"] for task in tasks)
    # What is lost is seen: without a step's section, its marks.
    less = copy.deepcopy(marked.file)
    del less["steps"]["train_gnn"], less["defaults"]["labels"], less["ttl_seconds"]
    lost = marked.lost(yaml.safe_dump_all(packaged(Cluster.model_validate(less), graph)))
    assert set(places(lost)) == {"steps.train_gnn", "defaults.labels", "ttl_seconds"}


def places(lost: list[str]) -> Iterator[str]:
    for where in lost:
        yield where.partition(".")[0] if where.startswith("ttl") else ".".join(where.split(".")[:2])
