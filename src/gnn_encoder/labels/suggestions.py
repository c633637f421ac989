"""Suggests the next labels by expected gain: queries of a log, or passages without a labelled query.

A query u that a log has c times, the measure being MRR@10:

    gain(u) = c · max(0, V − R(u))

V is the mean over dev queries after each got a label of its own: what the same words find once they are labelled.
R(u) is the mean, as things are, of the dev queries that are like u: as near to a training query, and with as large a
margin between their first two hits (thirds of both, as the dev queries have them).

A passage p without a labelled query, of people if they have labelled training queries (`Dataset.seen_labels`):

    gain(p) = 1000 · G · (1 / a) · Σ_q P(rank of p for q)

over a training and dev queries q that have p among their first hits. P(r) is the share of dev queries' hits at rank r
without a labelled query that are relevant, so the sum is the expected number of these queries that p answers. G is the
mean gain of dev queries with a labelled passage (warm queries). So gain(p) is the expected gain of 1,000 queries.

Both take the future to be like the log, the training and the dev queries, and labels to be right. Gains of several
labels do not add up where they are of one need. What a label costs other queries (the gain of cold queries in the
curve) is not subtracted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import pair_keys
from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id
from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.artifacts.texts import folded, is_blank, text_lines
from gnn_encoder.errors import UserError
from gnn_encoder.labels.adding import with_vectors
from gnn_encoder.labels.curve import DEPTH, DevQueries
from gnn_encoder.labels.nodes import FinishedRun, changed_nodes, encoded
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.identical import search_without

SIMULATED = 100
"""Dev queries that get a label of their own, to measure V."""
LEAST = 10
"""Dev queries in a cell of similarity and margin; a smaller cell takes the mean of all dev queries."""
ASKING = 20_000
"""Most training queries that are searched for passages."""


@dataclass(frozen=True)
class QuerySuggestion:
    """A query of a log: its count, the expected gain over the log, and what the gain was estimated from.

    `similarity`: cosine with the nearest training query `nearest`. `margin`: between the scores of the first two hits.
    `expected`: R(u). `passage_id`, `title`: of the first hit; its text if it has no title.
    """

    query: str
    count: float
    gain: float
    similarity: float
    margin: float
    expected: float
    nearest: str
    passage_id: str
    title: str


@dataclass(frozen=True)
class PassageSuggestion:
    """A passage without a labelled query: the expected gain of 1,000 queries, and how many of them it answers.

    `query`: the training query that has the passage highest among its hits, empty if none has.
    """

    passage_id: str
    title: str
    text: str
    gain: float
    answers: float
    query: str


def read_log(path: Path) -> dict[str, float]:
    """Returns {query: count} of a log: a query per line, optionally with a tab and a count; equal queries are joined.

    Raises:
        UserError: the file cannot be read, is empty, or a count is no positive number.
    """
    counts: dict[str, float] = {}
    spelled: dict[str, str] = {}
    try:
        lines = list(text_lines(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): name a UTF-8 file of queries") from None
    for number, line in lines:
        query, tab, count = line.partition("\t")
        query = query.strip()
        if is_blank(query):
            continue
        try:
            times = float(count) if tab else 1.0
        except ValueError:
            times = float("nan")
        if not 0 < times < np.inf:
            raise UserError(f"{path} line {number}: {count!r} is no count: write a query, a tab and a positive number")
        name = spelled.setdefault(folded(query), query)
        counts[name] = counts.get(name, 0.0) + times
    if not counts:
        raise UserError(f"{path} holds no query: write one per line")
    return counts


class Suggestions:
    """Suggestions for a finished run, with its dev queries; `added`: more added labels, of any bundle."""

    def __init__(self, run: FinishedRun, dev: DevQueries, added: Sequence[AddedLabel] = ()) -> None:
        self._run, self._dev, self._vectors = run, dev, run.bundle.vectors
        self._added = [*run.known.labels, *added]
        self._now = dev.figures(run, self._vectors)

    def labelled_value(self) -> float:
        """V: the mean of the measure over up to `SIMULATED` dev queries, each with a label of its own."""
        run, dev = self._run, self._dev
        labels, ids = dev.qrels.positive(), run.known.passage_ids
        answered = np.flatnonzero(np.isin(dev.rows, labels.query))
        count = min(SIMULATED, len(answered))
        drawn = np.sort(np.random.default_rng(0).choice(answered, count, replace=False))
        first = {int(row): int(np.flatnonzero(labels.query == row)[0]) for row in dev.rows[drawn]}
        texts = run.sources.dataset.query_texts(dev.rows[drawn])
        simulated = [
            AddedLabel(new_query_id(text), text, ids[int(labels.passage[first[row]])].as_py())
            for row, text in zip(dev.rows[drawn].tolist(), texts, strict=True)
        ]
        former = run.bundle.changes
        nodes = changed_nodes(run, [*run.known.labels, *simulated], former.nodes if former else None)
        changes, _ = with_vectors(run, nodes, None)
        vectors = np.array(self._vectors)
        vectors[changes.rows] = changes.vectors
        return float(dev.figures(run, vectors, drawn).mean())

    def queries(self, log: Mapping[str, float], most: int) -> tuple[list[QuerySuggestion], float]:
        """The queries of a log with the largest expected gains above 0, largest first, and V.

        Queries with the words of a training, dev or test query are left out, and so are queries with an added label. A
        training query that a generator wrote has no label of a person yet, so its words stay.
        """
        run, value = self._run, self.labelled_value()
        known = run.known.query_rows(list(log))
        added = {folded(label.query) for label in self._added}
        written = set(run.sources.dataset.written_rows("train").tolist())
        texts = [query for query in log if written.issuperset(known[query]) and folded(query) not in added]
        if not texts:
            return [], value
        query_vectors = encoded(run.bundle, texts)
        similarity, nearest = self._nearest(query_vectors)
        margin, first = self._margins(query_vectors)
        left_out = run.sources.dataset.identical[self._dev.rows]
        of_dev = (self._nearest(self._dev.vectors)[0], self._margins(self._dev.vectors, left_out)[0])
        expected = expected_figures((similarity, margin), of_dev, self._now)
        counts = np.array([log[text] for text in texts])
        gains = counts * np.maximum(0.0, value - expected)
        best = [i for i in np.argsort(-gains, kind="stable")[:most].tolist() if gains[i] > 0]
        hits = run.bundle.passages.take(first[best])
        graph, data = run.sources.graph, run.sources.dataset
        neighbours = data.query_texts(graph.queries[nearest[best]])
        return [
            QuerySuggestion(
                texts[i], counts[i], float(gains[i]), float(similarity[i]), float(margin[i]), float(expected[i]),
                neighbours[position], hits.ids[position], hits.titles[position] or hits.texts[position],
            )
            for position, i in enumerate(best)
        ], value  # fmt: skip

    def passages(self, gain: float, most: int) -> list[PassageSuggestion]:
        """The passages without a labelled query that have the largest expected gains, largest first.

        Args:
            gain: G, the mean gain of warm dev queries. Without a gain there is no suggestion.
        """
        run, dev, m = self._run, self._dev, len(self._vectors)
        graph, data, encoding = run.sources.graph, run.sources.dataset, run.sources.encoding
        cold = np.ones(m, bool)
        cold[data.seen_labels.positive().passage] = False
        cold[list(run.known.passage_rows([label.passage_id for label in self._added]).values())] = False
        nodes = np.arange(len(graph.queries))
        if len(nodes) > ASKING:
            nodes = np.sort(np.random.default_rng(0).choice(len(nodes), ASKING, replace=False))
        k = min(DEPTH, m)
        of_train = self._hits(np.asarray(encoding.queries[nodes]), k, data.identical[graph.queries[nodes]])[1]
        of_dev = self._hits(dev.vectors, k, data.identical[dev.rows])[1]
        labels = dev.qrels.positive()
        relevant = np.isin(pair_keys(dev.rows[:, None], of_dev), pair_keys(labels.query, labels.passage))
        precision = cold_precision(of_dev, cold, relevant)
        answers = demand(np.concatenate([of_train, of_dev]), cold, precision)
        best = np.argsort(-answers, kind="stable")[:most]
        best = best[(answers[best] > 0) & (gain > 0)]
        texts = run.bundle.passages.take(best)
        asking = [_highest(of_train, int(row)) for row in best]
        rows = graph.queries[nodes[np.maximum(asking, 0)]] if len(asking) else np.empty(0, np.int32)
        queries = data.query_texts(rows)
        return [
            PassageSuggestion(
                texts.ids[i], texts.titles[i], texts.texts[i], 1000 * gain * answers[row], 1000 * answers[row],
                queries[i] if asking[i] >= 0 else "",
            )
            for i, row in enumerate(best.tolist())
        ]  # fmt: skip

    def _nearest(self, query_vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosine with the nearest training query [a], and the query's node [a]."""
        stored = np.array(self._run.sources.encoding.queries, np.float32)
        scores, nodes = exact.search(at_unit_length(stored), at_unit_length(query_vectors), 1)
        return scores[:, 0], nodes[:, 0]

    def _hits(
        self, query_vectors: np.ndarray, k: int, left_out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores [a, k] and rows [a, k] of the best passages; `left_out` [a]: passages that are the query itself."""
        return search_without(partial(exact.search, self._vectors, query_vectors), left_out, k)

    def _margins(self, query_vectors: np.ndarray, left_out: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Difference of the first two scores [a] (0 with a single passage), and the first passage [a]."""
        scores, rows = self._hits(query_vectors, min(2, len(self._vectors)), left_out)
        return scores[:, 0] - scores[:, -1], rows[:, 0]


def expected_figures(
    of_queries: tuple[np.ndarray, np.ndarray], of_dev: tuple[np.ndarray, np.ndarray], figures: np.ndarray
) -> np.ndarray:
    """R(u) [a]: mean of the `figures` [d] of the dev queries in each query's cell.

    A cell is a third of the dev queries' similarities and a third of their margins. Both pairs of arrays are similarity
    and margin.
    """
    cells, dev_cells = np.zeros(len(of_queries[0]), np.int64), np.zeros(len(figures), np.int64)
    for values, dev_values in zip(of_queries, of_dev, strict=True):
        ends = np.quantile(dev_values, (1 / 3, 2 / 3))
        cells = 3 * cells + np.searchsorted(ends, values)
        dev_cells = 3 * dev_cells + np.searchsorted(ends, dev_values)
    counts = np.bincount(dev_cells, minlength=9)
    sums = np.bincount(dev_cells, weights=figures, minlength=9)
    means = np.where(counts >= LEAST, sums / np.maximum(counts, 1), figures.mean())
    return np.asarray(means[cells])


def cold_precision(hits: np.ndarray, cold: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """P [k]: at each rank, the share of relevant ones among the hits [d, k] without a labelled query (`cold` [m])."""
    counted = cold[hits] & (hits >= 0)
    return np.asarray((counted & relevant).sum(axis=0) / np.maximum(counted.sum(axis=0), 1))


def demand(hits: np.ndarray, cold: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The expected share of queries that each passage answers, float64 [m]; 0 for passages that are not `cold`.

    `hits` [a, k] are the first passages of a queries, `precision` [k].
    """
    weights = np.where(cold[hits] & (hits >= 0), precision, 0.0)
    shares = np.bincount(np.maximum(hits, 0).ravel(), weights=weights.ravel(), minlength=len(cold)) / max(len(hits), 1)
    return np.asarray(shares, np.float64)


def _highest(hits: np.ndarray, passage: int) -> int:
    """The query whose hits [a, k] have a passage highest; -1 if none has."""
    rows, ranks = np.nonzero(hits == passage)
    return int(rows[np.argmin(ranks)]) if len(rows) else -1
