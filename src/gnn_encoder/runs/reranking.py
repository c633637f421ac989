"""`gnn-encoder rerank` on this machine: check settings, run the pipeline, link the bundle with the best re-ranker."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gnn_encoder.artifacts.finished_run import BUNDLE
from gnn_encoder.runs import launch
from gnn_encoder.runs.latest import linked
from gnn_encoder.runs.local_run import Outcome, run_pipeline
from gnn_encoder.runs.pipelines import check_nodes, dataset_override, dated, params_of, path_override, writable
from gnn_encoder.runs.provenance import call_arguments
from gnn_encoder.runs.supervision import Show
from gnn_encoder.settings.calls import calls, with_needs
from gnn_encoder.settings.pipeline import ON_NODES, PIPELINES, SHARDED, Call, Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.reranking_calls import reranking_calls, reranking_loops, studied_systems
from gnn_encoder.settings.reranking_systems import system_names
from gnn_encoder.settings.tasks import by_parameter
from gnn_encoder.storage import local_folder


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
    check_nodes(every_reranking_call(settings, names, study).values())
    root = writable(root)
    bundle = settings.first_stage.bundle
    arguments = reranking_arguments(settings, names, study)
    arguments["bundle"] = str(local_folder(bundle, indexed=False).resolve()) if bundle else ""
    params = {"preset": preset, "systems": ",".join(names), **params_of(settings, (*PIPELINES["rerank"], "evaluate"))}
    name = dated(f"{study or 'rerank'}-{Path(preset).stem}")
    outcome = run_pipeline(launch.pipeline_file("rerank"), arguments, root, name, params, show)
    if outcome.status == "FINISHED" and BUNDLE in outcome.outputs:
        outcome.outputs[BUNDLE] = linked(root, BUNDLE, outcome.outputs[BUNDLE])
    return outcome


def reranking_settings(preset: str, dataset: str | None, overrides: Iterable[str], first_stage: str | None) -> Settings:
    """Returns the settings of a re-ranking pipeline."""
    given = [*dataset_override(dataset), *path_override("first_stage.source", first_stage)]
    return load_settings(preset, [*overrides, *given])


def every_reranking_call(settings: Settings, systems: Sequence[str], study: str = "") -> dict[str, Call]:
    """Returns `reranking_calls` with the calls of the steps before."""
    before = ("ingest", "index_bm25", "bm25_retrieve", "first_stage")
    return with_needs(calls(settings, before) | reranking_calls(settings, systems, study))


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
    shared = (*SHARDED, *ON_NODES)
    once = {name: call for name, call in made.items() if "." not in name or name.partition(".")[0] in shared}
    return {**by_parameter(once), **loops, "bundle": settings.first_stage.bundle}
