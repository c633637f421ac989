"""Labels that a user asks for: reads them from a file, and checks them against a run's data.

An added query that the data do not have becomes a training query. So the words of a dev or test query are refused, as
`ingest` would leave such a training query out.
"""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id
from gnn_encoder.artifacts.dataset import QRELS, SPLITS
from gnn_encoder.artifacts.passages import StoredTable
from gnn_encoder.artifacts.texts import folded, folded_column, is_blank, text_lines
from gnn_encoder.errors import UserError, printable

SHOWN = 60
"""Characters of a query in an error."""


@dataclass(frozen=True)
class Wanted:
    """A query and a passage id, as the user wrote them; `where`: the place in a file, or empty."""

    query: str
    passage_id: str
    where: str = ""

    def refused(self, reason: str) -> UserError:
        """Returns the error for this label."""
        query = self.query if len(self.query) <= SHOWN else f"{self.query[:SHOWN]}…"
        prefix = f"{self.where}: " if self.where else ""
        return UserError(f"{prefix}{printable(query)!r}, passage {printable(self.passage_id)!r}: {reason}")


def read_wanted(path: Path) -> list[Wanted]:
    """Returns the labels of a file; raises UserError if a line is no label.

    A line is a JSON object with `query` and `passage_id`, or a query, a tab and a passage id. Empty lines are skipped.
    """
    try:
        wanted = [_of_line(line, f"{path} line {number}") for number, line in text_lines(path) if not is_blank(line)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): name a UTF-8 file of labels") from None
    if not wanted:
        raise UserError(f"{path} holds no label: write a query, a tab and a passage id per line")
    return wanted


def _of_line(line: str, where: str) -> Wanted:
    if line.lstrip().startswith("{"):
        try:
            row = json.loads(line)
            fields = [row["query"], row["passage_id"]]
            fields = [str(field) if type(field) is int else field for field in fields]  # as the data may have ids
        except (ValueError, KeyError, TypeError, RecursionError):
            fields = []
    else:
        fields = line.split("\t")
    if len(fields) != 2 or not all(isinstance(field, str) for field in fields):
        raise UserError(f"{where} is no label: write a query, a tab and a passage id, or a JSON object with both")
    return Wanted(fields[0], fields[1], where)


class Known:
    """The queries, passages and labels of a run, to check labels against."""

    def __init__(self, dataset: Dataset, bundle: Bundle) -> None:
        self.dataset = dataset
        self.passage_ids = bundle.passages.ids()
        self.labels = bundle.added.labels if bundle.added else []

    def passage_rows(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns {passage id: row} of those `ids` that the corpus has."""
        known = pc.is_in(self.passage_ids, value_set=pa.array(sorted(set(ids)), self.passage_ids.type))
        rows = np.flatnonzero(known.to_numpy())
        return dict(zip(self.passage_ids.take(pa.array(rows)).to_pylist(), rows.tolist(), strict=True))

    def query_rows(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Returns {text: rows of the queries in the data with an equal text (`folded`)}."""
        forms = {text: folded(text) for text in texts}
        distinct = list(dict.fromkeys(forms.values()))
        values, start = pa.array(distinct, pa.string()), 0
        rows: dict[str, list[int]] = {form: [] for form in distinct}
        for batch in self.dataset.query_table.batches("text"):
            positions = pc.index_in(folded_column(batch.column(0)), value_set=values)
            for row in np.flatnonzero(positions.is_valid().to_numpy(zero_copy_only=False)).tolist():
                rows[distinct[positions[row].as_py()]].append(start + row)
            start += len(batch)
        return {text: rows[form] for text, form in forms.items()}

    def relevance(self, queries: Iterable[int]) -> dict[tuple[int, int], list[int]]:
        """Returns {(query row, passage row): labels in the data} of some queries."""
        wanted, labels = np.array(sorted(queries), np.int32), dict[tuple[int, int], list[int]]()
        table = StoredTable(self.dataset.path / QRELS)
        for batch in table.batches("query", "passage", "relevance") if len(wanted) else ():
            query, passage, relevance = (column.to_numpy() for column in batch.columns)
            for row in np.flatnonzero(np.isin(query, wanted)).tolist():
                labels.setdefault((int(query[row]), int(passage[row])), []).append(int(relevance[row]))
        return labels

    def checked(self, wanted: Iterable[Wanted]) -> list[AddedLabel]:
        """Returns the labels that `wanted` asks for, in order.

        A query with a text equal to that of a training query, or of a query with an added label, is that query.

        Raises:
            UserError: an empty query, an unknown passage, a label that exists or contradicts the data, or the words of
                a dev or test query.
        """
        wanted = [Wanted(request.query.strip(), request.passage_id, request.where) for request in wanted]
        for request in wanted:
            try:
                "".join((request.query, request.passage_id)).encode()
            except UnicodeEncodeError:
                raise request.refused("the label is not UTF-8") from None
            if is_blank(request.query):
                raise request.refused("the query is empty: give some words")
        passages = self.passage_rows([request.passage_id for request in wanted])
        queries = self.query_rows([request.query for request in wanted])
        numbers = sorted({row for rows in queries.values() for row in rows})
        table = self.dataset.query_table.rows(np.array(numbers, np.int64)).select(["query_id", "text", "split"])
        facts = dict(zip(numbers, zip(*(column.to_pylist() for column in table.columns), strict=True), strict=True))
        relevance = self.relevance(facts)
        added = {folded(label.query): (label.query_id, label.query) for label in reversed(self.labels)}
        existing, read = (
            {(folded(label.query), label.passage_id) for label in of_source}
            for of_source in (self.labels, self.dataset.added)
        )
        now, labels = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), []
        for request in wanted:
            if request.passage_id not in passages:
                raise request.refused("the bundle has no such passage")
            rows, form = queries[request.query], folded(request.query)
            label = form, request.passage_id
            for row in rows:
                if (split := facts[row][2]) != SPLITS[0]:
                    raise request.refused(f"a {split} query has these words, and what measures must not train")
            labelled = [r for row in rows for r in relevance.get((row, passages[request.passage_id]), [])]
            if labelled and max(labelled) < 1:
                raise request.refused("the data say that the passage is not relevant to this query: change that label")
            # A label of the data that was read from a file of added labels may have been removed since.
            if label in existing or (labelled and label not in read):
                raise request.refused("this label exists already")
            existing.add(label)
            new = new_query_id(request.query), request.query
            # Of equal queries in the data, the one with this very text, or the first.
            same = [facts[row][:2] for row in rows]
            exact = [one for one in same if one[1] == request.query]
            query_id, query = [*exact, *same][0] if same else added.setdefault(form, new)
            labels.append(AddedLabel(query_id, query, request.passage_id, now))
        return labels
