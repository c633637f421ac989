"""Calls of steps whose work several tasks share, or whose training several pods share."""

import re
from collections.abc import Mapping
from typing import Any

from gnn_encoder.settings.pipeline import Call
from gnn_encoder.settings.shared import Merge, OnNodes, Sharded


def training_label(label: str) -> str:
    """Returns the label, or the title, of a training, given that of a node (`node_label`)."""
    return re.sub(r"(^|: |, )node \d+ of \d+$", "", label)


def node_label(label: str, number: int, count: int) -> str:
    """Returns the label of node `number` (from 0) of `count`, given that of the training or of a node."""
    whole = training_label(label)
    return f"{whole}{', ' if whole else ''}node {number + 1} of {count}"


def shared_calls(
    step: str, settings: Sharded | OnNodes, asked: bool = True, parameter: str = "", label: str = ""
) -> dict[str, Call]:
    """Returns the calls of a step's tasks, STEP.0 and so on, and of the merge of their outputs, `merge_STEP`.

    The parameter STEP of a pipeline is the list of the tasks' arguments; `parameter` and `label` are those of a further
    call of the step. A task that is alone has the step's settings.
    """
    name = parameter or step
    if isinstance(settings, Sharded):
        count, number = settings.shards, "shard"
    else:
        count, number = settings.nodes, "node"
    found = {f"{name}.0": Call(step, settings, label, asked)}
    if asked and count > 1:
        labels = [f"{i + 1} of {count}" if number == "shard" else node_label(label, i, count) for i in range(count)]
        found = {
            f"{name}.{i}": Call(step, settings.model_copy(update={number: i}), own) for i, own in enumerate(labels)
        }
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
