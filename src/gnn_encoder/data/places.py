"""Collects where passages and sections stand in their documents, in compact Arrow columns.

The names of documents and sections repeat from row to row; each block of rows holds a name once. A section's path is
one text: the document's id and the parts of the path, joined by `SEPARATOR`.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.rows import PLACES

SEPARATOR = "\x1f"
TEXT = pa.large_string()
BLOCK = 10_000
"""Rows that are joined to one block. A block takes kilobytes besides its rows, and a page of a folder has few rows."""
NAMES = pa.dictionary(pa.int32(), TEXT)
BLOCK_COLUMNS = pa.schema(
    {"document": NAMES, "order": pa.int64(), "parent": TEXT, "path": NAMES, "citations": pa.list_(TEXT)}
)


@dataclass
class Columns:
    """Columns of n nodes.

    documents, document   distinct ids of documents; row of each node's document, int32 [n]
    order     int64 with nulls [n]
    parent    ids with nulls [n]
    paths, titles, path   distinct paths of sections that are given in place of a parent; lists of titles of their
                          parts; row of each node's path, int32 [n], -1: none
    citing, cited   row of the citing node and id of the cited node, of each citation
    outside   number of citations of works that are not in the data
    """

    documents: pa.Array
    document: np.ndarray
    order: pa.Array
    parent: pa.Array
    paths: pa.Array
    titles: pa.Array
    path: np.ndarray
    citing: np.ndarray
    cited: pa.Array
    outside: int


class Places:
    """Takes the places of nodes, block by block. A block without places costs nothing while there are no others."""

    def __init__(self) -> None:
        self._blocks: list[tuple[pa.Array, tuple[pa.Table, pa.Array] | None]] = []
        self._waiting: list[tuple[pa.Array, pa.Table | None]] = []
        self._rows = 0
        self.present = False
        """Whether any block has had places."""

    def add(self, ids: pa.Array, places: pa.Table | None) -> None:
        """Take the next rows: ids [n], and a table of `PLACES` or None."""
        self.present = self.present or places is not None
        self._waiting.append((ids, places))
        self._rows += len(ids)
        if self._rows >= BLOCK:
            self._join()

    def _join(self) -> None:
        ids = pa.chunked_array([ids for ids, _ in self._waiting]).combine_chunks()
        block = None
        if any(places is not None for _, places in self._waiting):
            tables = [_empty(len(ids_of_rows)) if places is None else places for ids_of_rows, places in self._waiting]
            block = _compact(ids, pa.concat_tables(tables))
        self._blocks.append((ids, block))
        self._waiting, self._rows = [], 0

    def ids(self) -> pa.ChunkedArray:
        """The ids of all rows."""
        if self._waiting:
            self._join()
        return pa.chunked_array([ids for ids, _ in self._blocks], TEXT)

    def columns(self) -> Columns:
        """All rows; those without places are documents of their own."""
        if self._waiting:
            self._join()
        blocks = [block or _compact(ids, _empty(len(ids))) for ids, block in self._blocks]
        self._blocks.clear()
        whole = pa.concat_tables([BLOCK_COLUMNS.empty_table(), *(table for table, _ in blocks)]).unify_dictionaries()
        document, order, parent, path, citations = (column.combine_chunks() for column in whole.columns)
        named = pa.chunked_array([table["path"].chunk(0).dictionary for table, _ in blocks], TEXT).combine_chunks()
        titles = pa.chunked_array([titles for _, titles in blocks], pa.list_(pa.string())).combine_chunks()
        cited = pc.list_flatten(citations)
        return Columns(
            document.dictionary,
            _codes(document),
            order,
            parent,
            path.dictionary,
            titles.take(pc.index_in(path.dictionary, value_set=named)),
            _codes(path),
            pc.list_parent_indices(citations).filter(cited.is_valid()).to_numpy().astype(np.int64),
            cited.drop_null(),
            cited.null_count,
        )


def _empty(count: int) -> pa.Table:
    return pa.table([pa.nulls(count, field.type) for field in PLACES], schema=PLACES)


def _compact(ids: pa.Array, places: pa.Table) -> tuple[pa.Table, pa.Array]:
    """The `BLOCK_COLUMNS` of rows, and for each of their distinct paths a list of titles."""
    columns = {name: places[name].combine_chunks() for name in PLACES.names}
    document = pc.coalesce(_filled(columns["document"]), ids.cast(TEXT))
    parent, section = _filled(columns["parent"]), columns["section"]
    of_section = pc.and_(parent.is_null(), pc.greater(pc.fill_null(pc.list_value_length(section), 0), 0))
    separator = pa.scalar(SEPARATOR, TEXT)
    path = pc.binary_join_element_wise(document, pc.binary_join(section.cast(pa.list_(TEXT)), separator), separator)
    path = pc.if_else(of_section, path, pa.scalar(None, TEXT)).dictionary_encode()
    row = path.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    # Codes are assigned in order of first appearance, so the first rows of all codes are in the codes' order.
    codes, first = np.unique(row, return_index=True)
    citations = columns["citations"].cast(pa.list_(TEXT))
    table = pa.table([document.dictionary_encode(), columns["order"], parent, path, citations], schema=BLOCK_COLUMNS)
    return table, columns["section_titles"].take(pa.array(first[codes >= 0]))


def _filled(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts).cast(TEXT)


def _codes(names: pa.DictionaryArray) -> np.ndarray:
    """The row of each name in the dictionary, int32 [n]; -1: null."""
    return np.asarray(names.indices.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int32)
