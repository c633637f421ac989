"""A training as one TrainJob of Kubeflow Trainer, which the step's pod creates, follows and deletes.

The step's pod asks for no GPU. It reads its own pod from the Kubernetes API, and the TrainJob's pods get the same
image, nodes, volumes and environment; a secret stays a reference. What they request is in `GNN_ENCODER_TRAINER`. Each
runs torch's elastic launcher (`engines.launch`), whose processes meet by the numbers that Trainer sets.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gnn_encoder.engines.elastic import COMMAND
from gnn_encoder.engines.launch import BROKEN, TERMINATION_LOG
from gnn_encoder.engines.trainer_api import GROUP, RUN, TRAINING, VERSION, Api, Unreachable
from gnn_encoder.engines.trainer_requests import ISTIO, KFP_MOUNTS, RESERVED, TRAINER, Requests
from gnn_encoder.errors import UserError, printable

NODE = "node"
"""Name that Kubeflow Trainer requires of a runtime's job, and of the container in it, that trains."""
QUEUES = "kueue.x-k8s.io/"
"""Prefix of Kueue's labels. They belong to the TrainJob, which Kueue admits as a whole."""
NOT_PASSED_ON = ("ARGO_", "KFP_", "PET_", TRAINER)
"""Prefixes of the step's variables that the pods do not get. Trainer sets and reserves PET_*."""
OWN_MOUNTS = (*(f"{mount}/" for mount in KFP_MOUNTS), "/var/run/argo/", "/var/run/secrets/kubernetes.io/")
"""Where KFP, Argo and Kubernetes mount volumes of their own."""
STUCK = (
    "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
"""Kubernetes' reasons why a container waits that do not go away by waiting."""
POLL_SECONDS = 5.0
PODLESS_SECONDS = 60.0
"""How long a TrainJob that is not suspended may be without pods."""
PATIENCE_SECONDS = 1800.0
"""How long the Kubernetes API may give no answer while the pods train. An upgrade of a control plane takes minutes."""
DEFAULT_LOG = "/dev/termination-log"
"""Kubernetes' default of `terminationMessagePath`."""


@dataclass(frozen=True)
class Training:
    """A training over several nodes."""

    step: str
    title: str
    key: str
    nodes: int
    processes: int
    """Processes of a node."""
    address: str
    """Address of the call and of the result."""


def own_run(title: str) -> str:
    """Returns the id of the KFP run that this process's pod belongs to, or without a run the pod's own.

    `title` is the call's.
    """
    about = Api(title).own_pod()["metadata"]
    return str(about.get("labels", {}).get(RUN) or about["uid"])


def follow(training: Training) -> None:
    """Runs a training as a TrainJob to its end; the TrainJob is deleted in any case.

    Raises UserError if the cluster refuses the TrainJob, or a pod fails.
    """
    api = Api(training.title)
    name = f"{training.step.replace('_', '-')}-{uuid4().hex[:8]}"
    body = train_job(name, Requests.read(), training, api.own_pod())
    api.delete_earlier(body["metadata"]["labels"])  # of an attempt whose step was killed
    try:
        api.create(body)
        print(f"{training.title}: created TrainJob {name} in {api.namespace}", file=sys.stderr)
        _await_end(api, name)
    finally:
        api.delete(name)


def train_job(name: str, requests: Requests, training: Training, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the TrainJob of a training; `pod` is the step's, as the Kubernetes API has it."""
    from kubeflow_trainer_api import models

    spec, about = pod["spec"], pod["metadata"]
    (main,) = (container for container in spec["containers"] if container["name"] == "main")
    mounts = [mount for mount in main.get("volumeMounts", []) if not f"{mount['mountPath']}/".startswith(OWN_MOUNTS)]
    mounted = {mount["name"] for mount in mounts}
    # KFP and Argo find the pods of steps by the reserved labels: a training's must not be taken for one.
    labels = {key: value for key, value in about.get("labels", {}).items() if not key.startswith(RESERVED)}
    queue = {key: value for key, value in labels.items() if key.startswith(QUEUES) and "pod-group" not in key}
    plain = {key: value for key, value in labels.items() if not key.startswith(QUEUES)}
    # Without a proxy, as KFP's pods: the nodes could not reach each other behind one.
    run = {RUN: about["labels"][RUN]} if RUN in about.get("labels", {}) else {}
    container = {"name": NODE, "volumeMounts": mounts, "securityContext": main.get("securityContext")}
    copied = ("serviceAccountName", "nodeSelector", "affinity", "tolerations", "imagePullSecrets", "securityContext")
    pod_patch = {
        **{key: spec.get(key) for key in copied},
        "volumes": [volume for volume in spec.get("volumes", []) if volume["name"] in mounted],
        "containers": [{key: value for key, value in container.items() if value}],
    }
    template = {
        "metadata": {"labels": plain | run | {ISTIO: "false"}, "annotations": {ISTIO: "false"}},
        "spec": {key: value for key, value in pod_patch.items() if value},
    }
    env = [variable for variable in main.get("env", []) if not variable["name"].startswith(NOT_PASSED_ON)]
    trainer = {
        "numNodes": training.nodes,
        "numProcPerNode": training.processes,
        "image": main["image"],
        "command": ["python3", *COMMAND],
        "args": [training.address],
        "env": [*env, {"name": TERMINATION_LOG, "value": main.get("terminationMessagePath") or DEFAULT_LOG}],
        "resourcesPerNode": requests.resources,
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
    patch = {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": template}}}]}
    job = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "labels": {TRAINING: training.key[:20], **run, **queue},
            "ownerReferences": [owner],  # Kubernetes deletes the TrainJob with the step's pod at the latest
        },
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": requests.kind, "name": requests.runtime},
            "trainer": trainer,
            "runtimePatches": [{"manager": "gnn-encoder/step", "trainingRuntimeSpec": {"template": {"spec": patch}}}],
        },
    }
    published = models.TrainerV1alpha1TrainJob.from_dict(job)
    assert published is not None
    return dict(published.to_dict())


def _await_end(api: Api, name: str) -> None:
    """Waits until a TrainJob is complete.

    Raises UserError with the cause if it cannot become so, or if the Kubernetes API has not answered for
    `PATIENCE_SECONDS`.
    """
    waiting_since = answered = time.monotonic()
    while True:
        try:
            job, pods = api.job(name), api.pods_of(name)
        except Unreachable:  # it may answer later, and the training goes on
            if time.monotonic() - answered > PATIENCE_SECONDS:
                raise
            waiting_since = time.monotonic()  # whether there are pods is not known
            time.sleep(POLL_SECONDS)
            continue
        answered = time.monotonic()
        if "Complete" in conditions(job):
            return
        cause, waits = trouble(job, pods)
        waiting_since = waiting_since if waits else time.monotonic()
        if not cause and time.monotonic() - waiting_since > PODLESS_SECONDS:
            cause = f"it has no pods after {PODLESS_SECONDS:.0f} s"
        if cause:
            # The TrainJob is deleted, so that its GPUs are free; Kubernetes keeps its events for an hour.
            events = f"kubectl get events -n {api.namespace} | grep {name}"
            raise UserError(f"TrainJob {name}: {cause}; run again, or see {events}")
        time.sleep(POLL_SECONDS)


def conditions(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the conditions of a TrainJob that hold, by type."""
    return {
        condition["type"]: condition
        for condition in job.get("status", {}).get("conditions", [])
        if condition["status"] == "True"
    }


def trouble(job: Mapping[str, Any], pods: list[dict[str, Any]]) -> tuple[str, bool]:
    """Returns why a TrainJob cannot be completed, or "", and whether it still waits for its first pods.

    If several pods failed, the cause is the first one that is more than a broken connection to another pod.
    """
    if not job:
        return "it was deleted", False
    causes = [cause for pod in pods if (cause := _trouble_of(pod))]
    if causes:
        return printable(next((cause for cause in causes if not BROKEN.search(cause)), causes[0])), False
    if failed := conditions(job).get("Failed"):
        return printable(f"it failed: {failed.get('reason', '')}: {failed.get('message', '')}"), False
    return "", not pods and "Suspended" not in conditions(job)


def _trouble_of(pod: Mapping[str, Any]) -> str:
    """Returns why a pod cannot train, or an empty text."""
    about, status = pod["metadata"], pod.get("status", {})
    index = about.get("labels", {}).get("batch.kubernetes.io/job-completion-index", "")
    name = f"node {int(index) + 1}" if index.isdecimal() else f"pod {about['name']}"
    for container in status.get("containerStatuses", []):
        if container["name"] != NODE:
            continue
        now, before = container.get("state", {}), container.get("lastState", {})
        waits = now.get("waiting", {})
        if waits.get("reason") in STUCK:
            return f"{name} cannot start: {waits['reason']}: {waits.get('message', '')}"
        for ended in (now.get("terminated"), before.get("terminated")):
            if ended and ended["exitCode"]:
                reason = ended.get("message") or ended.get("reason") or ""
                return f"{name} ended with exit code {ended['exitCode']}: {reason}"
    failed = status.get("phase") == "Failed"
    return f"{name} failed: {status.get('reason', '')}: {status.get('message', '')}" if failed else ""
