"""A run of a pipeline, as a Kubeflow Pipelines server describes it."""

import itertools
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnn_encoder.errors import one_line, printable
from gnn_encoder.kubeflow.components import step_of_task

DRIVER = "-driver"
"""KFP prepares the pod of a task X in another pod, the task `X-driver`. `root-driver` prepares the whole run."""


@dataclass(frozen=True)
class ClusterRun:
    """A run, as the server describes it, with KFP's names of states."""

    run_id: str
    name: str
    state: str
    created: datetime | None
    finished: datetime | None
    steps: Mapping[str, str]
    """Task of a call, such as `rank-dual-encoder` → state, of the calls that have started."""
    failed: Mapping[str, str]
    """Failed task, driver `X-driver` or `importer` → name of its last pod, empty if unknown."""
    terminated: bool
    """Whether somebody terminated the run; the state is FAILED then, too."""
    error: str
    """The server's error message about the run, if any."""


def cluster_run(answer: Any) -> ClusterRun:
    """Returns what the server's answer says about a run."""
    tasks = (answer.run_details.task_details if answer.run_details else None) or []
    # A task has no state if Argo has skipped it or has not reached it.
    states = {str(task.display_name): str(task.state) for task in tasks if task.state}
    nodes = {str(child.pod_name) for task in tasks for child in task.child_tasks or ()}
    templates = _templates(answer.pipeline_spec)
    failed = [name for name, state in states.items() if state == "FAILED"]
    return ClusterRun(
        run_id=str(answer.run_id),
        name=printable(str(answer.display_name)),
        # If the server cannot read the run, it sends an error and no state.
        state=str(answer.state or ("FAILED" if answer.error else "PENDING")),
        created=answer.created_at,
        # For an unfinished run the server sends the epoch as the end.
        finished=answer.finished_at if answer.finished_at and answer.finished_at.year > 1970 else None,
        steps={n: state for n, state in states.items() if step_of_task(n) and not n.endswith(DRIVER)},
        failed={
            name: _pod(nodes, name, templates.get(name, ""))
            for name in failed
            if name.startswith("importer") or name.endswith(DRIVER) or step_of_task(name)
        },
        terminated="CANCELING" in (answer.state, *(change.state for change in answer.state_history or ())),
        error=printable(one_line(answer.error.message)) if answer.error and answer.error.message else "",
    )


def _templates(document: Any) -> dict[str, str]:
    """Returns {task: beginning of its template's name} of the tasks whose pods have labels or annotations.

    KFP's compiler makes a template for each pair of their numbers and begins its name with `metadata-A-L-`.
    """
    executors = _part(document, "platform_spec", "platforms", "kubernetes", "deploymentSpec", "executors")
    components = _part(document, "pipeline_spec", "components")
    templates = {}
    for component in (_part(document, "pipeline_spec", "root"), *components.values()):
        for name, task in _part(component, "dag", "tasks").items():
            label = _part(components, _part(task, "componentRef").get("name")).get("executorLabel")
            if metadata := _part(executors, label, "podMetadata"):
                templates[name] = f"metadata-{len(_part(metadata, 'annotations'))}-{len(_part(metadata, 'labels'))}-"
    return templates


def _part(document: Any, *keys: str | None) -> Mapping[str, Any]:
    """Returns the mapping below some keys, empty if there is none: anybody may run pipelines in an experiment."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, Mapping) else {}


def _pod(nodes: Set[str], task: str, beginning: str) -> str:
    """Returns the name of the pod of a task's last attempt, empty if `nodes` has no pod of the task.

    KFP does not send pod names. It sends the ids of a task's children in Argo's workflow: `WORKFLOW-HASH`, with the
    FNV-1a hash of the child's name. The child's pod is `WORKFLOW-TEMPLATE-HASH` (Argo's pod names v2). KFP 2.17's
    compiler defines names and templates; a step's template begins with `beginning` (`_templates`). They differ if an
    administrator lets Argo add retries to every node.
    """
    if task == f"root{DRIVER}":
        tries = iter([(task, "system-dag-driver")])
    elif task.endswith(DRIVER):
        of_step = step_of_task(task.removesuffix(DRIVER))
        tries = iter([(f"root.{task}", f"system-{'container' if of_step else 'dag'}-driver")])
    else:  # with retries, `executor` is the parent of the attempts, not a pod
        executor = f"root.{task}.executor"
        retried = f"{beginning}retry-system-container-impl"
        attempts = ((f"{executor}({number})", retried) for number in itertools.count())
        tries = itertools.chain([(executor, f"{beginning}system-container-impl")], attempts)
    pod = ""
    for node, template in tries:
        if (node_id := _node(nodes, node)) not in nodes:
            break
        workflow, _, digest = node_id.rpartition("-")
        pod = f"{workflow}-{template}-{digest}"
    return pod


def _node(nodes: Set[str], name: str) -> str:
    """Returns the id of the node `name` in the workflow that `nodes` are of."""
    workflow, digest = next(iter(nodes), "").rpartition("-")[0], 2166136261
    for byte in f"{workflow}.{name}".encode():
        digest = (digest ^ byte) * 16777619 % 2**32
    return f"{workflow}-{digest}"
