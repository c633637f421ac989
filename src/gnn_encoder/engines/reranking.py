"""`gnn-encoder rerank` on this machine: check settings, run the pipeline, link the bundle with the best re-ranker."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import BUNDLE
from gnn_encoder.engines.latest import added_labels, with_reranker, without_forgotten
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.pipelines import check_nodes, dataset_override, params_of, path_override, run_graph
from gnn_encoder.engines.supervision import Show
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.pipelines.rerank import rerank as rerank_graph
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.reranking_systems import system_names
from gnn_encoder.storage import local_folder


def rerank(title: str, preset: str, settings: Settings, graph: Graph, root: Path, show: Show) -> Outcome:
    """Runs the re-ranking pipeline that `reranking` returned; `title`: of the run, beside the preset.

    If the first stage is a bundle, `latest/bundle` is then that bundle with the best re-ranker, which is registered and
    promoted if it passes the gate. The other links stay.
    """
    names = ",".join(settings.compare_rerankers.systems)
    without = {"promote"} - {node.step for node in graph.nodes}  # only a bundle is promoted
    steps = [step for step in PIPELINES["rerank"] if step not in without]
    params = {"preset": preset, "systems": names, **params_of(settings, steps)}
    root, source = root.resolve(), settings.first_stage.bundle
    latest, labels = root / "latest" / BUNDLE, None
    if source and latest.exists() and Path(source).resolve() == latest.resolve():
        labels = added_labels(Bundle.read(latest))
    outcome = run_graph(graph, root, f"{title}-{Path(preset).stem}", params, show)
    return with_reranker(root, labels, outcome)


def reranking(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    systems: Sequence[str],
    first_stage: str | None,
    root: Path,
    study: str = "",
) -> tuple[Settings, Graph]:
    """Returns the settings and the graph for some systems; the last one is the one in the headline.

    With `study`, they are for the systems of one of `RERANKING_STUDIES`, and report the study.
    """
    settings = without_forgotten(reranking_settings(preset, dataset, overrides, first_stage), root)
    names = settings.train_reranker.studied(study) if study else system_names(systems)
    settings = settings.model_copy(
        update={"compare_rerankers": settings.compare_rerankers.model_copy(update={"systems": tuple(names)})}
    )
    bundle = settings.first_stage.bundle
    first_stage_bundle = Given(str(local_folder(bundle, indexed=False).resolve())) if bundle else None
    graph = rerank_graph(settings, names, study, first_stage_bundle)
    check_nodes(graph)
    return settings, graph


def reranking_settings(preset: str, dataset: str | None, overrides: Iterable[str], first_stage: str | None) -> Settings:
    """Returns the settings of a re-ranking pipeline."""
    options = [*dataset_override(dataset), *path_override("first_stage.source", first_stage)]
    return load_settings(preset, [*overrides, *options])
