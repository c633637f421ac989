"""BEIR folders: corpus.jsonl, queries.jsonl (each plain or .gz) and qrels/<split>.tsv with a header line.

A passage is its title and its text. A text that is missing or null is empty if there is a title, as it is for BEIR's
users, who join both.

A folder may have a pool, too: candidates/<split>.tsv with the ids of a query and a passage in each line. It may have
documents: columns of the corpus (`beir_places`), and nodes.jsonl, whose rows without a passage are sections.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from gnn_encoder.data import beir_places
from gnn_encoder.data.beir_places import OtherFields
from gnn_encoder.data.delimited import read_candidates, read_labels
from gnn_encoder.data.fields import in_metadata, of_records
from gnn_encoder.data.lines import Block, find, find_or_report, json_objects, read_blocks, read_lines
from gnn_encoder.data.rows import CandidateRows, FolderSource, Label, PassageRows, Query, SectionRows, storable
from gnn_encoder.data.validation import Kind, Problems

SPLIT_NAMES = {"train": ("train",), "dev": ("validation", "valid", "dev"), "test": ("test",)}
"""Our split → names of the split in qrels; the last existing name is read."""
PLACED = beir_places.FIELDS.keys() - {"doc_id"}
"""Fields that say where a passage stands in its document, and are no further fields."""


LABEL_FOLDERS = ("qrels", "candidates")


class BeirQueries(FolderSource):
    """A folder with queries, labels and pools in BEIR's layout. A query belongs to the split of its qrels file.

    Args:
        label_folders: those of `LABEL_FOLDERS` that hold nothing but labels and pools.
    """

    def __init__(
        self, folder: Path, corpora: Iterable[Path | None], others: Iterable[Path | None] = (),
        label_folders: Iterable[str] = LABEL_FOLDERS,
    ) -> None:  # fmt: skip
        self.qrels, self.pools = _splits(folder / "qrels"), _splits(folder / "candidates")
        self.has_queries = bool(self.qrels) or find(folder, "queries.jsonl") is not None
        read = {*self.qrels.values(), *self.pools.values()}
        super().__init__(folder, corpora, [*others, find(folder, "queries.jsonl"), *sorted(read)])
        unread = {path for name in label_folders for path in (folder / name).glob("*") if path.is_file()}
        self.remarks = [
            f"{f'{path.parent.name}/{path.name}'!r} was not read: splits are train, dev and test"
            for path in sorted(unread - read)
        ]

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries, then the labels of each split; nothing if the folder has neither."""
        if not self.has_queries:
            return
        if path := find_or_report(self.folder, "queries.jsonl", problems):
            for number, record in _records(read_lines(path, problems), path.name, problems):
                value = _value(record, self.query_field) if self.query_field else ""
                yield Query(record["_id"], record["text"], [], None, path.name, number, value)
        if not self.qrels:
            problems.add(Kind.MISSING_FILE, str(self.folder / "qrels" / "train.tsv"), detail="(dev and test too)")
        for split, qrels in self.qrels.items():
            yield from read_labels(qrels, split, problems, f"qrels/{qrels.name}", self.remarks)

    def candidates(self, problems: Problems) -> Iterator[CandidateRows]:
        """The files in `candidates`. A query's split is that of its labels, whichever file names it."""
        for path in self.pools.values():
            yield from read_candidates(path, problems, f"{path.parent.name}/{path.name}")


class Beir(BeirQueries):
    """A folder in BEIR's layout."""

    format = "beir"

    def __init__(self, folder: Path) -> None:
        self.nodes = find(folder, "nodes.jsonl")
        super().__init__(folder, [find(folder, "corpus.jsonl")], [self.nodes])

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus; fields other than `_id`, `title`, `text` and those of `beir_places` are further fields."""
        path, placed = find_or_report(self.folder, "corpus.jsonl", problems), False
        if path is None:
            return
        others = OtherFields(lambda: json_objects(read_lines(path, Problems()), path.name, Problems()))
        for block in read_blocks(path, problems):
            with_places = beir_places.MARK in block.data and "doc_id" not in others.first
            columns, places, lines, fields = _read(block, ["_id", "title", "text"], with_places, problems, others)
            placed = placed or places is not None
            ids, titles, texts = columns
            yield PassageRows(ids, titles, texts, block.name, lines, block.consumed, places, fields)
        remarks = others.remarks(path.name)
        if self.nodes and not placed:
            remarks.append(f"{self.nodes.name} was not read: no passage has a doc_id")
        self.remarks += [remark for remark in remarks if remark not in self.remarks]

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """The rows of nodes.jsonl; those of passages may be among them."""
        for block in read_blocks(self.nodes, problems) if self.nodes else ():
            (ids, titles), places, lines, _ = _read(block, ["_id", "title"], True, problems)
            yield SectionRows(pa.array(ids, pa.string()), pa.array(titles, pa.string()), places, block.name, lines)


def _splits(folder: Path) -> dict[str, Path]:
    return {
        split: path for split, names in SPLIT_NAMES.items() for name in names if (path := find(folder, f"{name}.tsv"))
    }


def _read(
    block: Block, names: list[str], with_places: bool, problems: Problems, others: OtherFields | None = None
) -> tuple[list[Any], pa.Table | None, list[int] | range, dict[str, pa.Array]]:
    """Text columns of a block's rows, their places if they are asked for, their lines, and their further fields; bad
    rows are left out. Passages have no places if "doc_id" is only in an object of theirs, such as "metadata"."""
    required = [name for name in names if name != "title"]
    of_passages = "text" in names
    known = {*names, *(PLACED if with_places else ())}
    for more in beir_places.schemas(others.first if others else ()) if with_places else (None,):
        arrays = None if more else json_lines(block, required, ["title"], None, False)
        alone = arrays is not None
        arrays = arrays if alone else json_lines(block, required, ["title"], more)
        if arrays is None or pc.any(pc.equal(arrays[0], "")).as_py():
            continue
        columns = dict(zip([*required, "title", *(more.names if more else ())], arrays, strict=True))
        places = beir_places.places_of(columns, block) if with_places else None
        if places is not None or not with_places:
            if of_passages and places is not None and _names_no_document(places):
                places, known = None, set(names)
            fields = {} if alone or not of_passages else further_fields(block, known)
            return [columns[name] for name in names], places, block.numbers, fields
    rows = list(_records(block.lines(problems), block.name, problems, of_passages, with_places, others))
    records = [record for _, record in rows]
    places = beir_places.table_of(records) if with_places else None
    if of_passages and places is not None and _names_no_document(places):
        # These records have lost fields that are no places, so the rows that are left are read again.
        left = {number for number, _ in rows}
        again = (line for line in block.lines(Problems()) if line[0] in left)
        records = [record for _, record in _records(again, block.name, Problems())]
        places, known = None, set(names)
    texts = [[record[name] for record in records] for name in names]
    return texts, places, [number for number, _ in rows], of_records(records, known)


def _names_no_document(places: pa.Table) -> bool:
    return bool(places["document"].null_count == len(places))


def further_fields(block: Block, known: set[str]) -> dict[str, pa.Array]:
    """The fields of the block's objects that are not `known`, and of their `metadata`, in types that Arrow infers.

    The lines are those that `json_lines` could read. Values of several types, and whole numbers that Arrow rounds, are
    read as Python's.
    """
    options = pyarrow.json.ReadOptions(block_size=len(block.data) + 1, use_threads=False)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(block.data), options)
        dated = pa.schema([(field.name, _as_texts(field.type)) for field in table.schema if _has_dates(field.type)])
        if dated.names:  # their texts say more than their times
            kept = pyarrow.json.ParseOptions(explicit_schema=dated, unexpected_field_behavior="ignore")
            texts = pyarrow.json.read_json(pa.BufferReader(block.data), options, kept)
            for name in dated.names:
                table = table.set_column(table.column_names.index(name), name, texts[name])
        return in_metadata({name: table[name].combine_chunks() for name in table.column_names if name not in known})
    except pa.ArrowInvalid:
        records = [record for _, record in json_objects(block.lines(Problems()), block.name, Problems())]
        return of_records(records, known)


def _has_dates(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or any(_has_dates(kind.field(i).type) for i in range(kind.num_fields))


def _as_texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, _as_texts(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_as_texts(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def json_lines(
    block: Block, required: list[str], optional: list[str], more: pa.Schema | None = None, others: bool = True
) -> list[pa.Array] | None:
    """Text fields of the block's objects, string [n] each, and the fields in `more`.

    An optional field may be missing or null, and is then empty; a field in `more` is then null. None if a line is no
    object, has no required field, or has a field of another type; without `others`, also if a line has any other field.
    """
    # Arrow 25 crashes the process if the first value is null; it reads later null values as objects.
    if not block.data.startswith(b"{"):
        return None
    texts = (*required, *optional)
    schema = pa.schema([*((name, pa.string()) for name in texts), *(more or ())])
    try:
        block.data.decode("utf-8")  # Arrow does not check the encoding.
        table = pyarrow.json.read_json(
            pa.BufferReader(block.data),
            pyarrow.json.ReadOptions(block_size=len(block.data) + 1, use_threads=False),
            pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore" if others else "error"
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if len(table) != len(block.numbers) or any(table[name].null_count for name in required):
        return None
    columns = [column.combine_chunks() for column in table.columns]
    return [*(pc.fill_null(column, "") for column in columns[: len(texts)]), *columns[len(texts) :]]


def _records(
    lines: Iterable[tuple[int, str]],
    name: str,
    problems: Problems,
    has_text: bool = True,
    with_places: bool = False,
    others: OtherFields | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of the lines with the required fields; a missing `title` becomes empty."""
    for number, record in json_objects(lines, name, problems):
        wrong = _normalize(record, has_text)
        if not wrong and with_places:
            in_document = not has_text or record.get("doc_id") is not None
            wrong = beir_places.normalize(record, others.first if others else ())
            if wrong and in_document and others and others.sought():
                wrong = beir_places.normalize(record, others.first)
            if wrong and not in_document:  # data without documents have fields of these names, too
                wrong = ""
                record.update(dict.fromkeys(beir_places.FIELDS))
        if wrong:
            problems.add(Kind.BAD_ROW, name, number, wrong)
        elif not with_places or storable(beir_places.texts_of(record, has_text), name, number, problems):
            yield number, record


def _value(record: dict[str, Any], field: str) -> str:
    """Returns a record's value of a field, or that in its `metadata`; empty if it is no text, number or truth value."""
    metadata = record.get("metadata")
    value = record.get(field, metadata.get(field) if isinstance(metadata, dict) else None)
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _normalize(record: dict[str, Any], has_text: bool) -> str:
    """Makes `_id`, `title` and `text` strings; returns what is wrong if a field cannot become a string."""
    if type(record.get("_id")) is int:
        record["_id"] = str(record["_id"])
    if record.get("title") is None:
        record["title"] = ""
    if not isinstance(record.get("_id"), str) or not record["_id"]:
        return '"_id" is missing or not a string'
    if not isinstance(record["title"], str):
        return '"title" is not a string'
    if has_text and record.get("text") is None and record["title"]:
        record["text"] = ""
    return "" if not has_text or isinstance(record.get("text"), str) else '"text" is missing or not a string'
