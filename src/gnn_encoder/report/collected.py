"""What is kept of each system's ranking when the next one comes."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Qrels, Report, Run
from gnn_encoder.artifacts.folder import Draft
from gnn_encoder.evaluation import answers
from gnn_encoder.evaluation.answers import Answers, answer_recall
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.results import PerQuery
from gnn_encoder.evaluation.trec import write_qrels, write_run
from gnn_encoder.report.examples import SHOWN

SPLITS = ("dev", "test")
JUDGED = "Judged@10"
"""Measured besides the table's: how many of the hits that decide it anybody has looked at."""


class Collected:
    """Figures and first hits of one ranking after another, over the dev and test queries.

    queries     {split: rows} with a positive label, ascending; a split without any is not there
    answered    {split: rows} that have an answer
    asked       all of both, ascending: what a ranking must be of
    """

    def __init__(self, data: Dataset, measures: tuple[str, ...], report: Draft, run_depth: int) -> None:
        self.data, self.measures, self._report, self._run_depth = data, measures, report, run_depth
        self.qrels: dict[str, Qrels] = {split: data.split_qrels(split) for split in SPLITS}
        self.queries = {s: rows for s in SPLITS if len(rows := labelled_queries(self.qrels[s]))}
        self.answered = {s: rows for s in SPLITS if len(rows := _with_answers(data, data.query_rows(s)))}
        every = [*self.queries.values(), *self.answered.values()]
        self.asked: np.ndarray = np.unique(np.concatenate(every)) if every else np.empty(0, np.int32)
        self.passage_ids = data.passages.ids()
        self._figures: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.queries}
        self._answer_hits: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.answered}
        self.hits: dict[str, np.ndarray] = {}
        """{system: [n, SHOWN]} passages of the shown split's queries."""
        if run_depth:
            for split in self.queries:
                path = Report.qrels_file(report, split)
                write_qrels(path, self.qrels[split], data.queries.column("query_id"), self.passage_ids)

    @property
    def shown(self) -> str:
        """The split that the report is headed by."""
        return "test" if "test" in self.queries else "dev"

    def add(self, system: str, run: Run) -> float:
        """Measure a ranking of `asked`; the first measure's mean on the shown split."""
        names = self.measured
        for split, rows in self.queries.items():
            self._figures[split][system] = per_query(run, self.qrels[split], rows, self.passage_ids, names)
        for split, rows in self.answered.items():
            self._answer_hits[split][system] = run.hits(rows, answers.DEPTH)
        self.hits[system] = run.hits(self.queries[self.shown], SHOWN)
        if self._run_depth:
            path, ids = Report.run_file(self._report, system), self.data.queries.column("query_id")
            write_run(path, run.of(self.asked, self._run_depth), ids, self.passage_ids, system)
        return float(self._figures[self.shown][system][:, 0].mean())

    def figures(self, order: list[str], names: tuple[str, ...]) -> dict[str, PerQuery]:
        """{split: {system: [n, measures]}} of some of the measures, systems in that order."""
        columns = [self.measured.index(name) for name in names]
        return {
            split: {system: systems[system][:, columns] for system in order} for split, systems in self._figures.items()
        }

    def answer_figures(self, order: list[str]) -> dict[str, PerQuery]:
        """`answers.MEASURES` of every system, systems in that order; splits without answers are not there."""
        out: dict[str, PerQuery] = {}
        for split, rows in self.answered.items():
            wanted = [Answers(given) for given in _answers(self.data, rows)]
            hits: Mapping[str, np.ndarray] = {system: self._answer_hits[split][system] for system in order}
            out[split] = answer_recall(self.data.passages, wanted, hits)
        return out

    @property
    def measured(self) -> tuple[str, ...]:
        """All measures: the table's, and what is measured besides."""
        return tuple(dict.fromkeys((*self.measures, JUDGED)))


def _answers(data: Dataset, rows: np.ndarray) -> list[list[str]]:
    return [given or [] for given in data.queries.column("answers").take(pa.array(rows)).to_pylist()]


def _with_answers(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Those of some queries that have an answer with a token in it."""
    found: np.ndarray = rows[[bool(Answers(given)) for given in _answers(data, rows)]] if len(rows) else rows
    return found
