"""`run` and `compare`: the ladder of the command line, on texts in memory."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Report
from gnn_encoder.cli.console import Lines, following
from gnn_encoder.cli.options import DEFAULT_ROOT, VARIABLE, given_root
from gnn_encoder.engines.climbing import climbing
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.pipelines import encoder_overrides, override, writable
from gnn_encoder.errors import UserError
from gnn_encoder.notebook.comparison import Comparison
from gnn_encoder.notebook.texts import Labels, Passages, Queries, have_ids, write_texts
from gnn_encoder.planning import AUTO
from gnn_encoder.planning.budget import climb_seconds
from gnn_encoder.report.page import verdict
from gnn_encoder.serving.retriever import Retriever

TEXTS = "texts"
"""Folder under the root with the texts that runs were given."""


@dataclass(frozen=True)
class Result:
    """What a run recommends. A notebook displays its table and the report's first picture."""

    retriever: Retriever
    """The recommended retriever, open."""
    table: Comparison
    """All systems, the best first."""
    report: Path
    """The report's page."""

    def __str__(self) -> str:
        """Returns what to use, and where the bundle and the report are."""
        sentence = verdict(self.table.metrics)["sentence"]
        return f"{sentence}\nbundle     {self.retriever.bundle.path}\nreport     {self.report}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def run(
    corpus: Passages | str | Path,
    queries: Queries | None = None,
    qrels: Labels | None = None,
    *,
    test: Labels | None = None,
    budget: str | None = None,
    until: str | None = None,
    encoder: str | Path | Sequence[str | Path] = (),
    root: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Result:
    """Finds the best retriever of a time, as `gnn-encoder run` without a preset does, and opens it.

    The table of each rung is printed when the rung is reached.

    Args:
        corpus: the passages, {id: text}, {id: {"title": …, "text": …}}, or a list of texts, whose ids are their
            positions from 0. Or a path or URI of data, as of --dataset; then there are no queries and labels.
        queries: {id: text}, or a list of texts, whose ids are their positions.
        qrels: {query: {passage: relevance}} or {query: [relevant passages]}. Shares of the queries are set apart, to
            choose and to test.
        test: labels of test queries; then only dev queries are set apart.
        budget: time after which the run ends, such as 5m or 2h; by default 30m, with `until` none.
        until: the last rung: words, as-it-is, labels (what trains nothing), training, re-ranking.
        encoder: a published model's name, a folder, or an address; several: the best on dev is chosen.
        root: folder of runs; by default $GNN_ENCODER_ROOT, or gnn-encoder-runs.
        settings: {"STEP.NAME": value}, as of --set.

    Raises:
        UserError: the texts, labels or settings are not usable, as the text of the error says in one line.
    """
    began = time.time()
    outcome = _climbed(
        corpus, queries, qrels, test, budget, until, encoder, root, settings,
        lambda screen, rung: screen.table(rung, time.time() - began),
    )  # fmt: skip
    report = Report.read(outcome.outputs["report"].resolve())
    return Result(Retriever.load(outcome.outputs["bundle"]), Comparison.of(report), report.page)


def compare(
    corpus: Passages | str | Path,
    queries: Queries | None = None,
    qrels: Labels | None = None,
    *,
    test: Labels | None = None,
    budget: str | None = None,
    until: str = "labels",
    encoder: str | Path | Sequence[str | Path] = (),
    root: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Comparison:
    """Returns the table of the systems up to a rung, by default of all that train nothing.

    Arguments and errors are those of `run`.
    """
    outcome = _climbed(corpus, queries, qrels, test, budget, until, encoder, root, settings, lambda screen, rung: None)
    return Comparison.of(Report.read(outcome.outputs["report"].resolve()))


def _climbed(
    corpus: Passages | str | Path,
    queries: Queries | None,
    qrels: Labels | None,
    test: Labels | None,
    budget: str | None,
    until: str | None,
    encoder: str | Path | Sequence[str | Path],
    root: str | Path | None,
    settings: Mapping[str, Any] | None,
    reached: Callable[[Lines, Outcome], None],
) -> Outcome:
    """Climbs the ladder as the command line does; `reached` gets the screen and the outcome after each rung."""
    began, folder = time.time(), given_root(root or os.environ.get(VARIABLE) or DEFAULT_ROOT)
    seconds = climb_seconds(budget and str(budget), until)
    changes = encoder_overrides([str(one) for one in ([encoder] if isinstance(encoder, str | Path) else encoder)])
    if isinstance(corpus, str | Path):
        if any(part is not None for part in (queries, qrels, test)):
            raise UserError(f"{corpus} has its own queries and labels: leave out queries, qrels and test")
        dataset = str(corpus)
    else:
        dataset = str(write_texts(writable(folder) / TEXTS, corpus, queries, {"train": qrels, "test": test}))
        if not (have_ids(corpus) and (queries is None or have_ids(queries))):
            changes.append("ingest.ignore_identical_ids=false")  # positions are equal by chance
    changes += [override(key, value) for key, value in (settings or {}).items()]
    with following() as screen:
        climb = climbing(AUTO, dataset, changes, folder, until, seconds, screen.plan)
        screen.stages.planned = climb.planned
        outcome = climb.run(screen.show, lambda rung: reached(screen, rung), began + seconds)
    if outcome.status == "KILLED":
        raise KeyboardInterrupt
    if outcome.status != "FINISHED":
        message = f"{outcome.failed_step}: {outcome.message}; log: {outcome.log}"
        raise UserError(message) if outcome.user_error else RuntimeError(message)
    return outcome
