"""What a step declares: names and kinds of its inputs and outputs, and its settings, read off its signature.

A step is a function in `gnn_encoder/steps/NAME.py` under `@step(OUTPUT="schema", …)`. Its signature is parsed and not
imported, because steps import models: a graph of 60 nodes is made in milliseconds.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from gnn_encoder.settings.values import StepSettings

STEPS = Path(__file__).parents[1] / "steps"
NO_INPUT = ("context", "settings")
SHOWN = {"report": "page", "evaluation": "table"}
"""Schema of a step's output → the further output of the step's component that shows it on Kubeflow's page of a run: an
HTML page, or metrics. `python -m gnn_encoder.steps` writes it if the caller asks for it."""


@dataclass(frozen=True)
class Input:
    """An input of a step: one artifact, or a list of them."""

    is_list: bool
    is_optional: bool


@dataclass(frozen=True)
class Declared:
    """A step's declaration."""

    name: str
    purpose: str
    """The first line of its docstring."""
    settings: type[StepSettings]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, str]
    """Name → schema of the artifact; "": that of the step's first input."""


def step_names() -> tuple[str, ...]:
    """Returns the names of all steps."""
    return tuple(sorted(path.stem for path in STEPS.glob("*.py") if not path.stem.startswith("_")))


@cache
def declared(name: str) -> Declared:
    """Returns the declaration of a step; a KeyError for an unknown name."""
    path = STEPS / f"{name}.py"
    if not path.is_file():
        raise KeyError(name)
    module = ast.parse(path.read_text("utf-8"))
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    (decorator,) = (expression for expression in function.decorator_list if isinstance(expression, ast.Call))
    schemas = {str(keyword.arg): keyword.value for keyword in decorator.keywords}
    outputs = {of: str(value.value) if isinstance(value, ast.Constant) else "" for of, value in schemas.items()}
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + [*arguments.defaults]
    inputs = {
        argument.arg: Input("list[" in ast.unparse(argument.annotation or ast.Constant("")), default is not None)
        for argument, default in zip(arguments.args, defaults, strict=True)
        if argument.arg not in (*NO_INPUT, *outputs)
    }
    annotation = next(argument.annotation for argument in arguments.args if argument.arg == "settings")
    purpose = (ast.get_docstring(function) or "").partition("\n")[0]
    return Declared(name, purpose, _settings(module, ast.unparse(annotation or ast.Constant(""))), inputs, outputs)


def _settings(module: ast.Module, annotation: str) -> type[StepSettings]:
    """Returns the settings class that a step's module imports under the name of the annotation."""
    room, _, name = annotation.rpartition(".")
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (room or name) in {alias.name for alias in node.names}:
            source = import_module(f"{node.module}.{room}" if room else str(node.module))
            settings_class: type[StepSettings] = getattr(source, name)
            return settings_class
    raise TypeError(f"no import of {annotation}")
