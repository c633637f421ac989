"""The followers of a training as one TrainJob of Kubeflow Trainer, which the leader creates, watches and deletes.

The leader (node 1) is a pod of the pipeline, with inputs and outputs as every step. It reads its own pod from the
Kubernetes API, and the TrainJob's pods get the same image, needs, volumes and environment; a secret stays a reference.
They start with `gnn_encoder.kubeflow.follower`, fetch the inputs from their addresses in the object store, and meet the
leader as the nodes in `runs.nodes` do. The exchange of the nodes tells the leader of failures after the meeting. This
module finds what the exchange cannot: pods that do not start, that end before the meeting, or a failed TrainJob.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from gnn_encoder.engines.trainer_api import GROUP, RUN, TRAINER, TRAINING, VERSION, Api, Unreachable
from gnn_encoder.errors import UserError, one_line, printable
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.kubeflow.step_needs import ISTIO, KFP_MOUNTS, RESERVED
from gnn_encoder.storage.s3 import SCHEME, is_remote

NODE = "node"
"""Name that Kubeflow Trainer requires of a runtime's job, and of the container in it, that trains."""
QUEUES = "kueue.x-k8s.io/"
"""Prefix of Kueue's labels. They belong to the TrainJob, which Kueue admits as a whole."""
NOT_PASSED_ON = ("ARGO_", "KFP_", "PET_", TRAINER)
"""Prefixes of the leader's variables that followers do not get. Trainer sets and reserves PET_*."""
LEADERS_MOUNTS = (*(f"{mount}/" for mount in KFP_MOUNTS), "/var/run/argo/", "/var/run/secrets/kubernetes.io/")
"""Where KFP, Argo and Kubernetes mount volumes of their own."""
STUCK = (
    "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
"""Kubernetes' reasons why a container waits that do not go away by waiting."""
POLL_SECONDS = 5.0
END_SECONDS = 60.0
"""How long followers may take to exit after a training, and to close their runs in MLflow; then their pods end."""
PODLESS_SECONDS = 60.0
"""How long a TrainJob that is not suspended may be without pods."""


@dataclass(frozen=True)
class Training:
    """A training with several nodes, as its leader sees it."""

    step: str
    call: StepArguments
    """The leader's arguments."""
    key: str
    count: int
    """Nodes, the leader among them."""
    inputs: Mapping[str, str]
    """Name → address."""
    outputs: tuple[str, ...]

    @property
    def title(self) -> str:
        """The name of the leader's call."""
        return self.call.title(self.step)

    @contextmanager
    def followers(self, runtime: str, ring: Callable[[Exception], None]) -> Iterator[None]:
        """A block in which the training has its followers; afterwards the TrainJob is deleted.

        Args:
            runtime: KIND/NAME of the runtime.
            ring: called in another thread with the cause if the followers fail.

        Raises:
            UserError: an input has no address, or the cluster refuses the TrainJob.
        """
        api = Api(self.title)
        name = f"{self.step.replace('_', '-')}-{uuid4().hex[:8]}"
        body = train_job(name, runtime, self, api.own_pod())
        api.delete_earlier(body["metadata"]["labels"])  # of an attempt whose leader was killed
        stopped = threading.Event()
        watch = threading.Thread(
            target=_watch, args=(api, name, self.count, ring, stopped), name="TrainJob", daemon=True
        )
        try:
            api.create(body)
            print(f"{self.title}: created TrainJob {name} in {api.namespace}", file=sys.stderr)
            watch.start()
            yield
            stopped.set()
            _await_end(api, name)
        finally:
            stopped.set()
            api.delete(name)


def train_job(name: str, runtime: str, training: Training, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the TrainJob of a training's followers; `pod` is the leader's, as the Kubernetes API has it."""
    kind, _, runtime_name = runtime.rpartition("/")
    spec, about = pod["spec"], pod["metadata"]
    (main,) = (container for container in spec["containers"] if container["name"] == "main")
    mounts = [each for each in main.get("volumeMounts", []) if not f"{each['mountPath']}/".startswith(LEADERS_MOUNTS)]
    mounted = {each["name"] for each in mounts}
    # KFP and Argo find the pods of steps by the reserved labels: a follower must not be taken for one.
    labels = {key: value for key, value in about.get("labels", {}).items() if not key.startswith(RESERVED)}
    queue = {key: value for key, value in labels.items() if key.startswith(QUEUES) and "pod-group" not in key}
    plain = {key: value for key, value in labels.items() if not key.startswith(QUEUES)}
    # Without a proxy, as KFP's pods: the leader could not reach a follower behind one, nor a follower the leader.
    run = {RUN: about["labels"][RUN]} if RUN in about.get("labels", {}) else {}
    plain |= run | {ISTIO: "false"}
    container = {"name": NODE, "volumeMounts": mounts, "securityContext": main.get("securityContext")}
    pod_patch = {
        "serviceAccountName": spec.get("serviceAccountName"),
        "nodeSelector": spec.get("nodeSelector"),
        "affinity": spec.get("affinity"),
        "tolerations": spec.get("tolerations"),
        "imagePullSecrets": spec.get("imagePullSecrets"),
        "securityContext": spec.get("securityContext"),
        "volumes": [each for each in spec.get("volumes", []) if each["name"] in mounted],
        "containers": [{key: value for key, value in container.items() if value}],
    }
    template = {
        "metadata": {"labels": plain, "annotations": {ISTIO: "false"}},
        "spec": {key: value for key, value in pod_patch.items() if value},
    }
    follower = {
        "step": training.step,
        "arguments": training.call.model_dump(),
        "inputs": _addresses(training),
        "outputs": training.outputs,
        "termination_log": main.get("terminationMessagePath") or "/dev/termination-log",
    }
    trainer = {
        "numNodes": training.count - 1,
        "image": main["image"],
        "command": ["python3", "-m", "gnn_encoder.kubeflow.follower"],
        "args": [json.dumps(follower).replace("$", "$$")],  # Kubernetes replaces $(NAME)
        "env": [each for each in main.get("env", []) if not each["name"].startswith(NOT_PASSED_ON)],
        "resourcesPerNode": {key: main["resources"][key] for key in ("limits", "requests") if key in main["resources"]},
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
    patch = {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": template}}}]}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "labels": {TRAINING: training.key[:20], **run, **queue},
            "ownerReferences": [owner],  # Kubernetes deletes the TrainJob with the leader's pod at the latest
        },
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": kind or "ClusterTrainingRuntime", "name": runtime_name},
            "trainer": trainer,
            "runtimePatches": [
                {"manager": "gnn-encoder/leader", "trainingRuntimeSpec": {"template": {"spec": patch}}},
            ],
        },
    }


def _addresses(training: Training) -> dict[str, str]:
    """Returns the inputs' addresses as `storage` reads them: minio:// is KFP's name for another S3 store."""
    found = {name: address.replace("minio://", SCHEME, 1) for name, address in training.inputs.items()}
    for name, address in found.items():
        if not is_remote(address):
            raise UserError(
                f"the input {name} is at {address or 'no address'}, which the pods of a TrainJob cannot read: name an "
                "s3:// or minio:// pipeline_root in the cluster file, or leave its trainer out"
            )
    return found


def _watch(api: Api, name: str, count: int, ring: Callable[[Exception], None], stopped: threading.Event) -> None:
    """The main function of the thread that notices the followers' failure."""
    waiting_since = time.monotonic()
    while not stopped.wait(POLL_SECONDS):
        try:
            cause, waits = trouble(api.job(name), api.pods_of(name), count)
        except Unreachable:
            continue  # the training needs the API only again at its end
        except Exception as error:  # without this watch the leader would wait in vain
            cause, waits = one_line(error), False
        waiting_since = waiting_since if waits else time.monotonic()
        if not cause and time.monotonic() - waiting_since > PODLESS_SECONDS:
            cause = f"it has no pods after {PODLESS_SECONDS:.0f} s"
        if cause and not stopped.is_set():
            about = f"kubectl describe trainjob,jobset -n {api.namespace} {name}"
            ring(UserError(f"TrainJob {name}: {cause}; run again, or see {about}"))
            return


def _await_end(api: Api, name: str) -> None:
    """Waits until the followers have ended by themselves. The outputs are complete, so that nothing can fail here."""
    deadline = time.monotonic() + END_SECONDS
    with suppress(UserError):  # a cluster that does not answer: the deletion prints a warning
        while (job := api.job(name)) and not {"Complete", "Failed"} & {*_conditions(job)}:
            if time.monotonic() > deadline:
                break
            time.sleep(min(1.0, POLL_SECONDS))


def _conditions(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the conditions that hold, by type."""
    return {each["type"]: each for each in job.get("status", {}).get("conditions", []) if each["status"] == "True"}


def trouble(job: Mapping[str, Any], pods: list[dict[str, Any]], count: int) -> tuple[str, bool]:
    """Returns why a training with `count` nodes cannot go on, or "", and whether its TrainJob waits for first pods."""
    for pod in pods:
        about, status = pod["metadata"], pod.get("status", {})
        index = about.get("labels", {}).get("batch.kubernetes.io/job-completion-index", "")
        who = f"node {int(index) + 2} of {count}" if index.isdecimal() else f"pod {about['name']}"
        for container in status.get("containerStatuses", []):
            if container["name"] != NODE:
                continue
            now, before = container.get("state", {}), container.get("lastState", {})
            waits = now.get("waiting", {})
            if waits.get("reason") in STUCK:
                return printable(f"{who} cannot start: {waits['reason']}: {waits.get('message', '')}"), False
            for ended in (now.get("terminated"), before.get("terminated")):
                if ended and ended["exitCode"]:
                    why = ended.get("message") or ended.get("reason") or ""
                    return printable(f"{who} ended with exit code {ended['exitCode']}: {why}"), False
        if status.get("phase") == "Failed":
            return printable(f"{who} failed: {status.get('reason', '')}: {status.get('message', '')}"), False
    if not job:
        return "it was deleted", False
    conditions = _conditions(job)
    if failed := conditions.get("Failed"):
        return printable(f"it failed: {failed.get('reason', '')}: {failed.get('message', '')}"), False
    if "Complete" in conditions:
        return "it is complete, although the training is not", False
    return "", not pods and "Suspended" not in conditions
