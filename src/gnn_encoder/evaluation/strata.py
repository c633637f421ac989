"""Splits a split's labelled queries, and their labels, into strata by what is known about the relevant passages.

`warm` and `cold`: a label is warm if a training query is labelled with its passage, so that training has seen what the
passage is asked for. A query is warm if one of its labels is warm. New passages are always cold. Training queries that
a generator wrote beside people's do not count (`Dataset.seen_labels`).
`old` and `new`: a label is new if its passage is not in an earlier corpus. A query is new if one of its labels is new.

The measures of a stratum of queries are means over these queries, with all labels of each query.

The measures of a stratum of labels (`warm_labels`, `cold_labels`, …) are means over the queries with such a label. Only
the labels of the stratum count, and the query's other relevant passages are removed from the ranking, as in a
residual collection (Salton and Buckley, JASIS 1990): they are neither hits nor errors. So a label's value does not
depend on labels of the other stratum. The mean is over queries, because the ranks of a query's labels depend on each
other, and intervals and tests need independent values. If each query has its labels in one stratum, both kinds of
strata have the same values, and those of labels are left out.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.artifacts.tables import find_pairs, pair_keys
from gnn_encoder.evaluation.documents import Documents
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.settings.measures import COLD, NEW, OF_LABELS, OLD, WARM

MEANING = {
    WARM: "queries with a relevant passage that is relevant to a training query, too",
    COLD: "queries with no relevant passage that is relevant to a training query, too",
    OLD: "queries whose relevant passages all were in the earlier corpus",
    NEW: "queries with a relevant passage that was not in the earlier corpus",
    WARM + OF_LABELS: "queries with labels on passages that a training query is labelled with, and these labels alone",
    COLD + OF_LABELS: "queries with labels on passages that no training query is labelled with, and these labels alone",
    OLD + OF_LABELS: "queries with labels on passages of the earlier corpus, and these labels alone",
    NEW + OF_LABELS: "queries with labels on passages that the earlier corpus lacked, and these labels alone",
}
"""Stratum → its queries in words."""


class Strata:
    """Two strata of queries and two of labels.

    queries  [n] the queries with a positive label, ascending
    inside   {stratum: bool [n]} the queries that count in each stratum; a stratum without a query is absent
    labels   {stratum: number of its labels}
    """

    def __init__(self, qrels: Qrels, known: np.ndarray, names: tuple[str, str], mixed_in: str) -> None:
        """Splits by known passages.

        Args:
            qrels: all labels of the split.
            known: row numbers of the known passages.
            names: the stratum of known passages, and the stratum of the other passages.
            mixed_in: the one of both to which a query with labels of both kinds belongs.
        """
        self.queries, self._qrels = labelled_queries(qrels), qrels
        positive, is_known = qrels.relevance >= 1, np.isin(qrels.passage, known)
        labels = {names[0]: positive & is_known, names[1]: positive & ~is_known}
        having = {name: np.isin(self.queries, qrels.query[rows]) for name, rows in labels.items()}
        mixed = having[names[0]] & having[names[1]]
        self._mixed = self.queries[mixed]
        inside = {name: rows & (~mixed | (name == mixed_in)) for name, rows in having.items()}
        counts = {
            name: int((positive & np.isin(qrels.query, self.queries[rows])).sum()) for name, rows in inside.items()
        }
        self._labels: dict[str, np.ndarray] = {}
        if mixed.any():
            self._labels = {name + OF_LABELS: rows for name, rows in labels.items()}
            inside |= {name + OF_LABELS: rows for name, rows in having.items()}
            counts |= {name: int(rows.sum()) for name, rows in self._labels.items()}
        self.inside = {name: rows for name, rows in inside.items() if rows.any()}
        self.labels = {name: counts[name] for name in self.inside}

    def rows(self, name: str) -> np.ndarray:
        """Returns whether each query is in a stratum, bool [n]."""
        return self.inside.get(name, np.zeros(len(self.queries), bool))

    def measured(
        self,
        values: np.ndarray,
        run: Run,
        passage_ids: pa.ChunkedArray,
        names: Sequence[str],
        documents: Documents | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns {stratum: values [queries of the stratum, measures]} of a ranking.

        Args:
            values: [n, measures] of all queries (`per_query`).
            run, passage_ids, names, documents: as of `per_query`.
        """
        by_stratum = {}
        for name, rows in self.inside.items():
            of_stratum = values
            if name in self._labels:
                of_stratum, mixed = values.copy(), np.isin(self.queries, self._mixed)
                of_stratum[mixed] = self._of_labels(self._labels[name], run, passage_ids, names, documents)
            by_stratum[name] = of_stratum[rows]
        return by_stratum

    def _of_labels(
        self,
        counted: np.ndarray,
        run: Run,
        passage_ids: pa.ChunkedArray,
        names: Sequence[str],
        documents: Documents | None,
    ) -> np.ndarray:
        """Returns the values [x, measures] of the queries in both strata of labels, of `counted` labels bool [r]."""
        others = (self._qrels.relevance >= 1) & ~counted
        removed = np.sort(pair_keys(self._qrels.query[others], self._qrels.passage[others]))
        run = run.of(self._mixed)
        run = run.where(find_pairs(removed, run.query, run.passage) < 0)
        run = Run.by_score(run.query, run.passage, run.score)  # some measures read ranks
        return per_query(run, self._qrels.where(~others), self._mixed, passage_ids, names, documents)


def warm_strata(qrels: Qrels, train: Qrels) -> Strata:
    """Returns the strata `warm` and `cold` of a split's queries and labels, given the training queries' labels."""
    return Strata(qrels, np.unique(train.positive().passage), (WARM, COLD), WARM)


def old_strata(qrels: Qrels, present: np.ndarray) -> Strata:
    """Returns the strata `old` and `new` of a split's queries and labels.

    Args:
        qrels: all labels of the split.
        present: rows of the passages that an earlier corpus had, by text id: a passage with a new text is old.
    """
    return Strata(qrels, present, (OLD, NEW), NEW)
