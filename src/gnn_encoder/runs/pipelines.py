"""`gnn-encoder run`, `update`, `ablate`, `rerank` on this machine: check settings, run a pipeline, link its outputs."""

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.added_labels import ADDED_LABELS, AddedLabel, read_labels
from gnn_encoder.artifacts.arrays import read_vectors, vector_type
from gnn_encoder.artifacts.bundle import ADDED, BUNDLE, BUNDLES, graph_bundle, labelled_bundle, place_of
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.errors import UserError, expanded
from gnn_encoder.models.backbone import backbone_width
from gnn_encoder.planning import AUTO
from gnn_encoder.promotion.registry import Registry, open_registry
from gnn_encoder.runs import launch
from gnn_encoder.runs.containers import Containers, check_engine
from gnn_encoder.runs.local_run import Outcome, run_pipeline
from gnn_encoder.runs.provenance import call_arguments, step_arguments
from gnn_encoder.runs.supervision import Show
from gnn_encoder.settings.graph import largest_graph
from gnn_encoder.settings.labels import LABEL_SYSTEMS, settings_of_use
from gnn_encoder.settings.pipeline import (
    FOUNDATION,
    ON_NODES,
    PIPELINES,
    SHARDED,
    Call,
    Settings,
    StepArguments,
    by_parameter,
    calls,
    choice,
    reranking_calls,
    reranking_loops,
    studied_systems,
)
from gnn_encoder.settings.presets import load_settings, parse_settings
from gnn_encoder.settings.reranking_systems import system_names
from gnn_encoder.settings.shared import Inference
from gnn_encoder.settings.studies import variants, with_seeds
from gnn_encoder.settings.systems import CONVERGED, GNN_ENCODER
from gnn_encoder.storage import local_folder
from gnn_encoder.tracking.pipeline_run import existing_store, tracking_uri

MODELS = ("dual_encoder", "cross_encoder", "gnn_encoder")
CONVERGED_MODEL = "converged"
"""Name of the converged dual encoder in `latest/`, and its parameter in an update."""
KEPT = (BUNDLE, "recommendation", "report", "dataset", "graph", "passage_vectors", "encoding", *MODELS)
"""Outputs of a finished run that users and updates need; `latest/` under the root has links to them, and to the bundle
of each system."""
CHOSEN = "chosen_bundle"
"""Output with the recommended bundle, which is `latest/bundle`."""
KEPT_LABELS = "labels"
"""Folder under the root with the added labels that pipelines have read."""
PROCESSES, CONTAINERS = RUNNERS = ("subprocess", "docker")
"""On this machine a step is a process or a container."""


@dataclass(frozen=True)
class Training:
    """A training pipeline with checked settings, in a writable root."""

    preset: str
    settings: Settings
    root: Path

    def models(self) -> Registry:
        """Returns the model's registry; a UserError if the store is not usable, `Missing` if nothing has run yet."""
        return open_registry(existing_store(self.root), self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, str | list[str]]:
        """Returns the arguments of the steps; a UserError if the data source or the backbone does not exist.

        `registry` is a text about the registered versions. If the text changes, `promote` decides again.
        """
        uri = tracking_uri(self.root)
        return step_arguments(self.settings, PIPELINES["train"], registry=f"{uri} {registry}".strip())

    def run(
        self, show: Show, arguments: launch.Arguments | None = None, runner: str = PROCESSES, memory: str = ""
    ) -> Outcome:
        """Runs the pipeline.

        Args:
            arguments: arguments of the steps, by default `self.arguments()`.
            runner: `subprocess` or `docker`; with `docker` each step is a container.
            memory: memory limit of a container, such as `6g`; empty: none.

        Raises:
            UserError: settings do not fit the backbone; data source, backbone, tracking store or container engine is
                not usable; or another run is active under the root. No step has started then.
        """
        arguments = self.arguments() if arguments is None else arguments
        check_heads(self.settings)
        if runner not in RUNNERS:
            raise UserError(f"no runner {runner!r}: choose one of {', '.join(RUNNERS)}")
        if memory and runner != CONTAINERS:
            raise UserError(f"--memory limits containers: add --runner {CONTAINERS}")
        containers = None
        if runner == CONTAINERS:
            check_engine(launch.image_of("train"))
            values = (str(v) for step in PIPELINES["train"] for v in getattr(self.settings, step).model_dump().values())
            read = {value for value in values if value.startswith("/") and Path(value).exists()}
            containers = Containers(str(self.root), tuple(read), memory)
        params = {"preset": self.preset, **_params(self.settings, PIPELINES["train"])}
        pipeline, name = launch.pipeline_file("train"), dated(Path(self.preset).stem)
        outcome = run_pipeline(pipeline, arguments, self.root, name, params, show, containers)
        return _with_latest(self.root, outcome)


def training(preset: str, dataset: str | None, overrides: Iterable[str], root: Path) -> Training:
    """Returns the training pipeline of a preset; a UserError if the settings or the root are not usable."""
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    _check_nodes(settings)
    root = _writable(root)
    return Training(preset, with_added_labels(settings, root), root)


def automatic(
    dataset: str | None, overrides: Iterable[str], budget: str, root: Path, show: Callable[[str, str], None]
) -> Training:
    """Returns the training pipeline of a plan for the data, this machine and a budget (`planning.auto`).

    `show` gets the name and the text of each reason.
    """
    from gnn_encoder.planning.auto import planned  # imports torch

    given, root = [*overrides, *dataset_override(dataset)], _writable(root)
    settings = load_settings(str(planned(given, budget, root, show)), given)
    _check_nodes(settings)
    return Training(AUTO, with_added_labels(settings, root), root)


def _label_settings(since: Path) -> dict[str, Any]:
    """Returns settings of `encode_with_labels` that make a finished run's bundles again, with the chosen use of labels.

    Without bundles of the run's dual encoder, the settings ask for none.
    """
    model, chosen = read_manifest(since / "dual_encoder").digest, {"kinds": []}  # type: ignore[var-annotated]
    for kind, system in LABEL_SYSTEMS.items():
        folder = since / place_of(system)
        if not folder.is_dir() or (bundle := Bundle.read(folder)).manifest.inputs.get("dual_encoder") != model:
            continue
        chosen["kinds"].append(kind)
        chosen |= {name: bundle.manifest.settings[name] for name in Inference.model_fields}
        if bundle.label_use:
            chosen |= settings_of_use(kind, asdict(bundle.label_use))
    return chosen


def update(since: Path, dataset: str | None, overrides: Iterable[str], root: Path, show: Show) -> Outcome:
    """Runs the update pipeline on a dataset, with the models and settings of the finished run in folder `since`."""
    overrides, steps = list(overrides), PIPELINES["update"]
    for override in overrides:
        if override.partition(".")[0] not in steps:
            raise UserError(f"--set {override}: an update runs {', '.join(steps)} alone")
    since = expanded(since).resolve()
    if not since.is_dir():
        raise UserError(f"no finished run at {since}: use gnn-encoder run first, or name the run's folder with --from")
    models = {name: str((since / name).resolve()) for name in MODELS}
    for path in models.values():
        read_manifest(path, "model")
    made = {"ingest": since / "dataset", "build_graph": since / "graph", "encode_corpus": graph_bundle(since)}
    tree = {step: read_manifest(artifact).settings for step, artifact in made.items()} | {"choose_bundle": {}}
    for step in ("build_graph", "encode_corpus", "choose_bundle"):
        tree[step]["previous"] = str(since)
    tree["build_graph"]["vector_type"] = vector_type(read_vectors(since / "passage_vectors"))
    tree["encode_with_labels"] = _label_settings(since)
    converged = since / CONVERGED_MODEL
    tree["train_converged"] = {"epochs": int(converged.exists())}  # whether its bundle is asked for
    models[CONVERGED_MODEL] = str(converged.resolve()) if converged.exists() else models["dual_encoder"]
    root = _writable(root)
    tree["ingest"]["labels"] = _kept_labels(labelled_bundle(since), root)
    settings = parse_settings(tree, [*overrides, *dataset_override(dataset)], source=str(since))
    arguments = step_arguments(settings, steps) | models
    params = {"from": str(since), **_params(settings, steps)}
    outcome = run_pipeline(launch.pipeline_file("update"), arguments, root, dated("update"), params, show)
    return _with_latest(root, outcome)


def ablate(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    studies: Iterable[str],
    own: Iterable[str],
    seeds: int,
    root: Path,
    show: Show,
) -> Outcome:
    """Runs the ablation pipeline for the variants of `studies` and the user's `own`, each with `seeds` seeds."""
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    tried = variants(settings, studies, own)
    wanted = [*choice(settings).tried, *tried]  # as in the training pipeline, whose graph is reused if it has all edges
    settings = settings.model_copy(update={"build_graph": largest_graph(settings.build_graph, wanted)})
    root = _writable(root)
    arguments = step_arguments(settings, PIPELINES["ablation"])
    call = StepArguments.model_validate_json(str(arguments.pop("try_variant")))
    arguments["variants"] = [
        call.model_copy(update={"settings": each.model_dump(mode="json"), "label": f"{each.variant}, seed {each.seed}"})
        .model_dump_json()
        for variant in tried
        for each in with_seeds(variant, seeds)
    ]  # fmt: skip
    params = {"preset": preset, "seeds": seeds, **_params(settings, FOUNDATION)}
    name = dated(f"ablation-{Path(preset).stem}")
    return run_pipeline(launch.pipeline_file("ablation"), arguments, root, name, params, show)


def rerank(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    systems: Sequence[str],
    first_stage: str | None,
    root: Path,
    show: Show,
    study: str = "",
) -> Outcome:
    """Runs the re-ranking pipeline for some systems; the last one is the one in the headline.

    If the first stage is a bundle, `latest/bundle` is then that bundle with the best re-ranker. The other links stay.
    With `study`, it runs for the systems of one of `RERANKING_STUDIES`, and reports the study.
    """
    settings = reranking_settings(preset, dataset, overrides, first_stage)
    names = studied_systems(settings, study) if study else system_names(systems)
    settings = settings.model_copy(
        update={"compare_rerankers": settings.compare_rerankers.model_copy(update={"systems": tuple(names)})}
    )
    root = _writable(root)
    bundle = settings.first_stage.bundle
    arguments = reranking_arguments(settings, names, study)
    arguments["bundle"] = str(local_folder(bundle, indexed=False).resolve()) if bundle else ""
    params = {"preset": preset, "systems": ",".join(names), **_params(settings, (*PIPELINES["rerank"], "evaluate"))}
    name = dated(f"{study or 'rerank'}-{Path(preset).stem}")
    outcome = run_pipeline(launch.pipeline_file("rerank"), arguments, root, name, params, show)
    if outcome.status == "FINISHED" and BUNDLE in outcome.outputs:
        outcome.outputs[BUNDLE] = _linked(root, BUNDLE, outcome.outputs[BUNDLE])
    return outcome


def reranking_settings(preset: str, dataset: str | None, overrides: Iterable[str], first_stage: str | None) -> Settings:
    """Returns the settings of a re-ranking pipeline."""
    given = [*dataset_override(dataset), *path_override("first_stage.source", first_stage)]
    return load_settings(preset, [*overrides, *given])


def every_reranking_call(settings: Settings, systems: Sequence[str], study: str = "") -> dict[str, Call]:
    """Returns `reranking_calls` with the calls of the steps before."""
    return calls(settings, ("ingest", "bm25_retrieve", "first_stage")) | reranking_calls(settings, systems, study)


def reranking_arguments(
    settings: Settings, systems: Sequence[str], study: str = ""
) -> dict[str, str | list[str] | list[dict[str, str]]]:
    """Returns the arguments of the re-ranking pipeline."""
    made = call_arguments(every_reranking_call(settings, systems, study))
    steps = (
        "select",
        "teacher",
        "score",
        "train",
        "rerank",
        "evaluate_passages",
        "propagate_sections",
        "encode_context",
    )
    loops = {
        loop: [{step: made[f"{step}.{name}"] for step in steps if f"{step}.{name}" in made} for name in looped]
        for loop, looped in reranking_loops(settings, systems).items()
    }
    once = {name: call for name, call in made.items() if "." not in name or name.partition(".")[0] in SHARDED}
    return {**by_parameter(once), **loops, "bundle": settings.first_stage.bundle}


def with_added_labels(settings: Settings, root: Path) -> Settings:
    """Returns settings that read the labels added to the root's latest bundle, if it was made from the same data."""
    bundle, latest = labelled_bundle(root / "latest"), root / "latest" / "dataset"
    if settings.ingest.labels or not (bundle / ADDED).is_dir():
        return settings
    if not _same_data(settings.ingest.model_dump(mode="json"), read_manifest(latest, "dataset").settings):
        return settings
    own = settings.ingest.model_copy(update={"labels": _kept_labels(bundle, root)})
    return settings.model_copy(update={"ingest": own})


def _same_data(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Returns whether two settings of `ingest` name the same data, with the same ids of passages."""
    return all(settings.get(name) == others.get(name) for name in ("dataset", "format", "document_depth"))


def _kept_labels(bundle: Path, root: Path) -> str:
    """Returns a file with the labels added to a bundle, empty if there are none.

    The file is a copy named by its content, because labels may be added while the pipeline runs.
    """
    source = bundle / ADDED / ADDED_LABELS
    content = source.read_bytes() if source.is_file() else b""
    if not content:
        return ""
    copy = root / KEPT_LABELS / f"{hashlib.sha256(content).hexdigest()[:20]}.jsonl"
    if not copy.is_file():
        copy.parent.mkdir(exist_ok=True)
        fresh = copy.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(content)
        fresh.replace(copy)
    return str(copy)


def _check_nodes(settings: Settings) -> None:
    """Raises UserError for a training on several nodes: kfp.local runs the tasks of a loop one after the other."""
    for step in ON_NODES:
        if (nodes := getattr(settings, step).nodes) > 1:
            raise UserError(
                f"{step}.nodes = {nodes}: nodes are pods of a cluster; on this machine set {step}.processes instead"
            )


def check_heads(settings: Settings) -> None:
    """Checks the number of heads before the first step; otherwise `train_gnn` would fail hours later."""
    width, heads = backbone_width(settings.train_dual_encoder.backbone), settings.train_gnn.heads
    if width and width % heads:
        raise UserError(f"train_gnn.heads = {heads}: must divide the backbone's width {width}")


def dataset_override(dataset: str | None) -> list[str]:
    """Returns `--dataset` as an override of the settings."""
    return path_override("ingest.dataset", dataset)


def path_override(key: str, value: str | None) -> list[str]:
    """Returns an option's value as an override of the settings; an existing path becomes absolute."""
    if value is None:
        return []
    path = expanded(value)
    # YAML's escapes, because JSON writes an emoji as two surrogates.
    quoted = yaml.safe_dump(str(path.resolve()) if path.exists() else value, default_style='"', width=math.inf)
    return [f"{key}={quoted}"]


def dated(title: str) -> str:
    """Returns the name of a run: title and time."""
    return f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"


def _writable(root: Path) -> Path:
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".lock").touch()
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror}; give another --root") from None
    return root


def _params(settings: Settings, steps: Iterable[str]) -> dict[str, Any]:
    """Returns all settings of the steps, with names `step.setting`."""
    values = settings.model_dump(mode="json")
    return {f"{step}.{name}": value for step in steps for name, value in values[step].items()}


def _with_latest(root: Path, outcome: Outcome) -> Outcome:
    """Links `latest/bundle` and the others to the outputs of a finished run; returns the outcome.

    `latest/bundle` is the chosen bundle, and `latest/bundles/` has the bundle of each system that the run made.
    """
    if outcome.status != "FINISHED":
        return outcome
    outputs, made = outcome.outputs, {}
    for name, path in outputs.items():
        if name.rpartition("/")[2] == BUNDLE and read_manifest(path).rows:  # without rows: not asked for
            made[place_of(Bundle.read(path).system)] = path
    outputs |= made | {BUNDLE: outputs[CHOSEN]}
    outputs["graph"] = outputs.get("chosen_graph", outputs["graph"])  # an update keeps the graph's shape
    if trained := outputs.get(f"train_dual_encoder: {CONVERGED}/dual_encoder"):
        if read_manifest(trained).files:
            outputs[CONVERGED_MODEL] = trained
        else:
            (root / "latest" / CONVERGED_MODEL).unlink(missing_ok=True)
    labels = _labels_to_keep(root, outcome)
    # A bundle of an earlier run would be of other models.
    for link in (root / "latest" / BUNDLES).glob("*"):
        if link.is_symlink() and f"{BUNDLES}/{link.name}" not in made:
            link.unlink()
    for name in [name for name in (*KEPT, CONVERGED_MODEL, *made) if name in outputs]:
        outputs[name] = _linked(root, name, outputs[name])
    if labels is not None:
        _keep_labels(root, labels)
    return outcome


def _linked(root: Path, name: str, target: Path) -> Path:
    """Makes `latest/NAME` a link to a folder; returns the link."""
    link = root / "latest" / name
    fresh = link.with_name(f".{link.name}")
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    return fresh.replace(link)


def _labels_to_keep(root: Path, outcome: Outcome) -> list[AddedLabel] | None:
    """Returns the labels for the new bundle, if some were added to the latest or removed while the pipeline ran."""
    latest, made = root / "latest", read_manifest(outcome.outputs["dataset"], "dataset").settings
    if not (latest / "dataset").exists() or not _same_data(made, read_manifest(latest / "dataset", "dataset").settings):
        return None
    given = Path(made["labels"]) if made.get("labels") else None
    if given and given.parent != root / KEPT_LABELS:
        return None  # the user named another file
    before = read_labels(given) if given else []
    new = outcome.outputs[place_of(GNN_ENCODER)]
    added = [Bundle.read(bundle).added for bundle in (labelled_bundle(latest), new)]
    now, read = (each.labels if each else [] for each in added)
    if now == before:
        return None
    return [label for label in read if label in now] + [label for label in now if label not in before]


def _keep_labels(root: Path, labels: Sequence[AddedLabel]) -> None:
    from gnn_encoder.labels.adding import replace_labels  # imports torch

    try:
        replace_labels(labelled_bundle(root / "latest"), labels)
    except UserError as error:
        print(f"labels added before: {error}", file=sys.stderr)
