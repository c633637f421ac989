"""Documents: joins the places of passages and sections into trees and citations, checks them, and cuts documents.

With `on_bad_rows: drop`, a bad parent or citation is left out; the node that has it stays. Everything is held as Arrow
or NumPy columns.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import DatasetWriter, pair_keys
from gnn_encoder.data.corpus import Corpus
from gnn_encoder.data.places import TEXT, Places
from gnn_encoder.data.rows import SectionRows, Source, duplicates
from gnn_encoder.data.section_paths import section_tree
from gnn_encoder.data.tree import depths, owners, positions
from gnn_encoder.data.validation import SHOWN, Kind, Problems, StructureCounts


class Documents:
    """The documents of a source whose passages have places.

    ids, titles    text [n]: of the passages, of the sections of the source, of the sections that paths name
    document, parent, place   int [n], as in `artifacts.structure`
    document_ids   text: ids of the documents
    source, target   int32 [c]: the citations
    remarks        sentences about what was left out without being a problem
    """

    def __init__(self, source: Source, corpus: Corpus, depth: int, problems: Problems) -> None:
        self.remarks: list[str] = []
        self._corpus, self._problems = corpus, problems
        sections = _Sections(source, corpus, problems)
        self._sections = sections
        groups = [corpus.places.columns(), sections.places.columns()]
        passages, self._row_count = len(corpus.ids), len(corpus.ids) + len(sections.ids)

        self.document_ids, rows = _united([group.documents for group in groups])
        document = np.concatenate([row[group.document] for row, group in zip(rows, groups, strict=True)])
        paths, rows = _united([group.paths for group in groups])
        path = np.concatenate([np.append(row, -1)[group.path] for row, group in zip(rows, groups, strict=True)])
        titles = pa.concat_arrays([group.titles for group in groups])
        tree = section_tree(paths, titles.take(pc.index_in(paths, pa.concat_arrays([g.paths for g in groups]))))

        self.ids = _with_own_ids(pa.chunked_array([*corpus.ids.chunks, sections.ids], TEXT), tree.ids)
        no_titles = pa.repeat(pa.scalar("", TEXT), passages)
        self.titles = pa.chunked_array([no_titles, sections.titles, tree.titles], TEXT)
        of_path = pc.index_in(tree.documents, value_set=self.document_ids).to_numpy(zero_copy_only=False)
        self.document = np.concatenate([document, of_path]).astype(np.int32)

        named = pa.concat_arrays([group.parent for group in groups])
        parent = self._joined_parents(named)
        parent = np.where(path >= 0, self._row_count + path, parent)
        self.parent = np.concatenate([parent, np.where(tree.parent >= 0, self._row_count + tree.parent, -1)])
        self._check_tree(named)
        depth_of, _ = depths(self.parent)

        order, known = self._order(pa.concat_arrays([group.order for group in groups]), passages)
        self.position = positions(self.document, self.parent, depth_of, order, known)
        citing = np.concatenate([groups[0].citing, groups[1].citing + passages])
        self._join_citations(source, citing, pa.concat_arrays([group.cited for group in groups]))
        before = len(self.document_ids)
        tree_depth = int(depth_of.max(initial=-1)) + 1
        if depth:
            self._cut(owners(self.parent, depth_of, depth), source.ids_name_documents)
        self.counts = StructureCounts(
            documents=len(self.document_ids),
            documents_before_cut=before,
            nodes=len(self.parent),
            sections_without_text=len(self.parent) - passages,
            edges=self._edges(passages),
            outside_citations=sum(group.outside for group in groups),
            unlinked_passages=self._unlinked(passages),
            tree_depth=tree_depth,
        )

    def write(self, writer: DatasetWriter) -> None:
        """Write the three tables."""
        text = pa.string()
        nodes = [self.ids.cast(text), self.titles.cast(text), self.document, self.parent, self.position]
        document_ids = pa.chunked_array([self.document_ids], TEXT).cast(text)
        writer.structure(nodes, document_ids, [self.source, self.target])

    def _origin(self, row: int) -> tuple[str, int]:
        """The file and line of a node that the data give."""
        passages = len(self._corpus.ids)
        if row < passages:
            return self._corpus.file, self._corpus.line(row)
        return self._sections.file, int(self._sections.lines[row - passages])

    def _joined_parents(self, named: pa.Array) -> np.ndarray:
        """Rows of the parents that are named, int64; -1: none. An unknown one is a problem."""
        ids = self.ids.slice(0, self._row_count).combine_chunks()
        row = _rows(named, ids)
        dangling = np.flatnonzero((row < 0) & named.is_valid().to_numpy(zero_copy_only=False))
        self._problems.add_rows(
            Kind.DANGLING_PARENT, dangling, lambda node: (*self._origin(node), repr(named[node].as_py()))
        )
        return row

    def _check_tree(self, named: pa.Array) -> None:
        """Leaves out parents in other documents, and those of nodes that are part of themselves."""
        child = np.flatnonzero(self.parent >= 0)
        foreign = child[self.document[child] != self.document[self.parent[child]]]

        def describe(node: int) -> tuple[str, int, str]:
            other = self.document_ids[int(self.document[self.parent[node]])].as_py()
            return (*self._origin(node), f"{named[node].as_py()!r} is in {other!r}")

        self._problems.add_rows(Kind.FOREIGN_PARENT, foreign, describe)
        self.parent[foreign] = -1
        _, cyclic = depths(self.parent)
        self._problems.add_rows(
            Kind.PARENT_CYCLE, cyclic, lambda node: (*self._origin(node), repr(self.ids[node].as_py()))
        )
        self.parent[cyclic] = -1

    def _order(self, order: pa.Array, passages: int) -> tuple[np.ndarray, np.ndarray]:
        """The order int64 [n] of all nodes, and where it is known, bool [n].

        Where a passage of a document has no order, the order of the rows counts for the whole document.
        """
        n = len(self.parent)
        has_order = order.is_valid().to_numpy(zero_copy_only=False)
        by_row = np.zeros(len(self.document_ids), dtype=bool)
        by_row[self.document[:passages][~has_order[:passages]]] = True
        known = np.zeros(n, dtype=bool)
        known[: self._row_count] = has_order & ~by_row[self.document[: self._row_count]]
        values = np.arange(n, dtype=np.int64)
        values[: self._row_count][known[: self._row_count]] = order.fill_null(0).to_numpy()[known[: self._row_count]]
        known[:passages] = True
        return values, known

    def _join_citations(self, source: Source, citing: np.ndarray, cited: pa.Array) -> None:
        """Joins citations to nodes; each pair of nodes is kept once, and a node's citation of itself is left out."""
        ids = self.ids.combine_chunks()
        row = _rows(cited, ids)
        if (row < 0).any():
            anchors = list(source.anchors())
            names, nodes = (pa.chunked_array([p[i].cast(TEXT) for p in anchors], TEXT).combine_chunks() for i in (0, 1))
            row = np.where(row < 0, np.append(_rows(nodes, ids), -1)[_rows(cited, names)], row)
        lost = np.flatnonzero(row < 0)
        if source.citations_may_fail and len(lost):
            shown = [f"{cited[i].as_py()!r} in {ids[int(citing[i])].as_py()!r}" for i in lost[:SHOWN].tolist()]
            more = ", …" if len(lost) > SHOWN else ""
            self.remarks.append(f"{len(lost):,} links lead to no section and no passage: {', '.join(shown)}{more}")
        else:
            self._problems.add_rows(
                Kind.UNKNOWN_CITATION, lost, lambda i: (*self._origin(int(citing[i])), repr(cited[i].as_py()))
            )
        kept = (row >= 0) & (row != citing)
        pairs = np.unique(pair_keys(citing[kept], row[kept]))
        self.source, self.target = (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32)

    def _cut(self, owner: np.ndarray, ids_name_documents: bool) -> None:
        """Makes the nodes of each owner a document, and those without an owner the rest of the old document.

        The id of a new document is its owner's id. If that id does not begin with the old document's id, the old
        document's id comes before it.
        """
        n, old = len(owner), self.document_ids
        label = np.where(owner >= 0, len(old) + owner, self.document)
        rows = np.lexsort((self.position, self.document))
        labels, first, code = np.unique(label[rows], return_index=True, return_inverse=True)
        rank = np.empty(len(labels), dtype=np.int32)
        appearance = np.argsort(first)
        rank[appearance] = np.arange(len(labels))
        head = rows[first[appearance]]  # the first node of each new document
        whole = old.take(pa.array(self.document[head]))
        part = self.ids.take(pa.array(np.maximum(owner[head], 0))).combine_chunks()
        names = pc.binary_join_element_wise(whole, part, pa.scalar(" > ", TEXT))
        named = ids_name_documents | (owner[head] >= self._row_count)
        names = pc.if_else(pa.array(named), part, names)
        names = pc.if_else(pa.array(owner[head] >= 0), names, whole)
        self.document_ids = _with_own_ids(pa.chunked_array([], TEXT), names).combine_chunks()
        self.document = np.empty(n, dtype=np.int32)
        self.document[rows] = rank[code]
        self.parent = np.where(owner == np.arange(n), -1, self.parent)
        self.position = positions(
            self.document, self.parent, np.zeros(n, np.int64), self.position.astype(np.int64), np.full(n, True)
        )

    def _edges(self, passages: int) -> dict[str, int]:
        internal = int((self.document[self.source] == self.document[self.target]).sum())
        counts = {
            "order": passages - len(np.unique(self.document[:passages])),
            "structural": int((self.parent >= 0).sum()),
            "internal": internal,
            "external": len(self.source) - internal,
        }
        return {**counts, **{f"{kind}_inverse": count for kind, count in counts.items()}}

    def _unlinked(self, passages: int) -> int:
        linked = self.parent >= 0
        for rows in (self.parent[linked], self.source, self.target):
            linked[rows] = True
        return int((~linked[:passages]).sum())


class _Sections:
    """The sections of a source, the passages that it repeats left out: ids, titles [s], lines [s], and places."""

    def __init__(self, source: Source, corpus: Corpus, problems: Problems) -> None:
        blocks = list(source.sections(problems))
        self.file = blocks[0].file if blocks else ""
        self.places = Places()
        ids = pa.chunked_array([block.ids for block in blocks], pa.string()).cast(TEXT).combine_chunks()
        titles = pa.chunked_array([block.titles for block in blocks], pa.string()).cast(TEXT).combine_chunks()
        lines = np.concatenate([np.zeros(0, np.uint32), *(np.asarray(block.lines, np.uint32) for block in blocks)])
        keep = _rows(ids, corpus.ids.combine_chunks()) < 0
        repeated = duplicates(ids)
        problems.add_rows(
            Kind.DUPLICATE_SECTION,
            np.flatnonzero(repeated),
            lambda row: (self.file, int(lines[row]), repr(ids[row].as_py())),
        )
        keep &= ~repeated
        self.ids, self.titles, self.lines = ids.filter(pa.array(keep)), titles.filter(pa.array(keep)), lines[keep]
        self._add_places(blocks, keep)

    def _add_places(self, blocks: list[SectionRows], keep: np.ndarray) -> None:
        start = 0
        for block in blocks:
            kept = pa.array(keep[start : start + len(block.ids)], pa.bool_())
            self.places.add(block.ids.filter(kept), block.places.filter(kept))
            start += len(block.ids)


def _with_own_ids(ids: pa.ChunkedArray, new_ids: pa.Array) -> pa.ChunkedArray:
    """Both columns of ids; one that is made of a path ends with `~` for each time that the id before was taken."""
    while (taken := (_rows(new_ids, ids) >= 0) | duplicates(new_ids)).any():
        new_ids = pc.if_else(pa.array(taken), pc.binary_join_element_wise(new_ids, *pa.array(["~", ""], TEXT)), new_ids)
    return pa.chunked_array([*ids.chunks, new_ids], TEXT)


def _rows(values: pa.Array, value_set: pa.Array) -> np.ndarray:
    """For each value its row in `value_set`, int64; -1: null, or not there."""
    rows = pc.index_in(values, value_set=value_set, skip_nulls=True)
    return np.asarray(rows.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int64)


def _united(parts: Sequence[pa.Array]) -> tuple[pa.Array, list[np.ndarray]]:
    """The distinct texts of all parts in order of appearance, and for each part the rows of its texts."""
    coded = pa.concat_arrays(parts).dictionary_encode()
    rows = coded.indices.to_numpy(zero_copy_only=False)
    return coded.dictionary, np.split(rows, np.cumsum([len(part) for part in parts])[:-1])
