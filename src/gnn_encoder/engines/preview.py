"""What a run on this machine would do: the calls whose results it reuses, and the seconds that the others may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import HISTORY
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.engines.local import INGEST, Cache, calls_of
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import task_name
from gnn_encoder.flow.graph import Graph, Node
from gnn_encoder.tracking.pipeline_run import tracking_uri


@dataclass(frozen=True)
class Expected:
    """What a call of a run will be."""

    node: Node
    is_cached: bool
    """Its result is reused. A call that reads the output of one that runs is taken to run, too."""
    seconds: float | None
    """What it takes; None: not known."""


def preview(graph: Graph, root: Path, planned: Mapping[str, float]) -> list[Expected]:
    """Returns what a run of a graph under a root would do. Nothing is executed, and no result is written.

    A call takes what an equal one has taken under this root: of the same settings, with the same data set. If there is
    none, it takes the seconds in `planned`.

    Raises:
        UserError: the data source, a local backbone or an artifact that exists before the run is not there.
    """
    cache = Cache(root.resolve() / "pipeline")
    cache.reuse(calls_of(graph, graph_arguments(graph, tracking_uri(root.resolve()))))
    dataset = getattr(graph[INGEST].settings, "dataset", "")
    return [
        Expected(node, True, 0.0)
        if node.title in cache.outputs
        else Expected(node, False, _seconds(node, dataset, cache.folder) or planned.get(node.title))
        for node in graph.nodes
    ]


def _seconds(node: Node, dataset: str, folder: Path) -> float | None:
    """Returns what the newest equal call has taken."""
    settings: dict[str, Any] = node.settings.model_dump(mode="json")
    for file in sorted(folder.glob(f"*/{task_name(node.title)}*/*/{HISTORY}"), reverse=True):
        try:
            history = read_history(file.parent)
        except UserError:  # the artifact is damaged
            continue
        record = history.get(node.title)
        same_data = history.get(INGEST, Record()).settings.get("dataset") == dataset
        if record and record.settings == settings and same_data:
            return float(record.metrics["seconds"])
    return None
