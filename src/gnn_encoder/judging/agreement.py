"""How far a judge agrees with human labels, and systems compared by its grades, corrected by the human labels.

A judge's grades are of the hits that systems have (the pool), so its measures are computed from the pool alone, for
queries with and without human labels alike: only then do the queries that have both show the judge's errors
(`evaluation.prediction_powered`). Measures by human labels use all human labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.evaluation.measures import per_query
from gnn_encoder.evaluation.orders import kendall_tau
from gnn_encoder.evaluation.prediction_powered import Corrected, corrected_mean
from gnn_encoder.judging.grading import Judgement

Labels = Mapping[tuple[str, str], int]
"""Ids of a query and of a passage → relevance."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of a judge with human labels on pairs that have both.

    pairs     number of pairs
    assumed   hits without a human label count as not relevant, because the human labels name relevant passages alone
    equal     share of the pairs that both call relevant, or both not
    kappa     Cohen's κ of that; None: one of both says the same of all pairs
    too_kind, too_strict   shares of the pairs that only the judge, or only the human labels, call relevant
    graded_equal, graded_kappa   the same of the grades; None: the human labels are no grades from 0 to 3
    """

    pairs: int
    assumed: bool
    equal: float
    kappa: float | None
    too_kind: float
    too_strict: float
    graded_equal: float | None
    graded_kappa: float | None


@dataclass(frozen=True)
class Compared:
    """Figures of systems by a judge, by human labels, and by both.

    queries, labelled   number of queries, and of those with a human label, also if that says that nothing is relevant
    means     {measure: {system: its mean in three ways}}
    gains     {measure: {system: its difference from the first system, likewise}}
    tau       {measure: Kendall's τ between the orders of the systems by human labels and by the judge, on the queries
              with both; None: fewer than two systems, or all are equal}
    """

    queries: int
    labelled: int
    means: dict[str, dict[str, Corrected]]
    gains: dict[str, dict[str, Corrected]]
    tau: dict[str, float | None]


def finite(value: Any) -> Any:
    """Returns a value for JSON, with None for each number that is none or infinite."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def agreement(
    judgements: Sequence[Judgement], human: Labels, relevant: int, are_grades: bool = False
) -> Agreement | None:
    """Returns the agreement of judgements with human labels; None: no pair has both.

    Args:
        relevant: lowest grade of the judge that counts as relevant; of human labels it is 1.
        are_grades: the human labels are grades of pooled hits, too, with the same lowest relevant one.
    """
    lowest = relevant if are_grades else 1
    labelled = {query for (query, _), relevance in human.items() if relevance >= lowest}
    grade_of = {(j.query_id, j.passage_id): j.grade for j in judgements if (j.query_id, j.passage_id) in human}
    assumed = not are_grades and all(human[pair] >= 1 for pair in grade_of)
    if assumed:
        grade_of = {(j.query_id, j.passage_id): j.grade for j in judgements if j.query_id in labelled}
    if not grade_of:
        return None
    labels, grades = np.array([human.get(pair, 0) for pair in grade_of]), np.array(list(grade_of.values()))
    by_human, by_judge = labels >= lowest, grades >= relevant
    is_graded = are_grades or (labels.max() in (2, 3) and labels.min() >= 0)
    return Agreement(
        len(grade_of),
        assumed,
        float((by_human == by_judge).mean()),
        cohen_kappa(by_human, by_judge),
        float((by_judge & ~by_human).mean()),
        float((by_human & ~by_judge).mean()),
        float((labels == grades).mean()) if is_graded else None,
        cohen_kappa(labels, grades) if is_graded else None,
    )


def cohen_kappa(one: np.ndarray, other: np.ndarray) -> float | None:
    """Returns Cohen's κ of two raters' classes [n]: 1 for equal ones, 0 for as many equal as chance makes.

    None if both give one class to all.
    """
    classes = np.union1d(one, other)
    chance = sum(float((one == c).mean() * (other == c).mean()) for c in classes)
    return None if chance == 1 else (float((one == other).mean()) - chance) / (1 - chance)


def compared(
    hits: Mapping[str, Sequence[Sequence[str]]],
    queries: Sequence[str],
    judgements: Sequence[Judgement],
    human: Labels,
    relevant: int,
    measures: Sequence[str],
) -> Compared:
    """Returns the figures of systems by a judge and by human labels.

    Args:
        hits: system → for each query the ids of its hits, best first; the first system is the baseline.
        queries: ids of the queries, which are judged in full. Those with human labels must be a random draw of them.
        judgements: a hit without one counts as not relevant.
        human: labels of any queries; those of others do not count.
        relevant: lowest grade that counts as relevant; it has the gain 1 in nDCG, the next one 2.
        measures: names of measures.
    """
    by_judge = {(j.query_id, j.passage_id): gain_of(j.grade, relevant) for j in judgements}
    judged = figures_of(hits, queries, by_judge, measures)
    by_human = {query for query, _ in human}
    is_labelled = np.array([query in by_human for query in queries], bool)
    labelled, others = np.flatnonzero(is_labelled), np.flatnonzero(~is_labelled)
    known_hits = {system: [of_system[row] for row in labelled.tolist()] for system, of_system in hits.items()}
    known = figures_of(known_hits, [queries[row] for row in labelled.tolist()], human, measures)
    first, *others_than_first = hits
    means: dict[str, dict[str, Corrected]] = {}
    gains: dict[str, dict[str, Corrected]] = {}
    tau: dict[str, float | None] = {}
    for column, measure in enumerate(measures):
        by_system = {s: (known[s][:, column], judged[s][:, column]) for s in hits}
        means[measure] = {s: corrected_mean(y, f[labelled], f[others]) for s, (y, f) in by_system.items()}
        gains[measure] = {}
        for system in others_than_first:
            y, f = (of - base for of, base in zip(by_system[system], by_system[first], strict=True))
            gains[measure][system] = corrected_mean(y, f[labelled], f[others])
        orders = [(y.mean(), f[labelled].mean()) for y, f in by_system.values()] if len(labelled) else []
        tau[measure] = kendall_tau(orders)
    return Compared(len(queries), len(labelled), means, gains, tau)


def gain_of(grade: int, relevant: int) -> int:
    """Returns the relevance that a grade from 0 to 3 is in measures: 1 for the lowest relevant grade."""
    return max(0, grade - relevant + 1)


def figures_of(
    hits: Mapping[str, Sequence[Sequence[str]]], queries: Sequence[str], labels: Labels, measures: Sequence[str]
) -> dict[str, np.ndarray]:
    """Returns {system: measures of its hits by some labels}, float64 [n, measures]; `hits` as in `compared`."""
    row, passages = {query: number for number, query in enumerate(queries)}, dict[str, int]()
    qrels = _qrels(((query, passage, label) for (query, passage), label in labels.items()), row, passages)
    runs = {system: _run(of_system, passages) for system, of_system in hits.items()}
    ids = pa.chunked_array([pa.array(list(passages), pa.string())])
    return {system: per_query(run, qrels, np.arange(len(queries)), ids, measures) for system, run in runs.items()}


def _qrels(labels: Any, row: Mapping[str, int], passages: dict[str, int]) -> Qrels:
    """Returns the labels of the queries in `row`; new passages are added to `passages`."""
    kept = [(row[q], passages.setdefault(p, len(passages)), label) for q, p, label in labels if q in row]
    return Qrels(*(np.array(column, np.int32) for column in (zip(*kept, strict=True) if kept else ((), (), ()))))


def _run(hits: Sequence[Sequence[str]], passages: dict[str, int]) -> Run:
    """Returns hits as a run; new passages are added to `passages`."""
    depth = max(map(len, hits), default=0)
    rows = np.full((len(hits), depth), -1, np.int32)
    for query, of_query in enumerate(hits):
        rows[query, : len(of_query)] = [passages.setdefault(passage, len(passages)) for passage in of_query]
    scores = np.tile(-np.arange(depth, dtype=np.float32), (len(hits), 1))
    return Run.from_hits(np.arange(len(hits)), rows, scores)
