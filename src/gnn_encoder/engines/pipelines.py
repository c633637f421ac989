"""`gnn-encoder run`, `update`, `ablate` on this machine: check settings, run a pipeline, link its outputs."""

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import BUNDLE, graph_bundle, labelled_bundle, place_of
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.engines.climbed import serves_untrained, settings_of
from gnn_encoder.engines.containers import IMAGE, Containers, check_engine
from gnn_encoder.engines.latest import MODELS, kept_labels, with_added_labels, with_latest, without_forgotten
from gnn_encoder.engines.local import calls_of
from gnn_encoder.engines.local_run import Outcome, run_calls
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.engines.supervision import Show
from gnn_encoder.errors import UserError, expanded
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.models.backbone_files import vector_width
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update as update_graph
from gnn_encoder.promotion.registry import Registry, open_registry
from gnn_encoder.settings.labels import settings_of_use
from gnn_encoder.settings.pipeline import FOUNDATION, PIPELINES, Settings
from gnn_encoder.settings.presets import load_settings, parse_settings, settable
from gnn_encoder.settings.shared import Inference, is_address
from gnn_encoder.settings.studies import variants
from gnn_encoder.settings.systems import fusion_systems, label_systems, systems_with_models
from gnn_encoder.settings.written import NO_FOLDERS
from gnn_encoder.tracking.pipeline_run import existing_store, tracking_uri

PROCESSES, CONTAINERS = RUNNERS = ("subprocess", "docker")
"""On this machine a step is a process or a container."""


@dataclass(frozen=True)
class LocalJob:
    """A pipeline that registers a model, with checked settings, in a root."""

    preset: str
    settings: Settings
    graph: Graph
    root: Path

    def models(self) -> Registry:
        """Returns the model's registry; a UserError if the store is not usable, `Missing` if nothing has run yet."""
        return open_registry(existing_store(self.root), self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, StepArguments]:
        """Returns the arguments of the calls; a UserError if the data source or the backbone does not exist.

        `registry` is a text about the registered versions. If the text changes, `promote` decides again.
        """
        uri = tracking_uri(self.root)
        return graph_arguments(self.graph, registry=f"{uri} {registry}".strip())


@dataclass(frozen=True)
class Training(LocalJob):
    """A training pipeline."""

    def run(
        self,
        show: Show,
        arguments: Mapping[str, StepArguments] | None = None,
        runner: str = PROCESSES,
        memory: str = "",
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
        check_models(self.graph.nodes)
        check_heads(self.settings)
        if runner not in RUNNERS:
            raise UserError(f"no runner {runner!r}: choose one of {', '.join(RUNNERS)}")
        if memory and runner != CONTAINERS:
            raise UserError(f"--memory limits containers: add --runner {CONTAINERS}")
        containers = None
        if runner == CONTAINERS:
            check_engine(IMAGE)
            values = (str(v) for step in PIPELINES["train"] for v in getattr(self.settings, step).model_dump().values())
            read = {value for value in values if value.startswith("/") and Path(value).exists()}
            containers = Containers(str(self.root), tuple(read), memory)
        params = {"preset": self.preset, **params_of(self.settings, PIPELINES["train"])}
        calls, name = calls_of(self.graph, arguments), dated(Path(self.preset).stem)
        outcome = run_calls(calls, self.root, name, params, show, containers)
        return with_latest(self.root, outcome)


def training(preset: str, dataset: str | None, overrides: Iterable[str], root: Path, writes: bool = True) -> Training:
    """Returns the training pipeline of a preset; a UserError if the settings or the root are not usable.

    Only if it `writes`, the root exists then.
    """
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    check_nodes(train(settings))
    root = writable(root) if writes else root.resolve()
    settings = with_added_labels(settings, root, writes)
    return Training(preset, settings, train(settings), root)


def _label_settings(since: Path) -> dict[str, Any]:
    """Returns settings of `encode_with_labels` that make a finished run's bundles again, with the chosen use of labels.

    Without bundles of the run's dual encoder, the settings ask for none.
    """
    model, chosen = read_manifest(since / "dual_encoder").digest, {"kinds": []}  # type: ignore[var-annotated]
    for kind, system in label_systems().items():
        folder = since / place_of(system)
        if not folder.is_dir() or (bundle := Bundle.read(folder)).manifest.inputs.get("dual_encoder") != model:
            continue
        chosen["kinds"].append(kind)
        chosen |= {name: bundle.manifest.settings[name] for name in Inference.model_fields}
        if bundle.label_use:
            chosen |= settings_of_use(kind, asdict(bundle.label_use))
    return chosen


def _fusion_settings(since: Path) -> dict[str, Any]:
    """Returns settings of `make_parts` and `fuse_parts` that make a finished run's bundles again, with new examples."""
    model, tree = read_manifest(since / "dual_encoder").digest, {"fuse_parts": {"kinds": []}}  # type: ignore[var-annotated]
    for kind, system in fusion_systems().items():
        folder = since / place_of(system)
        if folder.is_dir() and (bundle := Bundle.read(folder)).manifest.inputs.get("dual_encoder") == model:
            kinds = [*tree["fuse_parts"]["kinds"], kind]
            known = {name: bundle.manifest.settings[name] for name in settable("fuse_parts")}
            of_parts = read_history(folder)["make_parts"].settings
            parts = {name: of_parts[name] for name in settable("make_parts") if name in of_parts}
            tree = {"fuse_parts": {**known, "kinds": kinds}, "make_parts": parts}
    return tree


def _data_settings(dataset: Path) -> dict[str, dict[str, Any]]:
    """Returns the settings of the steps that make a run's dataset again; without a history it has those of `ingest`."""
    history, settings_of = read_history(dataset), {"ingest": read_manifest(dataset).settings}
    settings_of |= {step: history[step].settings for step in ("write_queries", "select_queries") if step in history}
    return {
        step: {name: values[name] for name in settable(step) if name in values} for step, values in settings_of.items()
    }


def _bm25_settings(bundle: Bundle) -> dict[str, Any]:
    """Returns settings of `index_bm25` that make a bundle's BM25 index again, or the run's if the bundle has none."""
    from gnn_encoder.retrieval.bm25 import kind_of  # imports bm25s

    settings = read_history(bundle.path).get("index_bm25", Record()).settings
    if bundle.bm25_path and settings.get("language") != "auto":  # with `auto` the language is looked for again
        return kind_of(bundle.bm25_path).model_dump()
    return settings


def update(since: Path, dataset: str | None, overrides: Iterable[str], root: Path, show: Show) -> Outcome:
    """Runs the update pipeline on a dataset, with the models and settings of the finished run in folder `since`."""
    settings, graph = updating(since, dataset, overrides, root)
    params = {"from": str(expanded(since).resolve()), **params_of(settings, PIPELINES["update"])}
    return with_latest(root.resolve(), run_graph(graph, root, "update", params, show))


def updating(
    since: Path, dataset: str | None, overrides: Iterable[str], root: Path, writes: bool = True
) -> tuple[Settings, Graph]:
    """Returns the settings and the graph of `update`; the root exists then only if it `writes`."""
    overrides, steps = list(overrides), PIPELINES["update"]
    for override in overrides:
        if override.partition(".")[0] not in steps:
            raise UserError(f"--set {override}: an update runs {', '.join(steps)} alone")
    since = expanded(since).resolve()
    if not since.is_dir():
        raise UserError(f"no finished run at {since}: use gnn-encoder run first, or name the run's folder with --from")
    models = {name: Given(str((since / name).resolve())) for name in MODELS}
    for model in models.values():
        read_manifest(model.address, "model")
    artifacts = {"build_graph": since / "graph", "encode_corpus": graph_bundle(since)}
    tree = {step: read_manifest(artifact).settings for step, artifact in artifacts.items()} | {"choose_bundle": {}}
    tree |= _data_settings(since / "dataset")
    tree["index_bm25"] = _bm25_settings(Bundle.read(artifacts["encode_corpus"]))
    for step in ("build_graph", "encode_corpus", "choose_bundle"):
        tree[step]["previous"] = str(since)
    tree["encode_with_labels"] = _label_settings(since)
    tree |= _fusion_settings(since)
    served = Bundle.read(since / BUNDLE).system
    for row in systems_with_models():
        if row.name == served if row.bundled_last else (since / row.model).exists():
            models[row.model] = Given(str((since / row.model).resolve()))
            read_manifest(models[row.model].address, "model")
    root = writable(root) if writes else root.resolve()
    tree["ingest"]["labels"] = kept_labels(labelled_bundle(since), root, writes)
    settings = parse_settings(tree, [*overrides, *dataset_override(dataset)], source=str(since))
    settings = without_forgotten(settings, root)
    below = parse_settings(settings_of(since), overrides, source=str(since)) if serves_untrained(since) else None
    return settings, update_graph(settings, models, below)


def ablate(preset: str, seeds: int, settings: Settings, graph: Graph, root: Path, show: Show) -> Outcome:
    """Runs the ablation pipeline that `ablating` returned."""
    params = {"preset": preset, "seeds": seeds, **params_of(settings, FOUNDATION)}
    return run_graph(graph, root, f"ablation-{Path(preset).stem}", params, show)


def run_graph(graph: Graph, root: Path, title: str, params: Mapping[str, Any], show: Show) -> Outcome:
    """Checks the models of a graph, and runs it; the root, in which it may register a bundle, exists then."""
    root = writable(root)
    check_models(graph.nodes)
    return run_calls(calls_of(graph, graph_arguments(graph, tracking_uri(root))), root, dated(title), params, show)


def ablating(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    studies: Iterable[str],
    user_variants: Iterable[str],
    seeds: int,
    root: Path,
) -> tuple[Settings, Graph]:
    """Returns the settings and the graph for variants of `studies` and `user_variants`, each with `seeds` seeds."""
    settings = without_forgotten(load_settings(preset, [*overrides, *dataset_override(dataset)]), root)
    graph = ablation(settings, variants(settings, studies, user_variants), seeds)
    check_nodes(graph)
    return settings, graph


def check_nodes(graph: Graph) -> None:
    """Raises UserError for a training on several nodes: this is one machine."""
    for node in graph.nodes:
        if (count := getattr(node.settings, "nodes", 1)) > 1:
            raise UserError(
                f"{node.step}.nodes = {count}: nodes are pods of a cluster; on this machine set {node.step}.processes "
                "instead"
            )


def check_heads(settings: Settings) -> None:
    """Checks the number of heads before the first step; otherwise `train_gnn` would fail hours later."""
    heads, encode, training = settings.train_gnn.heads, settings.encode, settings.train_dual_encoder
    for name in (training.backbone, *(() if encode.elsewhere else encode.others)):
        if (width := vector_width(name, training.truncate_dimension)) and width % heads:
            raise UserError(f"train_gnn.heads = {heads}: must divide the width {width} of the backbone's vectors")


def dataset_override(dataset: str | None) -> list[str]:
    """Returns `--dataset` as an override of the settings."""
    return path_override("ingest.dataset", dataset)


def path_override(key: str, value: str | list[str] | None, words: Collection[str] = ()) -> list[str]:
    """Returns an option's value, or its values, as an override of the settings; an existing path becomes absolute.

    One of the `words` is no path, even if there is one of that name: `./titles` is the folder.
    """
    if value is None:
        return []
    if "" in ([value] if isinstance(value, str) else value):
        raise UserError(f"the value of {key} is empty: name something, or leave the option out")
    paths = [(one, expanded(one)) for one in ([value] if isinstance(value, str) else value)]
    names = [str(path.resolve()) if path.exists() and one not in words else one for one, path in paths]
    return [override(key, names[0] if isinstance(value, str) else names)]


def override(key: str, value: Any) -> str:
    """Returns a value as an override of the settings; a UserError for a value that YAML cannot write."""
    # YAML's escapes, because JSON writes an emoji as two surrogates.
    shown: dict[str, Any] = {"default_style": '"', "default_flow_style": True, "width": math.inf}
    try:
        return f"{key}={yaml.safe_dump(value, **shown)}"
    except yaml.YAMLError:
        raise UserError(f"{key} is a {type(value).__name__}: give a text, a number, a list or a dict") from None


def encoder_overrides(encoders: Sequence[str], vectors: Path | None = None) -> list[str]:
    """Returns encoders and given vectors of a run without a preset as overrides; a training starts from the first."""
    changes = [] if vectors is None else path_override("encode.vectors", str(vectors))
    if not encoders:
        return [*changes, "encode.encoder=''"] if changes else []
    first, *others = encoders
    changes += path_override("encode.encoder", first, NO_FOLDERS)
    changes += [] if is_address(first) else path_override("shared.backbone", first, NO_FOLDERS)
    return changes + (path_override("encode.others", others, NO_FOLDERS) if others else [])


def dated(title: str) -> str:
    """Returns the name of a run: title and time."""
    return f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"


def writable(root: Path) -> Path:
    """Returns the absolute path of a root, which exists then; a UserError if it is not writable."""
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".lock").touch()
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror}; give another --root") from None
    return root


def params_of(settings: Settings, steps: Iterable[str]) -> dict[str, Any]:
    """Returns all settings of the steps, with names `step.setting`."""
    values = settings.model_dump(mode="json")
    return {f"{step}.{name}": value for step in steps for name, value in values[step].items()}
