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
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.texts import blank
from gnn_encoder.errors import UserError, printable

SHOWN = 60
"""Characters of a query in an error."""


@dataclass(frozen=True)
class Wanted:
    """A query and a passage id, as the user wrote them; `where`: the place in a file, or empty."""

    query: str
    passage_id: str
    where: str = ""

    def refused(self, why: str) -> UserError:
        """Returns the error for this label."""
        query = self.query if len(self.query) <= SHOWN else f"{self.query[:SHOWN]}…"
        place = f"{self.where}: " if self.where else ""
        return UserError(f"{place}{printable(query)!r}, passage {printable(self.passage_id)!r}: {why}")


def read_wanted(path: Path) -> list[Wanted]:
    """Returns the labels of a file; raises UserError if a line is no label.

    A line is a JSON object with `query` and `passage_id`, or a query, a tab and a passage id. Empty lines are skipped.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): name a UTF-8 file of labels") from None
    wanted = [_of_line(line, f"{path} line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not wanted:
        raise UserError(f"{path} holds no label: write a query, a tab and a passage id per line")
    return wanted


def _of_line(line: str, where: str) -> Wanted:
    if line.lstrip().startswith("{"):
        try:
            row = json.loads(line)
            fields = [row["query"], row["passage_id"]]
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
        # Bundles of labelled queries had no `added/` in earlier versions, although their run had read added labels.
        self.labels = bundle.added.labels if bundle.added else dataset.added

    def passage_rows(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns {passage id: row} of those `ids` that the corpus has."""
        known = pc.is_in(self.passage_ids, value_set=pa.array(sorted(set(ids)), self.passage_ids.type))
        rows = np.flatnonzero(known.to_numpy())
        return dict(zip(self.passage_ids.take(pa.array(rows)).to_pylist(), rows.tolist(), strict=True))

    def query_rows(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Returns {text: rows of the queries with the same words in the data}; case and outer blanks do not count."""
        rows: dict[str, list[int]] = {text: [] for text in texts}
        folded = _words(pa.array(list(rows), pa.string()))
        column = _words(self.dataset.queries.column("text"))
        found = pc.index_in(column, value_set=folded.unique())
        firsts = folded.unique().to_pylist()
        by_words: dict[str, list[int]] = {}
        for row in np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)).tolist():
            by_words.setdefault(firsts[found[row].as_py()], []).append(row)
        for text, words in zip(rows, folded.to_pylist(), strict=True):
            rows[text] = by_words.get(words, [])
        return rows

    def checked(self, wanted: Iterable[Wanted]) -> list[AddedLabel]:
        """Returns the labels that `wanted` asks for, in order.

        Raises:
            UserError: an empty query, an unknown passage, a label that exists, or the words of a dev or test query.
        """
        wanted = [Wanted(each.query.strip(), each.passage_id, each.where) for each in wanted]
        for each in wanted:
            try:
                "".join((each.query, each.passage_id)).encode()
            except UnicodeEncodeError:
                raise each.refused("the label is not UTF-8") from None
            if blank(pa.chunked_array([[each.query]]))[0]:
                raise each.refused("the query is empty: give some words")
        passages, queries = (
            self.passage_rows([w.passage_id for w in wanted]),
            self.query_rows([w.query for w in wanted]),
        )
        splits, texts = self.dataset.queries.column("split"), self.dataset.queries.column("text")
        given = {(label.query, label.passage_id) for label in self.labels}
        now, labels = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), []
        for each in wanted:
            if each.passage_id not in passages:
                raise each.refused("the bundle has no such passage")
            rows = queries[each.query]
            for row in rows:
                if (split := splits[row].as_py()) != SPLITS[0]:
                    raise each.refused(f"a {split} query has these words, and what measures must not train")
            same = [row for row in rows if texts[row].as_py() == each.query]
            labelled = np.isin(self.dataset.qrels.query, same) & (
                self.dataset.qrels.passage == passages[each.passage_id]
            )
            if (each.query, each.passage_id) in given or self._in_data(labelled, each):
                raise each.refused("this label exists already")
            given.add((each.query, each.passage_id))
            labels.append(AddedLabel(self.id_of(same, each.query), each.query, each.passage_id, now))
        return labels

    def _in_data(self, labelled: np.ndarray, wanted: Wanted) -> bool:
        """Whether one of the dataset's labels is the wanted one, and was not removed from the added labels."""
        read = any((label.query, label.passage_id) == (wanted.query, wanted.passage_id) for label in self.dataset.added)
        return bool(labelled.any()) and not read

    def id_of(self, rows: Sequence[int], text: str) -> str:
        """Returns the id of the first of some queries of the dataset, or a new one."""
        return str(self.dataset.queries.column("query_id")[rows[0]].as_py()) if len(rows) else new_query_id(text)


def _words(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    folded = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    return folded.combine_chunks() if isinstance(folded, pa.ChunkedArray) else folded
