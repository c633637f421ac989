"""Collects measures and first hits of rankings, with one ranking in memory at a time."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Evaluation, Run
from gnn_encoder.artifacts.calibration import FirstHits
from gnn_encoder.artifacts.folder import Draft
from gnn_encoder.evaluation import answers
from gnn_encoder.evaluation.answers import Answers, answer_recall
from gnn_encoder.evaluation.documents import documents_of
from gnn_encoder.evaluation.measures import labelled_queries, measured_by, per_query
from gnn_encoder.evaluation.remarks import data_remarks, hit_remarks
from gnn_encoder.evaluation.results import PerQuery
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.evaluation.trec import write_qrels, write_run, written_ids
from gnn_encoder.settings.measures import STRATA

SPLITS = ("dev", "test")
SHOWN = 10
"""Number of first hits per query that are kept for the report."""
JUDGED = "Judged@10"
"""An additional measure: the share of the first 10 hits that have any label."""


class Collected:
    """Measures and first hits of rankings of the dev and test queries.

    queries     {split: rows of queries with a positive label}, ascending; a split without such queries is absent
    answered    {split: rows of queries with an answer}, likewise
    evaluated   all rows of `queries` and `answered`, ascending: the queries that a ranking must contain
    shown       the split of the report's headline
    measured    all measures: the measures of the table, and `JUDGED`
    documents   the documents of the passages; None: the data have none
    strata      {split: the warm and cold queries and labels}
    hits        {system: [n, SHOWN]} passages of the shown split's queries
    dev_first    {system: first hits of the dev queries}, without dev queries none
    without_hits {split: {system: number of the labelled queries that it found nothing for}}, where there are any
    """

    def __init__(self, data: Dataset, measures: tuple[str, ...], evaluation: Draft, run_depth: int) -> None:
        self.data, self._draft, self._run_depth = data, evaluation, run_depth
        self.qrels = {split: data.judged(split) for split in SPLITS}
        self.queries = {s: rows for s in SPLITS if len(rows := labelled_queries(self.qrels[s]))}
        self.answered = {s: rows for s in SPLITS if len(rows := _with_answers(data, data.query_rows(s)))}
        self.evaluated, self.shown = evaluated_queries(data), shown_split(data)
        self.measured = tuple(dict.fromkeys((*measures, JUDGED)))
        self.documents = documents_of(data, measures)
        self.query_ids, self.passage_ids = data.queries.column("query_id"), data.judged_ids()
        self._written_ids = written_ids(data)
        self.strata = {split: warm_strata(self.qrels[split], data.seen_labels) for split in self.queries}
        self._figures: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.queries}
        self._of_strata: dict[str, dict[str, dict[str, np.ndarray]]] = {split: {} for split in self.queries}
        self._answer_hits: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.answered}
        self.hits: dict[str, np.ndarray] = {}
        self.dev_first: dict[str, FirstHits] = {}
        self.without_hits: dict[str, dict[str, int]] = {split: {} for split in self.queries}
        self._files, self._writing = ThreadPoolExecutor(1), Future[None]()
        self._writing.set_result(None)
        for split in self.queries if run_depth else ():
            path = Evaluation.trec_file(evaluation, split, "qrels")
            write_qrels(path, self.qrels[split], self.query_ids, self.passage_ids)

    def add(self, system: str, run: Run) -> float:
        """Measures a ranking of `evaluated`; returns the mean of the first measure on the shown split.

        Meanwhile another core writes the TREC file, which takes as long; `finish` waits for the last one.
        """
        self.finish()
        if self._run_depth:
            path, first_hits = (
                Evaluation.trec_file(self._draft, system, "trec"),
                run.of(self.evaluated, self._run_depth),
            )
            columns = (self.query_ids, self.passage_ids)
            self._writing = self._files.submit(write_run, path, first_hits, *columns, system)
        for split, rows in self.queries.items():
            options = (self._written_ids, self.measured, self.documents)
            self._figures[split][system] = values = per_query(run, self.qrels[split], rows, *options)
            self._of_strata[split][system] = self.strata[split].measured(values, run, *options)
            if missed := int((~np.isin(rows, run.query)).sum()):
                self.without_hits[split][system] = missed
        for split, rows in self.answered.items():
            self._answer_hits[split][system] = run.hits(rows, answers.DEPTH)
        self.hits[system] = run.hits(self.queries[self.shown], SHOWN)
        if "dev" in self.queries:
            self.dev_first[system] = FirstHits.of(run, self.queries["dev"], self.qrels["dev"])
        return float(self._figures[self.shown][system][:, 0].mean())

    def finish(self) -> None:
        """Waits until the TREC file of the last ranking is written; an error of the writing is raised here."""
        self._writing.result()

    def figures(self, names: Sequence[str]) -> dict[str, PerQuery]:
        """Returns {split: {system: [n, measures]}} of the named measures, systems in the order of `add`."""
        columns = [self.measured.index(name) for name in names]
        return {
            split: {system: figures[:, columns] for system, figures in systems.items()}
            for split, systems in self._figures.items()
        }

    def figures_of_strata(self, names: Sequence[str]) -> dict[str, dict[str, PerQuery]]:
        """Returns {stratum: `figures` of its queries}, without splits that have no such query."""
        columns = [self.measured.index(name) for name in names]
        return {
            stratum: {
                split: {system: of_strata[stratum][:, columns] for system, of_strata in systems.items()}
                for split, systems in self._of_strata.items()
                if stratum in self.strata[split].inside
            }
            for stratum in STRATA
            if any(stratum in strata.inside for strata in self.strata.values())
        }

    def recurrence(self, names: Sequence[str]) -> dict[str, dict[str, PerQuery]]:
        """Returns `figures` of the `recurring` queries, which nearly equal a training query, and of the `unseen` ones.

        Splits without a recurring query are left out.
        """
        by_kind: dict[str, dict[str, PerQuery]] = {"recurring": {}, "unseen": {}}
        for split, systems in self.figures(names).items():
            recurs = np.isin(self.queries[split], self.data.recurring)
            for name, inside in (("recurring", recurs), ("unseen", ~recurs)):
                if recurs.any() and inside.any():
                    by_kind[name][split] = {system: figures[inside] for system, figures in systems.items()}
        return by_kind

    def by_traffic(self, names: Sequence[str]) -> tuple[dict[str, PerQuery], dict[str, PerQuery]]:
        """Returns `figures` whose means over queries are means over traffic (`Dataset.traffic`), m = Σ w v / Σ w.

        The first values are m + w (v − m) n / Σ w: their variance is that of m, a ratio of two means, by the delta
        method. The second ones, w v n / Σ w, are for paired tests: if two systems are equally good, their values of a
        query may be swapped, and a query with nearly all clicks is one observation. Differences of the first ones have
        the difference of the means in each query, so such a query would seem to be n observations. Splits without a
        query of a log are left out.
        """
        around_mean: dict[str, PerQuery] = {}
        weighted: dict[str, PerQuery] = {}
        for split, systems in self.figures(names).items():
            if self.data.traffic is not None and (traffic := self.data.traffic[self.queries[split]]).any():
                weight = (traffic / traffic.mean())[:, None]
                weighted[split] = {system: values * weight for system, values in systems.items()}
                means = {system: values.mean(axis=0) for system, values in weighted[split].items()}
                around_mean[split] = {s: means[s] + (values - means[s]) * weight for s, values in systems.items()}
        return around_mean, weighted

    def remarks(self, split: str) -> list[str]:
        """Returns what a reader of the split's figures has to know about its labels, ids and hits."""
        missed = hit_remarks(self.data, split, len(self.queries[split]), self.without_hits[split])
        return [*data_remarks(self.data, split), *missed]

    def answer_figures(self) -> dict[str, PerQuery]:
        """Returns {split: {system: `answers.MEASURES` [n, 3]}} of the splits with answers."""
        return {
            split: answer_recall(
                self.data.passages, list(map(Answers, _answers(self.data, rows))), self._answer_hits[split]
            )
            for split, rows in self.answered.items()
        }


def evaluated_queries(data: Dataset) -> np.ndarray:
    """Returns the rows of dev and test queries with a positive label or an answer, ascending; a run must have all."""
    parts = [labelled_queries(data.judged(split)) for split in SPLITS]
    parts += [_with_answers(data, data.query_rows(split)) for split in SPLITS]
    return np.unique(np.concatenate(parts))


def dev_means(data: Dataset, runs: Sequence[Path], measure: str) -> list[float]:
    """Returns the mean of a measure of each run over the labelled dev queries; empty if there are none."""
    return [float(values.mean()) for values in dev_values(data, runs, measure)]


def dev_values(data: Dataset, runs: Sequence[Path], measure: str) -> list[np.ndarray]:
    """Returns the values [n] of a measure of each run for the labelled dev queries; empty if there are none."""
    dev, measured = labelled_queries(qrels := data.judged("dev")), measured_by(measure, data, qrels)
    return [measured(Run.read(path), dev) for path in runs] if len(dev) else []


def shown_split(data: Dataset) -> str:
    """Returns the split of the report's headline: test, or dev if test has no labelled query."""
    return "test" if len(labelled_queries(data.judged("test"))) else "dev"


def _answers(data: Dataset, rows: np.ndarray) -> list[list[str]]:
    return [texts or [] for texts in data.queries.column("answers").take(pa.array(rows)).to_pylist()]


def _with_answers(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Returns those `rows` whose query has an answer with a token."""
    return rows[[bool(Answers(texts)) for texts in _answers(data, rows)]] if len(rows) else rows
