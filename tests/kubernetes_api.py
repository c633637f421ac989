"""The Kubernetes API with Kubeflow Trainer, as a step uses it: a server on loopback whose pods are local processes.

A TrainJob is held against the published models (`kubeflow_trainer_api`) and must come out of them unchanged. Its pods
get their environment from the TrainJob alone, and the numbers that Trainer's torch runtimes give them.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from loopback import Handler, free_port

JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/retrieval/trainjobs"
PODS = "/api/v1/namespaces/retrieval/pods"
STEP_POD = "train-gnn-step"
RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
"""Variables that Trainer's admission webhook refuses in a TrainJob."""


def check_train_job(job: dict[str, Any]) -> None:
    """Raise ValueError where a TrainJob is not one of the published models, or the webhook would refuse it."""
    again = TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    if again != job:
        raise ValueError(f"strict decoding error: {job} is {again}")
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"]) or len(job["metadata"]["name"]) > 63:
        raise ValueError("metadata.name must match RFC 1035 DNS label format")
    env = [variable["name"] for variable in job["spec"]["trainer"].get("env", [])]
    if len(set(env)) < len(env) or set(env) & set(RESERVED):
        raise ValueError("must not have reserved envs")


def steps_pod(environment: Mapping[str, str], secrets: Mapping[str, str], log: Path) -> dict[str, Any]:
    """The pod of a training's step, as KFP and Argo make it; `secrets` maps a variable to its secret's key."""
    env = [{"name": "KFP_POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}]
    env += [{"name": "ARGO_TEMPLATE", "value": "{}"}, {"name": "KFP_RETRY_INDEX", "value": "0"}]
    env += [{"name": name, "value": value} for name, value in environment.items()]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": "store", "key": key}}} for name, key in secrets.items()
    ]
    mounts = [
        "/kfp-launcher",
        "/s3",
        "/minio",
        "/gcs",
        "/var/run/argo",
        "/var/run/secrets/kubernetes.io/serviceaccount",
    ]
    volumes = [
        {"name": "hub", "secret": {"secretName": "model-hub", "defaultMode": 420}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]
    at = {"hub": "/hub", "shm": "/dev/shm"}
    main = {
        "name": "main",
        "image": "registry.example.com/gnn-encoder-python:0.1.0-gpu",
        "command": ["/var/run/argo/argoexec", "emissary"],
        "env": env,
        "envFrom": [{"configMapRef": {"name": "metadata-grpc-configmap", "optional": True}}],
        "resources": {"limits": {"cpu": "8", "nvidia.com/gpu": "4"}, "requests": {"cpu": "4", "nvidia.com/gpu": "4"}},
        "volumeMounts": [{"name": f"kfp-{i}", "mountPath": path} for i, path in enumerate(mounts)]
        + [{"name": name, "mountPath": path} for name, path in at.items()],
        "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePath": str(log),
    }
    labels = {"pipeline/runid": "run-0", "workflows.argoproj.io/workflow": "train-x", "team": "search"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": STEP_POD,
            "uid": "b1",
            "labels": labels | {"kueue.x-k8s.io/queue-name": "gpus", "pipelines.kubeflow.org/v2_component": "true"},
        },
        "spec": {
            "containers": [{"name": "wait", "image": "argoexec"}, main],
            "volumes": [{"name": f"kfp-{i}", "emptyDir": {}} for i in range(len(mounts))] + volumes,
            "serviceAccountName": "pipeline-runner",
            "nodeSelector": {"cloud.example.com/accelerator": "nvidia-l4"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "imagePullSecrets": [{"name": "retrieval-registry"}],
        },
    }


class KubernetesApi:
    """What the cluster holds, and how it answers."""

    """Args:
        per_pod: variables that name a folder, of which each pod has one of its own, as on a machine of its own.
    """

    def __init__(
        self,
        pod: dict[str, Any],
        secrets: Mapping[str, str],
        folder: Path,
        starts: bool = True,
        per_pod: tuple[str, ...] = (),
    ) -> None:
        self.pod, self.jobs, self.pods = pod, dict[str, dict[str, Any]](), dict[str, list[dict[str, Any]]]()
        self.created, self.deleted = list[dict[str, Any]](), list[str]()
        self.refusals: dict[str, tuple[int, str]] = {}
        """`METHOD PATH` → the status and the message of the answer."""
        self.processes: list[subprocess.Popen[bytes]] = []
        self._of: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._secrets, self._folder, self._starts, self._per_pod = secrets, folder, starts, per_pod

    def __enter__(self) -> "KubernetesApi":
        owner = self

        class Api(Handler):
            def answer(self) -> None:
                status, body = owner.handle(self.command, self.path, json.loads(self.body() or "null"))
                self.send(status, json.dumps(body).encode())

            do_GET = do_POST = do_DELETE = answer

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._http.server_port}"
        context = {"cluster": "here", "user": "step", "namespace": "retrieval"}
        self.config = self._folder / "kubeconfig"
        self.config.write_text(json.dumps({
            "current-context": "here",
            "contexts": [{"name": "here", "context": context}],
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "step", "user": {"token": "token"}}],
        }))  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        for process in self.processes:
            process.kill()
            process.wait()

    def handle(self, method: str, address: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(address)
        query = parse_qs(parts.query)
        wanted = dict(pair.split("=") for pair in query.get("labelSelector", [""])[0].split(",") if pair)
        if refusal := self.refusals.get(f"{method} {parts.path}"):
            return refusal[0], {"kind": "Status", "code": refusal[0], "message": refusal[1]}
        if (method, parts.path) == ("GET", f"{PODS}/{STEP_POD}"):
            return 200, self.pod
        if (method, parts.path) == ("GET", PODS) and (of := wanted.get("jobset.sigs.k8s.io/jobset-name")):
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self._pods_of(of)}
        if (method, parts.path) == ("GET", JOBS):
            jobs = [job for job in self.jobs.values() if wanted.items() <= job["metadata"]["labels"].items()]
            return 200, {"items": jobs}
        if (method, parts.path) == ("POST", JOBS) and query["fieldValidation"] == ["Strict"]:
            try:
                check_train_job(body)
            except ValueError as error:
                return 400, {"kind": "Status", "code": 400, "message": str(error)}
            self._create(body)
            return 201, body
        name = parts.path.rpartition("/")[2]
        if name not in self.jobs:
            return 404, {"kind": "Status", "code": 404, "message": f"{parts.path} not found"}
        if method == "DELETE":
            self.deleted.append(name)
            for process in self._of.pop(name, []):
                process.kill()
                process.wait()
            return 200, self.jobs.pop(name)
        return 200, self._current(name)

    def _current(self, name: str) -> dict[str, Any]:
        """The TrainJob; complete when all its pods have succeeded."""
        processes = self._of.get(name, [])
        done = processes and all(process.poll() == 0 for process in processes)
        complete = {"type": "Complete", "status": "True", "reason": "AllJobsCompleted", "message": ""}
        return {"status": {"conditions": [complete] if done else []}} | self.jobs[name]

    def _create(self, job: dict[str, Any]) -> None:
        name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
        self.jobs[name] = job
        self.created.append(job)
        env = {}
        for entry in trainer["env"] if self._starts else ():
            key = entry.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
            env[entry["name"]] = self._secrets[key] if key else entry["value"]
        numbers = {
            "PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port()),
        }  # fmt: skip
        for rank in range(trainer["numNodes"]) if self._starts else ():
            of_pod = {**numbers, "PET_NODE_RANK": str(rank), "PATH": os.environ["PATH"], "HOME": str(self._folder)}
            for variable in self._per_pod:
                of_pod[variable] = str(self._folder / f"{name}-{rank}-{variable.lower()}")
                Path(of_pod[variable]).mkdir()
            env["GNN_ENCODER_TERMINATION_LOG"] = str(self._folder / f"{name}-{rank}.end")
            command = [sys.executable, *trainer["command"][1:], *trainer["args"]]
            with (self._folder / f"{name}-{rank}.log").open("wb") as log:
                process = subprocess.Popen(command, env=env | of_pod, stdout=log, stderr=log)
            self.processes.append(process)
            self._of.setdefault(name, []).append(process)

    def _pods_of(self, name: str) -> list[dict[str, Any]]:
        """A container that ended with an error has been started again, as in the pods of a JobSet."""
        pods = []
        for rank, process in enumerate(self._of.get(name, [])):
            code, status = (
                process.poll(),
                {"name": "node", "image": "", "imageID": "", "ready": True, "restartCount": 0},
            )
            if code:
                log = self._folder / f"{name}-{rank}.end"
                message = log.read_text("utf-8") if log.is_file() else ""
                status["lastState"] = {"terminated": {"exitCode": code, "message": message}}
            about = {"name": f"{name}-node-0-{rank}", "labels": {"batch.kubernetes.io/job-completion-index": str(rank)}}
            pods.append({"metadata": about, "status": {"phase": "Running", "containerStatuses": [status]}})
        return [*pods, *self.pods.get(name, [])]
