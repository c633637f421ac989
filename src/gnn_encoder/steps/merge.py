"""Joins the outputs of the tasks that shared a step's work.

The merged artifact refers to its parts, without a copy. Only hits are written again: a query's best hits may be in any
part of a first stage, and hits are small. The figures of the whole are computed again from the merged tables, and the
history gets one record of the step in place of its tasks' records.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Dataset, Draft, GeneratedQueries, PairScores, Run
from gnn_encoder.artifacts.folder import Artifact, read_manifest
from gnn_encoder.artifacts.history import History, Record, read_history
from gnn_encoder.artifacts.parts import share_parts
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import OF_INPUT, Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.task_figures import (
    UNITS,
    encoding_figures,
    hit_figures,
    pair_figures,
    query_figures,
    reranking_figures,
)
from gnn_encoder.report.study import first_words_of
from gnn_encoder.retrieval.first_stage import join_runs
from gnn_encoder.settings.shared import Merge


@dataclass(frozen=True)
class Part(Artifact):
    """The output of one task."""

    history: History

    @property
    def number(self) -> int:
        """The task's number, from 0."""
        return int(self.manifest.settings["shard"])

    @property
    def title(self) -> str:
        """The title of the task's record; empty if the history was deleted."""
        return next(reversed(self.history), "")

    @property
    def origin(self) -> dict[str, Any]:
        """What all parts of a whole have in common."""
        settings = {name: value for name, value in self.manifest.settings.items() if name != "shard"}
        code = self.history[self.title].code_digest if self.title else ""
        facts = {"schema": self.manifest.schema, "step": self.manifest.step, "settings": settings}
        return {**facts, "inputs": self.manifest.inputs, "code": code}


@step(merged=OF_INPUT)
def merge(context: Context, settings: Merge, parts: list[Path], dataset: Path, merged: Draft) -> Metrics:
    """Joins all parts, in the order of their numbers."""
    ordered = complete([Part(path, read_manifest(path), read_history(path)) for path in parts])
    if merged.manifest.schema == "run":
        write_joined(Dataset(dataset), ordered, merged)
    else:
        share_parts(merged, ordered)
    figures = figures_of(context, Dataset(dataset), merged, ordered)
    first, metrics = ordered[0], [part.manifest.metrics for part in ordered]
    spent = {
        "seconds": sum(of_task["seconds"] for of_task in metrics),  # of all tasks together, which may run side by side
        "peak_memory_gib": max(of_task["peak_memory_gib"] for of_task in metrics),
    }
    for part in ordered:
        context.history.pop(part.title, None)
    whole = Record(first.manifest.settings, first.manifest.inputs, {**figures, **spent}, first.origin["code"])
    context.history[first.manifest.step] = whole
    return {**figures, "parts": len(ordered)}


def complete(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts in order; a UserError if they are not the complete set of one step's outputs."""
    first = parts[0].origin
    for part in parts:
        if differing := [name for name, value in part.origin.items() if value != first[name]]:
            raise UserError(
                f"{part.path} and {parts[0].path} are not parts of one output: they differ in {', '.join(differing)}; "
                "run the pipeline again"
            )
    count, numbers = first["settings"]["shards"], sorted(part.number for part in parts)
    if numbers != list(range(count)):
        present = ", ".join(str(number + 1) for number in numbers)
        raise UserError(f"{first['step']} has {count} parts, and merge was given {present}: run the pipeline again")
    return sorted(parts, key=lambda part: part.number)


def write_joined(data: Dataset, parts: Sequence[Part], merged: Draft) -> None:
    """Writes the run of all parts' hits, as one task writes it."""
    paths, settings = [part.path for part in parts], parts[0].manifest.settings
    if parts[0].manifest.step == "rerank":  # its tasks divide the queries
        run = Run.concatenate([Run.read(path) for path in paths])
    else:
        run = join_runs(data, paths, **{name: settings[name] for name in ("train_depth", "eval_depth")})
    system = System.of(parts[0].path)
    run.write(merged, system.name, **system.facts)


def figures_of(context: Context, data: Dataset, merged: Draft, parts: Sequence[Part]) -> Metrics:
    """Returns the figures of the merged tables; the rate is the mean rate of a task."""
    schema, step_name = merged.manifest.schema, parts[0].manifest.step
    unit = UNITS[step_name]
    rates, counts = ([part.manifest.metrics[key] for part in parts] for key in (f"{unit}_per_second", unit))
    taken = sum(count / rate for count, rate in zip(counts, rates, strict=True) if rate)
    rate = sum(counts) / taken if taken else 0.0
    if step_name == "rerank":
        return reranking_figures(sum(part.manifest.metrics["queries"] for part in parts), sum(counts), rate)
    if schema == "run":
        return hit_figures(step_name, data, Run.in_folder(merged.path), sum(counts), rate)
    if schema in ("encoding", "vectors"):
        passages = merged.manifest.rows["passages" if schema == "encoding" else "vectors"]
        return encoding_figures(passages, sum(counts), rate)
    if schema == "pair_scores":
        return pair_figures(data, PairScores.in_folder(merged.path), rate)
    generated = GeneratedQueries.in_folder(merged.path)
    context.log.text(first_words_of(data, generated), "generated_queries/first_words.md")
    return query_figures(generated, rate)
