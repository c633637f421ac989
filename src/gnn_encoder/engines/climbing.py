"""`gnn-encoder run` without a preset, or up to a rung: climbs the ladder within a budget of time."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import BUNDLE, labelled_bundle
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.history import of_encoding, read_history
from gnn_encoder.engines.latest import CHOSEN, kept_labels, same_data, with_added_labels, with_latest
from gnn_encoder.engines.local import calls_of
from gnn_encoder.engines.local_run import Outcome, Rung, run_calls
from gnn_encoder.engines.pipelines import check_heads, check_nodes, dataset_override, dated, params_of, writable
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.engines.supervision import Show
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Graph, Output
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.planning import AUTO
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.presets import load_settings, parse_settings, read_yaml_file, settable
from gnn_encoder.settings.rungs import LABELS, RERANKING, RUNGS, TRAINING, height, rung_named
from gnn_encoder.settings.systems import LABEL_FIELD, LEXICAL, NOT_TRAINED, SYSTEMS, UNTRAINED
from gnn_encoder.tracking.pipeline_run import tracking_uri


@dataclass(frozen=True)
class Climb:
    """The rungs of a ladder with checked settings, in a root."""

    preset: str
    settings: Settings
    graph: Graph
    root: Path
    planned: Mapping[str, float]
    """Title of a call → seconds that it takes, of the calls that a plan knows."""
    missing: str = ""
    """The rungs that do not fit the budget, in words."""

    def run(
        self, show: Show, shown: Callable[[Outcome], None] = lambda outcome: None, deadline: float = math.inf
    ) -> Outcome:
        """Runs the rungs; `latest/` has the result of the last one that was reached.

        Args:
            shown: gets the outcome at the end of each rung that was not reused.
            deadline: as in `run_calls`.

        Raises:
            UserError: as `Training.run`.
        """
        check_models(self.graph.nodes)
        steps = PIPELINES["ladder"]
        if TRAINING in self.graph.rungs:
            check_heads(self.settings)
            steps = tuple(dict.fromkeys((*steps, *PIPELINES["train"])))
        if RERANKING in self.graph.rungs:
            steps = (*steps, "first_stage", "train_reranker", "weigh_reranker")
        latest, last = self.root / "latest", Outcome()

        def reached(outcome: Outcome, is_cached: bool) -> None:
            nonlocal last
            last = outcome
            if not stays(latest, outcome):
                last = with_latest(self.root, outcome)
            if not is_cached:
                shown(last)

        arguments = graph_arguments(self.graph, registry=tracking_uri(self.root))
        outcome = run_calls(
            calls_of(self.graph, arguments), self.root, dated("ladder"),
            {"preset": self.preset, **params_of(self.settings, steps)}, show,
            rungs=rungs_of(self.graph), reached=reached, deadline=deadline,
        )  # fmt: skip
        if outcome.status == "FINISHED":
            if stays(latest, last) and not outcome.is_late:
                last = with_latest(self.root, last)
            outcome.outputs = {**last.outputs, BUNDLE: last.outputs[CHOSEN]} if stays(latest, last) else last.outputs
        return outcome


def stays(latest: Path, outcome: Outcome) -> bool:
    """Returns whether `latest/` has a higher rung of the same data than an outcome, or the only training's result.

    Then a run that goes on leaves it in place: a lower rung would take a bundle out of service, with its added labels.
    Without a training, a re-ranking is of a lower rung than any with one.
    """
    data = latest / "dataset"
    if not data.exists() or not (latest / BUNDLE).exists():
        return False
    earlier, present = (read_manifest(path, "dataset").settings for path in (data, outcome.outputs["dataset"]))
    is_trained = (latest / "graph").exists()
    reached = ("graph" in outcome.outputs or outcome.rung == TRAINING, height(outcome.rung))
    return same_data(present, earlier) and (is_trained, height(rung_of(latest))) > reached


def rungs_of(graph: Graph) -> list[Rung]:
    """Returns the rungs of a graph, as a run of its calls names them."""

    def name_of(output: Output) -> str:
        return f"{output.node.title}/{output.name}"

    return [
        Rung(name, list(outputs.values())[-1].node.title, {key: name_of(output) for key, output in outputs.items()})
        for name, outputs in graph.rungs.items()
    ]


def climbing(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    root: Path,
    until: str | None,
    budget: float,
    tell: Callable[[str, str], None],
    writes: bool = True,
) -> Climb:
    """Returns the rungs up to `until`, or without a preset those that fit the budget.

    Args:
        budget: seconds; infinite: no limit.
        tell: gets the name and the text of each line about what the run will do.
        writes: whether the root exists afterwards; without a preset it always does, with the plan in it.

    Raises:
        UserError: an unknown rung, or settings or a root that are not usable.
    """
    last, plan = RUNGS[-1] if until is None else rung_named(until), None
    if preset == AUTO and height(last) >= height(TRAINING) and budget == math.inf:
        raise UserError(f"--until {until}: a training needs a --budget, such as 1h, or a --preset")
    changes = [*overrides, *dataset_override(dataset)]
    if preset == AUTO:
        from gnn_encoder.planning.auto import planned_climb  # imports torch

        root = writable(root)
        plan = planned_climb(changes, last, budget, root, tell)
        # Of the encoders, the plan has those that fit.
        changes = [change for change in changes if not change.startswith(("encode.encoder=", "encode.others="))]
        settings, last = parse_settings(read_yaml_file(plan.file), changes, source=str(plan.file)), plan.until
    else:
        settings = load_settings(preset, changes)
    if not settings.ingest.dataset:
        raise UserError("no data: give --dataset, or a --preset that names its own (gnn-encoder presets)")
    check_nodes(ladder(settings, last))  # before anything is written
    root = writable(root) if writes else root.resolve()
    settings = with_added_labels(settings, root, writes)
    known = (plan.seconds, plan.missing) if plan else ({}, "")
    return Climb(preset, settings, ladder(settings, last), root, *known)


def climbing_again(
    since: Path, dataset: str | None, overrides: Iterable[str], root: Path, writes: bool = True
) -> Climb:
    """Returns the climb of a finished run in folder `since` on new data, with its settings, up to what trains nothing.

    Vectors of unchanged texts are reused; all labels count anew.

    Raises:
        UserError: as `climbing`.
    """
    history, rung = read_history(since / "decision"), RUNGS[min(height(rung_of(since)), height(LABELS))]
    tree: dict[str, dict[str, Any]] = {"encode_with_labels": {}, "fuse_parts": {}}
    kinds: dict[str, list[str]] = {step: [] for step in tree}
    for title, record in history.items():
        step = title.partition(": ")[0]
        # A training has calls of the same steps, over M_de.
        if step not in PIPELINES["ladder"] or (step in kinds and not record.settings.get("system")):
            continue
        if step == "make_parts" and title != f"make_parts: {NOT_TRAINED}":
            continue
        if step == "encode" and record is not of_encoding(history):  # one that was not chosen
            continue
        tree[step] = {name: value for name, value in record.settings.items() if name in settable(step)}
        if step in kinds:
            kinds[step].append(record.settings["kind"])
    tree |= {step: {**tree[step], "kinds": kinds[step]} for step in kinds}
    tree["bm25_retrieve"].pop("train_depth")  # the rungs decide it
    tree["ingest"].pop("chosen_on_dev", None)  # of a run's trainings
    if bundled := history.get(f"bundle_dual_encoder: {UNTRAINED}"):
        tree["encode_corpus"] = {name: bundled.settings[name] for name in IndexKind.model_fields}
        tree["build_graph"] = {"vector_type": bundled.settings["vector_type"]}
    root = writable(root) if writes else root.resolve()
    tree["ingest"]["labels"] = kept_labels(labelled_bundle(since), root, writes)
    settings = parse_settings(tree, [*overrides, *dataset_override(dataset)], source=str(since))
    if "encode" in tree and (vectors := since / "passage_vectors").exists():
        # The link moves with the run's end.
        reusing = settings.encode.model_copy(update={"previous": str(vectors.resolve())})
        settings = settings.model_copy(update={"encode": reusing})
    return Climb(f"of {since}", settings, ladder(settings, rung), root, {})


def climbs_again(since: Path) -> bool:
    """Returns whether the bundle of a finished run in folder `since` is of a rung that trains nothing."""
    if not rung_of(since):
        return False
    row = SYSTEMS.get(Bundle.read(since / BUNDLE).system)
    return row is None or row.as_it_is or row.name in (LEXICAL, UNTRAINED, LABEL_FIELD)


def rung_of(since: Path) -> str:
    """Returns the rung that a finished run in folder `since` has reached; empty if it did not climb."""
    advice = since / "recommendation"
    titles = [*read_history(advice)] if advice.exists() else []
    rung = titles[-1].partition(": ")[2] if titles else ""
    return rung if rung in RUNGS else ""
