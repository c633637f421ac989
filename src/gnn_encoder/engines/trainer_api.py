"""The Kubernetes API, with the TrainJobs of Kubeflow Trainer, as the service account of a step may use it.

The client is Kubernetes' own, which KFP brings. Every error is one line that says what to do.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from gnn_encoder.errors import UserError, one_line, printable

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"
OLDEST = "2.2"
"""The first version of Kubeflow Trainer with `runtimePatches`: the pods' volumes, node selectors and users."""
TRAINING = "gnn-encoder/training"
"""Label of a TrainJob: the key of its training."""
RUN = "pipeline/runid"
"""KFP's label of all pods of a run, which a NetworkPolicy can name; of a TrainJob, too."""
JOBSET = "jobset.sigs.k8s.io/jobset-name"
"""Label of a TrainJob's pods: its name."""
GONE_SECONDS = 120.0
"""How long the pods of a deleted TrainJob may take to end."""
TIMEOUT = (10, 30)
"""Seconds to connect to the Kubernetes API, and to read its answer."""
RULE = "docs/guides/kubeflow.md has the rule, under Kubeflow Trainer"
NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Api:
    """The Kubernetes API, as the service account of a step's pod may use it."""

    def __init__(self, title: str) -> None:
        from kubernetes import client, config

        self.title, settings = title, client.Configuration()
        try:
            if file := os.environ.get("KUBECONFIG"):
                config.load_kube_config(file, client_configuration=settings)
                self.namespace = config.list_kube_config_contexts(file)[1]["context"].get("namespace", "default")
            else:
                config.load_incluster_config(client_configuration=settings)
                self.namespace = NAMESPACE.read_text("utf-8").strip()
        except (config.ConfigException, OSError) as error:
            raise UserError(f"no Kubernetes API for a TrainJob ({one_line(error)}): set nodes to 1") from None
        self._client = client.ApiClient(settings)
        self._pods, self._jobs = client.CoreV1Api(self._client), client.CustomObjectsApi(self._client)
        self._resource = (GROUP, VERSION, self.namespace, PLURAL)

    def own_pod(self) -> dict[str, Any]:
        """Returns the pod of this process."""
        if not (name := os.environ.get("KFP_POD_NAME")):
            raise UserError(f"KFP_POD_NAME is not set in {self.title}'s pod, as KFP sets it: set nodes to 1")
        with self._errors("get pods"):
            pod = self._pods.read_namespaced_pod(name, self.namespace, _request_timeout=TIMEOUT)
            return dict(self._client.sanitize_for_serialization(pod))

    def create(self, body: Mapping[str, Any]) -> None:
        """Creates a TrainJob; an unknown field is an error."""
        with self._errors("create trainjobs"):
            self._jobs.create_namespaced_custom_object(
                *self._resource, body, field_validation="Strict", _request_timeout=TIMEOUT
            )

    def delete(self, name: str) -> None:
        """Deletes a TrainJob, with its pods; prints a warning if that fails, because the training has ended already."""
        try:
            self._jobs.delete_namespaced_custom_object(*self._resource, name, _request_timeout=TIMEOUT)
        except Exception as error:
            if getattr(error, "status", 0) != 404:
                command = f"kubectl delete trainjob -n {self.namespace} {name}"
                print(f"warning: TrainJob {name} was not deleted ({_message_of(error)}): {command}", file=sys.stderr)

    def delete_earlier(self, labels: Mapping[str, str]) -> None:
        """Deletes the TrainJobs of earlier attempts and waits until their pods are gone, so that none joins.

        Raises UserError if pods are still there after `GONE_SECONDS`.
        """
        selector = ",".join(f"{key}={labels[key]}" for key in (TRAINING, RUN) if key in labels)
        with self._errors("list trainjobs"):
            listed = self._jobs.list_namespaced_custom_object(
                *self._resource, label_selector=selector, _request_timeout=TIMEOUT
            )
        deadline = time.monotonic() + GONE_SECONDS
        for name in [job["metadata"]["name"] for job in listed["items"]]:
            self.delete(name)
            while self.pods_of(name):
                if time.monotonic() > deadline:
                    command = f"kubectl delete pods -n {self.namespace} -l {JOBSET}={name}"
                    raise UserError(
                        f"pods of TrainJob {name}, of an earlier attempt, do not end; run again, or {command}"
                    )
                time.sleep(1.0)

    def job(self, name: str) -> dict[str, Any]:
        """Returns a TrainJob; empty if there is none."""
        from kubernetes.client import ApiException

        with self._errors("get trainjobs"):
            try:
                return dict(self._jobs.get_namespaced_custom_object(*self._resource, name, _request_timeout=TIMEOUT))
            except ApiException as error:
                if error.status != 404:
                    raise
                return {}

    def pods_of(self, name: str) -> list[dict[str, Any]]:
        """Returns the pods of a TrainJob. Its JobSet has the same name."""
        with self._errors("list pods"):
            listed = self._pods.list_namespaced_pod(
                self.namespace, label_selector=f"{JOBSET}={name}", _request_timeout=TIMEOUT
            )
            return list(self._client.sanitize_for_serialization(listed.items))

    @contextmanager
    def _errors(self, right: str) -> Iterator[None]:
        """Turns an error of the API into a line that says what to do; `right` is the needed verb and resource."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            self._refuse(error, right)
        except HTTPError as error:
            raise Unreachable(f"the Kubernetes API cannot be reached ({type(error).__name__}); run again") from None

    def _refuse(self, error: Any, right: str) -> NoReturn:
        reason = _message_of(error)
        if error.status == 404 and right.endswith("trainjobs") and "namespaces" not in reason:
            raise UserError(
                f"this cluster has no TrainJob ({GROUP}/{VERSION}): ask its administrator to install Kubeflow Trainer "
                f"{OLDEST} or newer, or set nodes to 1"
            ) from None
        if error.status == 401 or (error.status == 403 and " cannot " in reason):
            raise UserError(
                f"the step's service account may not {right} in {self.namespace}: ask the cluster's administrator to "
                f"grant it ({RULE})"
            ) from None
        if error.status == 429 or error.status >= 500:
            raise Unreachable(f"the Kubernetes API answers {error.status} ({reason}); run again") from None
        old = f"; Kubeflow Trainer {OLDEST} or newer is needed" if "runtimePatches" in reason else ""
        raise UserError(f"the cluster refuses to {right}: {reason}{old}") from None


class Unreachable(UserError):
    """The Kubernetes API did not answer, and may answer later."""


def _message_of(error: Any) -> str:
    """Returns the message in the API's answer."""
    with suppress(ValueError, TypeError, AttributeError):
        return printable(str(json.loads(error.body)["message"]))[:500]
    return one_line(getattr(error, "reason", None) or error)
