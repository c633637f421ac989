"""A graph as the text of a Mermaid flowchart, which GitHub draws.

Calls of one step are one box, unless one of them depends on another. An arrow has the names of the artifacts that are
read. It is left out where a way of several arrows leads to the same box: nearly every step reads the data set.
"""

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from gnn_encoder.flow.graph import Given, Graph, Node, Output

Part = Node | Given
Arrows = dict[str, dict[str, list[str]]]
"""Box → box before it → names of the artifacts that are read from there; none if it only has to be ready."""


def mermaid(graph: Graph) -> str:
    """Returns the flowchart of a graph."""
    box_of = boxes(graph)
    arrows = _arrows(box_of)
    above: dict[str, set[str]] = {}
    for box in TopologicalSorter(arrows).static_order():
        above[box] = {source for before in arrows[box] for source in (before, *above[before])}
    lines = ["flowchart TD"]
    lines += [f"  {box}{_shape([part for part in box_of if box_of[part] == box])}" for box in arrows]
    for box, sources in arrows.items():
        for source, names in sources.items():
            if not any(source in above[other] for other in sources):
                arrow = f"-->|{', '.join(dict.fromkeys(names))}|" if names else "-.->"
                lines.append(f"  {source} {arrow} {box}")
    return "\n".join(lines)


def boxes(graph: Graph) -> dict[Part, str]:
    """Returns the name of the box of each call and of each artifact that exists before the run."""
    box_of: dict[Part, str] = {}
    for node in graph.nodes:
        for _, artifact in node.artifacts():
            if isinstance(artifact, Given):
                box_of.setdefault(artifact, f"given_{1 + sum(isinstance(part, Given) for part in box_of)}")
        same = {box: None for part, box in box_of.items() if isinstance(part, Node) and part.step == node.step}
        fitting = (box for box in same if _is_acyclic({**box_of, node: box}))
        box_of[node] = next(fitting, f"{node.step}_{len(same) + 1}" if same else node.step)
    return box_of


def _arrows(box_of: Mapping[Part, str]) -> Arrows:
    arrows: Arrows = {box: {} for box in box_of.values()}
    for part, box in box_of.items():
        if isinstance(part, Node):
            for name, artifact in part.artifacts():
                source, label = (artifact.node, artifact.name) if isinstance(artifact, Output) else (artifact, name)
                arrows[box].setdefault(box_of[source], []).append(label)
            for node in part.after:
                arrows[box].setdefault(box_of[node], [])
    return arrows


def _is_acyclic(box_of: Mapping[Part, str]) -> bool:
    try:
        TopologicalSorter(_arrows(box_of)).prepare()
    except CycleError:
        return False
    return True


def _shape(parts: list[Part]) -> str:
    """Returns a box's shape and text: rounded for several calls, a cylinder for what exists before the run."""
    first = parts[0]
    if isinstance(first, Given):
        return f'[("{_escaped(PurePosixPath(first.address).name)}")]'
    if len(parts) > 1:
        return f'(["{first.step}<br/>× {len(parts)}"])'
    return f'["{first.step}<br/>{_escaped(first.label)}"]' if first.label else ""


def _escaped(text: str) -> str:
    """Returns a text without signs that Mermaid or HTML would read."""
    return re.sub(r"""[^\w .,:;=()+/-]""", lambda sign: f"#{ord(sign[0])};", text)
