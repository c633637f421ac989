"""`gnn-encoder run` without a preset, or up to a rung: climbs the ladder within a budget of time."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnn_encoder.artifacts.finished_run import BUNDLE, labelled_bundle
from gnn_encoder.artifacts.folder import digest_of, read_manifest
from gnn_encoder.engines.climbed import kept_reranker, rung_of, settings_of
from gnn_encoder.engines.latest import CHOSEN, kept_labels, same_data, with_added_labels, with_latest, without_forgotten
from gnn_encoder.engines.local import calls_of
from gnn_encoder.engines.local_run import Outcome, Rung, run_calls
from gnn_encoder.engines.pipelines import (
    LocalJob,
    check_heads,
    check_nodes,
    dataset_override,
    dated,
    params_of,
    writable,
)
from gnn_encoder.engines.provenance import DATA
from gnn_encoder.engines.supervision import Show
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import ORIGIN, PLAN, StepArguments
from gnn_encoder.flow.graph import Given, Graph, Output
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.planning import AUTO
from gnn_encoder.settings.pipeline import PIPELINES
from gnn_encoder.settings.presets import load_settings, parse_settings, read_yaml_file
from gnn_encoder.settings.rungs import RERANKING, RUNGS, TRAINING, height, rung_named


@dataclass(frozen=True)
class Climb(LocalJob):
    """The rungs of a ladder."""

    planned: Mapping[str, float]
    """Title of a call → seconds that it takes, of the calls that a plan knows."""
    missing: str = ""
    """The rungs that do not fit the budget, in words."""
    of_options: str = ""
    """Of a plan: the digest of the settings and the budget that it was made for."""

    def arguments(self, registry: str = "") -> dict[str, StepArguments]:
        """As for a training, but `of_options` stands for the settings of a plan, which a machine's speed decides.

        Otherwise CI's next runner would always have other settings.
        """
        arguments = super().arguments(registry)
        if self.of_options:
            read = [call.source_digests.items() for call in arguments.values()]
            apart = (*DATA, *ORIGIN, "registry")
            models = sorted({digest for of_call in read for name, digest in of_call if name not in apart})
            digest = digest_of({"options": self.of_options, "models": models})
            for node in self.graph.of("promote"):
                digests = arguments[node.title].source_digests
                digests[PLAN], digests[ORIGIN[1]] = digests[ORIGIN[1]], digest
        return arguments

    def run(
        self,
        show: Show,
        shown: Callable[[Outcome], None] = lambda outcome: None,
        deadline: float = math.inf,
        arguments: Mapping[str, StepArguments] | None = None,
    ) -> Outcome:
        """Runs the rungs; `latest/` has the result of the last one that was reached.

        Args:
            shown: gets the outcome at the end of each rung that was not reused.
            deadline: as in `run_calls`.
            arguments: of the steps, by default `self.arguments()`.

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

        arguments = self.arguments() if arguments is None else arguments
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
    last, plan, of_options = RUNGS[-1] if until is None else rung_named(until), None, ""
    if preset == AUTO and height(last) >= height(TRAINING) and budget == math.inf:
        raise UserError(f"--until {until}: a training needs a --budget, such as 1h, or a --preset")
    changes = [*overrides, *dataset_override(dataset)]
    if preset == AUTO:
        from gnn_encoder.planning.auto import PLANNED, planned_climb, unplanned  # imports torch

        root = writable(root)
        facts = {
            "until": last,
            "budget": str(budget),
            "settings": unplanned(changes).model_dump(mode="json", exclude={"ingest": {*DATA}}),
        }
        others = sorted(change for change in changes if change.partition(".")[0] not in PLANNED)
        of_options = digest_of({**facts, "others": others})
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
    return Climb(preset, settings, ladder(settings, last), root, *known, of_options)


def climbs(preset: str, until: str | None, **options: object) -> bool:
    """Returns whether a run climbs: without a preset, or up to a rung; a UserError for `options` of a climb if not."""
    if preset == AUTO or until is not None:
        return True
    for name, value in options.items():
        if value:
            change = "a preset's encoder is --set shared.backbone=…" if name == "encoder" else "--set changes a preset"
            raise UserError(f"--{name} is for a run without --preset, or with --until: {change}")
    return False


def climbing_again(
    since: Path, dataset: str | None, overrides: Iterable[str], root: Path, writes: bool = True
) -> Climb:
    """Returns the climb of a finished run without a training in folder `since` on new data, with its settings.

    Vectors of unchanged texts are reused, and so is the re-ranker; all labels count anew.

    Raises:
        UserError: as `climbing`.
    """
    rung, tree = rung_of(since), settings_of(since)
    root = writable(root) if writes else root.resolve()
    tree["ingest"]["labels"] = kept_labels(labelled_bundle(since), root, writes)
    settings = parse_settings(tree, [*overrides, *dataset_override(dataset)], source=str(since))
    settings = without_forgotten(settings, root)
    if "encode" in tree and (vectors := since / "passage_vectors").exists():
        # The link moves with the run's end.
        reusing = settings.encode.model_copy(update={"previous": str(vectors.resolve())})
        settings = settings.model_copy(update={"encode": reusing})
    reranker = Given(str(kept_reranker(since / BUNDLE, root, writes))) if rung == RERANKING else None
    return Climb(f"of {since}", settings, ladder(settings, rung, reranker), root, {})


def climbs_again(since: Path) -> bool:
    """Returns whether a finished run in folder `since` climbed without a training, so that an update climbs, too."""
    return bool(rung_of(since)) and not (since / "graph").exists()
