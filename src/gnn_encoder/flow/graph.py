"""A run's graph: nodes that call steps, each after the nodes that it reads.

Functions in `pipelines` make a graph from settings. It has exactly the nodes that the settings need. What is chosen
while a run goes on, such as the best encoder, is an artifact and never another graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnn_encoder.flow.arguments import title_of
from gnn_encoder.flow.declared import declared
from gnn_encoder.settings.rungs import DECIDE, PREPARE
from gnn_encoder.settings.shared import Merge, Sharded
from gnn_encoder.settings.values import StepSettings


@dataclass(frozen=True)
class Given:
    """An artifact that exists before the run: a folder, or an address in an object store."""

    address: str


@dataclass(frozen=True)
class Output:
    """An artifact that a node writes."""

    node: "Node"
    name: str


Artifact = Output | Given
Inputs = Mapping[str, Artifact | tuple[Artifact, ...]]


@dataclass(eq=False)
class Node:
    """A call of a step."""

    step: str
    settings: StepSettings
    inputs: Inputs
    label: str = ""
    """Distinguishes the calls of one step."""
    after: tuple["Node", ...] = ()
    """Nodes that run before this one, besides those that it reads."""
    stage: str = PREPARE
    """One of `STAGES`, for people who follow the run."""

    @property
    def title(self) -> str:
        """The name of the call."""
        return title_of(self.step, self.label)

    @property
    def output(self) -> Output:
        """The artifact of a step that writes one."""
        (name,) = declared(self.step).outputs
        return Output(self, name)

    def __getitem__(self, name: str) -> Output:
        """The output with a name."""
        if name not in declared(self.step).outputs:
            raise KeyError(f"{self.step} has no output {name}")
        return Output(self, name)

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Yields (name, artifact) of each input; of a list, each of its artifacts under the name of the list."""
        for name, value in self.inputs.items():
            for artifact in value if isinstance(value, tuple) else (value,):
                yield name, artifact

    def before(self) -> Iterator["Node"]:
        """Yields the nodes that must run before this one, possibly several times."""
        yield from (artifact.node for _, artifact in self.artifacts() if isinstance(artifact, Output))
        yield from self.after


@dataclass
class Graph:
    """Nodes in an order in which they can run."""

    name: str
    """The pipeline's name, as in the names of runs."""
    description: str = ""
    """One sentence, which KFP's pages show."""
    changed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the run's settings change (`presets.changed_settings`), for the page."""
    nodes: list[Node] = field(default_factory=list)
    rungs: dict[str, dict[str, Output]] = field(default_factory=dict)
    """Of a ladder: rung → the outputs that show and serve its result, by name, the last one last."""
    stage: str = PREPARE
    """Of the nodes that are added next."""

    def begin(self, stage: str) -> None:
        """Begins a stage. A decision that another stage follows is a part of the stage before it."""
        if self.stage == DECIDE:
            decided = [node for node in self.nodes if node.stage == DECIDE]
            before = self.nodes[self.nodes.index(decided[0]) - 1].stage
            for node in decided:
                node.stage = before
        self.stage = stage

    def add(
        self,
        step: str,
        settings: StepSettings,
        label: str = "",
        after: Sequence[Node] = (),
        /,
        **inputs: Artifact | Sequence[Artifact] | None,
    ) -> Node:
        """Adds a call of a step. An input that is None is left out.

        Raises:
            TypeError: inputs or settings are not those of the step, or a call has the title of another.
        """
        declaration = declared(step)
        present: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list | tuple) else value
            for name, value in inputs.items()
            if value is not None
        }
        if unknown := present.keys() - declaration.inputs.keys():
            raise TypeError(f"{step} has no input {', '.join(sorted(unknown))}")
        for name, of in declaration.inputs.items():
            if not of.is_optional and name not in present:
                raise TypeError(f"{step} needs {name}")
            if name in present and of.is_list != isinstance(present[name], tuple):
                raise TypeError(f"{step}: {name} is {'' if of.is_list else 'not '}a list")
        if not isinstance(settings, declaration.settings):
            raise TypeError(f"{step} takes {declaration.settings.__name__}, not {type(settings).__name__}")
        ordered = {name: present[name] for name in declaration.inputs if name in present}
        node = Node(step, settings, ordered, label, tuple(after), self.stage)
        if node.title in {other.title for other in self.nodes}:
            raise TypeError(f"two calls are named {node.title}")
        self.nodes.append(node)
        return node

    def parallel(self, step: str, settings: Sharded, /, **inputs: Artifact | None) -> Output:
        """Adds the tasks that share a step's work, and the merge of their outputs; a single task needs no merge."""
        if settings.shards == 1:
            return self.add(step, settings, **inputs).output
        parts = [
            self.add(step, settings.model_copy(update={"shard": i}), f"{i + 1} of {settings.shards}", **inputs).output
            for i in range(settings.shards)
        ]
        return self.add("merge", Merge(), step, parts=parts, dataset=inputs["dataset"]).output

    def __getitem__(self, title: str) -> Node:
        """The node with a title."""
        return next(node for node in self.nodes if node.title == title)

    def of(self, step: str) -> list[Node]:
        """Returns the calls of a step, in order."""
        return [node for node in self.nodes if node.step == step]
