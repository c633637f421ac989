"""The commands that run a pipeline on this machine: `run`, `update`, `ablate`, `rerank`; and `presets`."""

import difflib
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.cli.graphs import show_graph
from gnn_encoder.cli.options import (
    DEFAULT_ROOT,
    Budget,
    Data,
    DryRun,
    Encoders,
    FirstStage,
    Log,
    Mermaid,
    Overrides,
    Preset,
    Root,
    Systems,
    Until,
    Vectors,
    Verbose,
    named_systems,
)  # fmt: skip
from gnn_encoder.errors import UserError


def run(
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(help="Name of a preset (`gnn-encoder presets`), your own YAML file, or auto.")
    ] = "auto",
    dataset: Data = None,
    documents: Annotated[
        Path | None,
        typer.Option(help="Folder of Markdown, HTML, text, PDF, DOCX, PPTX and EPUB files, in the place of --dataset."),
    ] = None,
    generator: Annotated[
        str | None,
        typer.Option(
            help="What writes queries for data that have none or few: titles (headings and sentences, without a "
            "model; the default for --documents without queries), the address of a chat service in OpenAI's form, "
            "http://…/v1#MODEL, smollm2, or a model's folder."
        ),
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Text file with queries of real people, one a line, for the generator's manner.")
    ] = None,
    max_calls: Annotated[int | None, typer.Option(help="Most calls of the generator.", min=1)] = None,
    encoder: Encoders = None,
    vectors: Vectors = None,
    log: Log = None,
    budget: Budget = None,
    until: Until = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
    runner: Annotated[str, typer.Option(help="subprocess, or docker for containers (make images).")] = "subprocess",
    memory: Annotated[str, typer.Option(help="Memory limit of a container, such as 6g; by default none.")] = "",
    verbose: Verbose = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events for programs, a JSON object a line, and nothing else.")
    ] = False,
    dry_run: DryRun = False,
    mermaid: Mermaid = False,
) -> None:
    """Find the best retriever for your data within a time budget, or run a preset's training.

    Without a preset, the run climbs: words, an encoder as it is, what labels give it, training, re-ranking. Each rung
    ends with a table, a report and a bundle in ROOT/latest, and the run ends with its budget. --dry-run keeps the plan,
    for the run.

    Finished steps are reused; an interrupted step resumes at its last checkpoint.
    """
    from gnn_encoder.cli.console import follow, following
    from gnn_encoder.cli.endings import climbs_on, show_results
    from gnn_encoder.data import open_source
    from gnn_encoder.engines import climbing, pipelines
    from gnn_encoder.planning import AUTO
    from gnn_encoder.planning.budget import DEFAULT, budget_seconds, climb_seconds
    from gnn_encoder.settings.foundation import Ingest
    from gnn_encoder.settings.written import NO_FOLDERS, TITLES

    began, changes, only_shows = time.time(), overrides or [], dry_run or mermaid
    if as_json and only_shows:
        raise UserError("--json prints the events of a run, and --dry-run and --mermaid start none: leave one out")
    screen = context.with_resource(following(verbose, as_json))
    if documents is not None:
        if dataset is not None:
            raise UserError("--documents and --dataset both name the data: give one of them")
        dataset, changes = str(documents), ["ingest.format=documents", "ingest.copy_similarity=0.9", *changes]
        if preset == AUTO and not (log or open_source(Ingest(dataset=dataset, format="documents")).has_queries):
            changes = [f"write_queries.generator={TITLES}", *changes]
    if generator is not None:
        is_known = generator in NO_FOLDERS or Path(generator).exists()
        if not is_known and difflib.get_close_matches(generator, [TITLES], cutoff=0.7):
            raise UserError(f"no generator {generator!r}: did you mean {TITLES!r}?")
        changes = [*changes, *pipelines.path_override("write_queries.generator", generator, NO_FOLDERS)]
    if examples is not None:
        changes = [*changes, *pipelines.path_override("write_queries.examples", str(examples))]
    if max_calls is not None:
        changes = [*changes, f"write_queries.max_calls={max_calls}"]
    if log is not None:
        changes = [*changes, *pipelines.path_override("ingest.log", str(log))]
    if not climbing.climbs(preset, until, budget=budget, encoder=encoder, vectors=vectors):
        training = pipelines.training(preset, dataset, changes, root, writes=not only_shows)
        if only_shows:
            show_graph(training.graph, training.root, mermaid)
            return
        show_results(screen, root, follow(screen, partial(training.run, runner=runner, memory=memory)))
        return
    if runner != "subprocess" or memory:
        raise UserError("a run without --preset, or with --until, has processes as steps: no --runner and --memory")
    changes, seconds = [*changes, *pipelines.encoder_overrides(encoder or [], vectors)], climb_seconds(budget, until)
    climb = climbing.climbing(
        preset, dataset, changes, root, until, seconds,
        partial(screen.plan, aside=mermaid), writes=not only_shows,
    )  # fmt: skip
    if only_shows:
        show_graph(climb.graph, climb.root, mermaid, climb.planned)
        return
    screen.stages.planned = climb.planned
    reached, deadline = (lambda outcome: screen.table(outcome, time.time() - began)), began + seconds
    outcome = follow(screen, partial(climb.run, shown=reached, deadline=deadline))
    longer = budget if budget and seconds > budget_seconds(DEFAULT) else DEFAULT
    missing = climb.missing or (climbs_on(preset, until, outcome.rung, longer) if until else "")
    show_results(screen, root, outcome, missing)


def update(
    dataset: Annotated[str | None, typer.Option(help="Path or URI of the data; by default that of the run.")] = None,
    since: Annotated[Path | None, typer.Option("--from", help="Folder of the earlier run [ROOT/latest].")] = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
    verbose: Verbose = False,
    dry_run: DryRun = False,
    mermaid: Mermaid = False,
) -> None:
    """Encode new and changed passages and queries with the models of an earlier run, and write a new bundle."""
    from gnn_encoder.cli.console import followed
    from gnn_encoder.cli.endings import show_update
    from gnn_encoder.engines import climbing, pipelines

    since, changes, only_shows = since or root / "latest", overrides or [], dry_run or mermaid
    former = (since / "bundle").resolve()  # the update may move the link
    job = partial(pipelines.update, since, dataset, changes, root)
    if climbing.climbs_again(since):
        climb = climbing.climbing_again(since.resolve(), dataset, changes, root, writes=not only_shows)
        graph, root, job = climb.graph, climb.root, partial(climb.run)
    elif only_shows:
        _, graph = pipelines.updating(since, dataset, changes, root, writes=False)
    if only_shows:
        show_graph(graph, root, mermaid)
        return
    show_update(followed(job, verbose), former)


def ablate(
    preset: Preset,
    study: Annotated[
        list[str] | None,
        typer.Option(
            help="parts, gate, neighbors, mask, edges or labels; repeatable; by default all. Or one of re-rankers: "
            "bert_dmn, ss_bert or structure, which have no other variants, modes or seeds."
        ),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: STEP.KEY=VALUE …'", help="Your own variant; repeatable.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="frozen (the default): the encoders stay as they are, takes seconds; joint: the paper's training.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Number of trainings per variant, by default 3.")
    ] = None,
    dataset: Data = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
    verbose: Verbose = False,
    dry_run: DryRun = False,
    mermaid: Mermaid = False,
) -> None:
    """Compare variants of the model, or a paper's re-rankers: the gain of each part, and its significance."""
    from gnn_encoder.cli.console import followed
    from gnn_encoder.cli.endings import show_table
    from gnn_encoder.engines import pipelines, reranking
    from gnn_encoder.report.ablation import ablation_tables
    from gnn_encoder.report.study import study_table
    from gnn_encoder.settings.reranking_systems import RERANKING_STUDIES
    from gnn_encoder.settings.studies import STUDIES

    changes, tables, output = overrides or [], ablation_tables, "report"
    if of_rerankers := [name for name in study or [] if name in RERANKING_STUDIES]:
        if len(study or []) > 1 or variant or mode or seeds:
            raise UserError(
                f"--study {of_rerankers[0]} runs alone, without another study, --variant, --mode or --seeds"
            )
        settings, graph = reranking.reranking(preset, dataset, changes, (), None, root, of_rerankers[0])
        job, tables, output = partial(reranking.rerank, of_rerankers[0], preset), study_table, "study"
    else:
        studies = study or ([] if variant else list(STUDIES))
        changes = [f"try_variant.mode={mode or 'frozen'}", *changes]
        settings, graph = pipelines.ablating(preset, dataset, changes, studies, variant or [], seeds or 3, root)
        job = partial(pipelines.ablate, preset, seeds or 3)
    if dry_run or mermaid:
        show_graph(graph, root, mermaid)
        return
    show_table(tables, followed(partial(job, settings, graph, root), verbose), output)


def rerank(
    preset: Preset,
    systems: Systems = None,
    first_stage: FirstStage = None,
    dataset: Data = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
    verbose: Verbose = False,
    dry_run: DryRun = False,
    mermaid: Mermaid = False,
) -> None:
    """Train re-rankers of a first stage's hits, side by side, and compare them.

    If the first stage is a finished run, its bundle gets the re-ranker that is best on dev, and the gate decides on it.
    The other first stages have no bundle.
    """
    from gnn_encoder.cli.console import followed
    from gnn_encoder.cli.endings import show_table
    from gnn_encoder.engines import reranking
    from gnn_encoder.report.table import run_table

    names = named_systems(systems, preset, overrides or [])
    settings, graph = reranking.reranking(preset, dataset, overrides or [], names, first_stage, root)
    if dry_run or mermaid:
        show_graph(graph, root, mermaid)
        return
    job = partial(reranking.rerank, "rerank", preset, settings, graph, root)
    show_table(run_table, followed(job, verbose))


def presets() -> None:
    """List the presets, each with its dataset."""
    from gnn_encoder.settings.presets import load_settings, preset_names

    for name in preset_names():
        typer.echo(f"{name:<20} {load_settings(name).ingest.dataset or '(--dataset)'}")
