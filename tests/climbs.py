"""The graph of a ladder on tiny data, whose steps are called in this process."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Artifact, Given, Graph
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings

QUESTION = "what is the old river"
LINEAR, LEARNED = "Linear fusion, untrained", "Learned fusion, untrained"


def settings_of(backbone: Path, data: Path, **more: Mapping[str, Any]) -> Settings:
    tree: dict[str, dict[str, Any]] = {
        "ingest": {"dataset": str(data)},
        "encode": {"encoder": str(backbone), "query_length": 16, "passage_length": 24, "precision": "fp32"},
        "encode_with_labels": {"kinds": []},
        "fuse_parts": {"kinds": ["linear", "trees"], "smallest_leaf": 5},
        "evaluate": {"permutations": 50, "resamples": 20, "precision": "fp32"},
    }
    return parse_settings({name: {**tree.get(name, {}), **more.get(name, {})} for name in {*tree, *more}})


def run_here(graph: Graph, folder: Path) -> dict[str, Path]:
    """Calls the steps of a graph one after the other; returns {title/output: folder}."""
    outputs_of: dict[str, Path] = {}

    def path_of(artifact: Artifact) -> Path:
        if isinstance(artifact, Given):
            return Path(artifact.address)
        return outputs_of[f"{artifact.node.title}/{artifact.name}"]

    for node in graph.nodes:
        step = getattr(import_module(f"gnn_encoder.steps.{node.step}"), node.step)
        inputs = {
            name: [path_of(item) for item in value] if isinstance(value, tuple) else path_of(value)
            for name, value in node.inputs.items()
        }
        target = folder / f"{len(outputs_of):02}"
        outputs = {name: target / name for name in declared(node.step).outputs}
        arguments = StepArguments(settings=node.settings.model_dump(mode="json"), label=node.label)
        step(arguments.model_dump_json(), **inputs, **outputs)
        outputs_of |= {f"{node.title}/{name}": path for name, path in outputs.items()}
    return outputs_of


def weights_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
