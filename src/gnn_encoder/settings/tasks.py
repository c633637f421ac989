"""Calls of steps whose work several tasks share, or whose training several pods share."""

from collections.abc import Mapping
from typing import Any

from gnn_encoder.settings.pipeline import Call
from gnn_encoder.settings.shared import Merge, OnNodes, Sharded


def shared_calls(
    step: str, settings: Sharded | OnNodes, asked: bool = True, parameter: str = "", label: str = ""
) -> dict[str, Call]:
    """Returns the calls of a step's tasks, STEP.0 and so on, and of the merge of their outputs, `merge_STEP`.

    The parameter STEP of a pipeline is the list of the tasks' arguments; `parameter` and `label` are those of a further
    call of the step. A task that is alone has the step's settings.
    """
    name = parameter or step
    if isinstance(settings, Sharded):
        count, number, task = settings.shards, "shard", ""
    else:
        count, number, task = settings.nodes, "node", f"{label}, node " if label else "node "
    found = {f"{name}.0": Call(step, settings, label, asked)}
    if asked and count > 1:
        tasks = (settings.model_copy(update={number: i}) for i in range(count))
        found = {f"{name}.{i}": Call(step, own, f"{task}{i + 1} of {count}") for i, own in enumerate(tasks)}
    return {**found, f"merge_{name}": Call("merge", Merge(), name, asked)}


def by_parameter(arguments: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Returns {parameter of a pipeline: argument, or the list of a step's tasks} of the arguments of `calls`."""
    found: dict[str, Any] = {}
    for name, argument in arguments.items():
        step, dot, _ = name.partition(".")
        if dot:
            found.setdefault(step, []).append(argument)
        else:
            found[name] = argument
    return found
