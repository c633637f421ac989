"""Which document each passage is in, and rankings and labels of documents that are derived from those of passages.

A document scores as its best passage, and its label is the highest label of its passages: a document is relevant if
one of its passages is. So every measure of a ranking is one of documents, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from gnn_encoder.artifacts import Dataset, Qrels, Run, pair_keys
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.trec import few, without_space, written_ids
from gnn_encoder.settings.measures import of_documents

FORM = "passage<TAB>document"
HEADERS = ("passage_id", "passage-id")
"""First field of a header line, which a documents file may have."""


@dataclass(frozen=True)
class Documents:
    """The documents of passages.

    document  int32 [m]: number of the document of every passage row
    ids       text ids of the documents, by number; they order documents with equal scores
    """

    document: np.ndarray
    ids: pa.ChunkedArray

    def run(self, run: Run) -> Run:
        """Returns the ranking of documents: each has the score of its best passage."""
        document = self.document[run.passage]
        # A run is sorted by query and rank, so the first passage of a document is its best.
        _, best = np.unique(pair_keys(run.query, document), return_index=True)
        best.sort()
        return Run.by_score(run.query[best], document[best], run.score[best])

    def qrels(self, qrels: Qrels) -> Qrels:
        """Returns the labels of documents: each has the highest label of its labelled passages."""
        keys, pair = np.unique(pair_keys(qrels.query, self.document[qrels.passage]), return_inverse=True)
        highest = np.full(len(keys), np.iinfo(np.int32).min, dtype=np.int32)
        np.maximum.at(highest, pair, qrels.relevance)
        return Qrels((keys >> 32).astype(np.int32), (keys & 0xFFFFFFFF).astype(np.int32), highest)

    def of_rows(self, rows: np.ndarray) -> "Documents":
        """Returns the documents of other passages, with rows [m']; a row beyond m is a document of its own."""
        m, count = len(self.document), len(self.ids)
        known = rows < m
        alone = int((~known).sum())
        document = np.empty(len(rows), dtype=np.int32)
        document[known], document[~known] = self.document[rows[known]], count + np.arange(alone)
        names = pa.array([f"\x01{i}" for i in range(alone)], self.ids.type)  # no id of a document begins like this
        return Documents(document, pa.chunked_array([*self.ids.chunks, names], self.ids.type))


def documents_of(data: Dataset, measures: Sequence[str] = ()) -> Documents | None:
    """Returns the documents of a dataset's passages; None: the data have no documents, and no measure needs them.

    Raises:
        UserError: one of `measures` is of documents, and the data have none.
    """
    if structure := data.structure:
        return Documents(structure.document[: structure.passages], structure.document_ids)
    if names := of_documents(measures):
        raise UserError(
            f"{', '.join(names)}: nothing in {data.path} says which document a passage is in; ingest data with "
            "documents, or choose other measures"
        )
    return None


@dataclass(frozen=True)
class Membership:
    """The documents of passages by text id: `passages` [m] and the rows of `documents` are aligned."""

    source: Path
    passages: pa.ChunkedArray
    documents: Documents

    @classmethod
    def read(cls, path: Path) -> "Membership":
        """Reads a file of lines `FORM`, plain or gzip. White space in an id counts as its code, as in a TREC file.

        Raises:
            UserError: malformed file, or a passage with two documents.
        """
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        names = ("passage", "document")
        try:
            with pa.input_stream(str(path), compression="gzip" if zipped else None) as stream:
                table = pyarrow.csv.read_csv(
                    stream,
                    # One thread, because only then the errors have the number of the row.
                    pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
                    pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
                    pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
                )
        except (pa.ArrowInvalid, OSError) as error:
            cause = str(error).splitlines()[0][:200]
            raise UserError(f"{path} cannot be read ({cause}): write each line as {FORM}") from None
        if len(table) and table["passage"][0].as_py() in HEADERS:
            table = table.slice(1)
        if empty := pc.sum(
            pc.or_(*(pc.equal(pc.utf8_trim_whitespace(column), "") for column in table.columns))
        ).as_py():
            raise UserError(f"{path} has {empty:,} lines with an empty field: write each line as {FORM}")
        if not len(table):
            raise UserError(f"{path} holds no line: write each line as {FORM}")
        passages, documents = (without_space(column).dictionary_encode() for column in table.columns)
        pairs = np.unique(pair_keys(passages.indices.to_numpy(), documents.indices.to_numpy()))
        passage, document = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.int32)
        if len(twice := np.unique(passage[1:][passage[1:] == passage[:-1]])):
            names_of = few(passages.dictionary.take(pa.array(twice)))
            raise UserError(f"{path} has {len(twice):,} passages with more than one document ({names_of})")
        ids = pa.chunked_array([passages.dictionary])
        return cls(path, ids, Documents(document, pa.chunked_array([documents.dictionary])))

    @classmethod
    def of_dataset(cls, data: Dataset, measures: Sequence[str]) -> "Membership | None":
        """Returns the membership of a dataset's passages, as `documents_of`."""
        if (documents := documents_of(data, measures)) is None:
            return None
        return cls(data.path, written_ids(data).slice(0, len(data.passages)), documents)

    def of(self, passages: pa.ChunkedArray, where: str, *, alone: bool = False) -> Documents:
        """Returns the documents of passages [m'], given by text id.

        Args:
            where: names the place of these passages, for errors.
            alone: also refuse passages that are here but not among the given ones.

        Raises:
            UserError: some of the passages are unknown here.
        """
        rows = pc.index_in(passages, value_set=self.passages.combine_chunks())
        if missing := rows.null_count:
            lacks = few(passages.filter(pc.is_null(rows)))
            raise UserError(f"{self.source} lacks {missing:,} passages of {where} ({lacks}): add their lines")
        if alone and (extra := len(self.passages) - len(passages)):
            unknown = self.passages.filter(pc.invert(pc.is_in(self.passages, value_set=passages.combine_chunks())))
            raise UserError(f"{self.source} has {extra:,} passages that {where} lacks ({few(unknown)}): leave them out")
        documents = self.documents.document[rows.to_numpy()]
        return Documents(np.asarray(documents, dtype=np.int32), self.documents.ids)
