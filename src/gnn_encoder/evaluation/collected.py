"""What is kept of each system's ranking when the next one comes."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Evaluation, Qrels, Run
from gnn_encoder.artifacts.folder import Draft
from gnn_encoder.evaluation import answers
from gnn_encoder.evaluation.answers import Answers, answer_recall
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.results import PerQuery
from gnn_encoder.evaluation.trec import write_qrels, write_run

SPLITS = ("dev", "test")
SHOWN = 3
"""First hits of each query that are kept, to be shown."""
JUDGED = "Judged@10"
"""Measured besides the table's: how many of the hits that decide it anybody has looked at."""


class Collected:
    """Figures and first hits of one ranking after another, over the dev and test queries.

    queries     {split: rows} with a positive label, ascending; a split without any is not there
    answered    {split: rows} that have an answer
    asked       all of both, ascending: what a ranking must be of
    """

    def __init__(self, data: Dataset, measures: tuple[str, ...], evaluation: Draft, run_depth: int) -> None:
        self.data, self.measures, self._draft, self._run_depth = data, measures, evaluation, run_depth
        self.qrels: dict[str, Qrels] = {split: data.split_qrels(split) for split in SPLITS}
        self.queries = {s: rows for s in SPLITS if len(rows := labelled_queries(self.qrels[s]))}
        self.answered = {s: rows for s in SPLITS if len(rows := _with_answers(data, data.query_rows(s)))}
        self.asked = evaluated_queries(data)
        self.passage_ids = data.passages.ids()
        self._figures: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.queries}
        self._answer_hits: dict[str, dict[str, np.ndarray]] = {split: {} for split in self.answered}
        self.hits: dict[str, np.ndarray] = {}
        """{system: [n, SHOWN]} passages of the shown split's queries."""
        if run_depth:
            for split in self.queries:
                path = Evaluation.trec_file(evaluation, split, "qrels")
                write_qrels(path, self.qrels[split], data.queries.column("query_id"), self.passage_ids)

    @property
    def shown(self) -> str:
        """The split that the report is headed by."""
        return shown_split(self.data)

    def add(self, system: str, run: Run) -> float:
        """Measure a ranking of `asked`; the first measure's mean on the shown split."""
        names = self.measured
        for split, rows in self.queries.items():
            self._figures[split][system] = per_query(run, self.qrels[split], rows, self.passage_ids, names)
        for split, rows in self.answered.items():
            self._answer_hits[split][system] = run.hits(rows, answers.DEPTH)
        self.hits[system] = run.hits(self.queries[self.shown], SHOWN)
        if self._run_depth:
            path, ids = Evaluation.trec_file(self._draft, system, "trec"), self.data.queries.column("query_id")
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


def evaluated_queries(data: Dataset) -> np.ndarray:
    """Rows of the dev and test queries that have a positive label or an answer, ascending: what a run must be of."""
    every = [labelled_queries(data.split_qrels(split)) for split in SPLITS]
    every += [_with_answers(data, data.query_rows(split)) for split in SPLITS]
    rows: np.ndarray = np.unique(np.concatenate(every))
    return rows


def shown_split(data: Dataset) -> str:
    """The split that a report is headed by: test, or dev where test has no labelled query."""
    return "test" if len(labelled_queries(data.split_qrels("test"))) else "dev"


def _answers(data: Dataset, rows: np.ndarray) -> list[list[str]]:
    return [given or [] for given in data.queries.column("answers").take(pa.array(rows)).to_pylist()]


def _with_answers(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Those of some queries that have an answer with a token in it."""
    found: np.ndarray = rows[[bool(Answers(given)) for given in _answers(data, rows)]] if len(rows) else rows
    return found
