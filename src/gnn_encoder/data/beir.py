"""BEIR folders: corpus.jsonl, queries.jsonl (each plain or .gz) and qrels/<split>.tsv with a header line.

A folder may have a pool, too: candidates/<split>.tsv with the ids of a query and a passage in each line.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from gnn_encoder.data.delimited import read_candidates, read_labels
from gnn_encoder.data.lines import Block, find, find_or_report, read_blocks, read_lines
from gnn_encoder.data.rows import CandidateRows, FolderSource, Label, PassageRows, Query
from gnn_encoder.data.validation import Kind, Problems

SPLIT_NAMES = {"train": ("train",), "dev": ("validation", "valid", "dev"), "test": ("test",)}
"""Our split → names of the split in qrels; the last existing name is read."""


class Beir(FolderSource):
    """A folder in BEIR's layout. A query belongs to the split of the qrels file that names it."""

    format = "beir"

    def __init__(self, folder: Path) -> None:
        self.qrels, self.pools = _splits(folder / "qrels"), _splits(folder / "candidates")
        corpus, queries = find(folder, "corpus.jsonl"), find(folder, "queries.jsonl")
        read = {*self.qrels.values(), *self.pools.values()}
        super().__init__(folder, [corpus], [queries, *sorted(read)])
        others = {path for name in ("qrels", "candidates") for path in (folder / name).glob("*") if path.is_file()}
        self.remarks = [
            f"{f'{path.parent.name}/{path.name}'!r} was not read: splits are train, dev and test"
            for path in sorted(others - read)
        ]

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus; fields other than `_id`, `title` and `text` are ignored."""
        path = find_or_report(self.folder, "corpus.jsonl", problems)
        for block in read_blocks(path, problems) if path else ():
            columns = json_lines(block, required=["_id", "text"], optional=["title"])
            if columns is not None and not pc.any(pc.equal(columns[0], "")).as_py():
                ids, texts, titles = columns
                yield PassageRows(ids, titles, texts, block.name, block.numbers, block.consumed)
            else:
                records = list(_records(block.lines(problems), block.name, problems))
                ids, titles, texts = ([record[key] for _, record in records] for key in ("_id", "title", "text"))
                lines = [number for number, _ in records]
                yield PassageRows(ids, titles, texts, block.name, lines, block.consumed)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries, then the labels of each split."""
        if path := find_or_report(self.folder, "queries.jsonl", problems):
            for number, record in _records(read_lines(path, problems), path.name, problems):
                yield Query(record["_id"], record["text"], [], None, path.name, number)
        if not self.qrels:
            problems.add(Kind.MISSING_FILE, str(self.folder / "qrels" / "train.tsv"), detail="(dev and test too)")
        for split, qrels in self.qrels.items():
            yield from read_labels(qrels, split, problems, trec=False, name=f"qrels/{qrels.name}")

    def candidates(self, problems: Problems) -> Iterator[CandidateRows]:
        """The files in `candidates`. A query's split is that of its labels, whichever file names it."""
        for path in self.pools.values():
            yield from read_candidates(path, problems, f"{path.parent.name}/{path.name}")


def _splits(folder: Path) -> dict[str, Path]:
    """Returns {split: its file NAME.tsv or NAME.tsv.gz}."""
    return {
        split: path for split, names in SPLIT_NAMES.items() for name in names if (path := find(folder, f"{name}.tsv"))
    }


def json_lines(block: Block, required: list[str], optional: list[str]) -> list[pa.Array] | None:
    """Text fields of the block's objects, string [n] each; None if a line is no object or has no required field.

    An optional field may be missing or null, and is then empty.
    """
    # Arrow 25 crashes the process if the first value is null; it reads later null values as objects.
    if not block.data.startswith(b"{"):
        return None
    schema = pa.schema([(name, pa.string()) for name in (*required, *optional)])
    try:
        block.data.decode("utf-8")  # Arrow does not check the encoding.
        table = pyarrow.json.read_json(
            pa.BufferReader(block.data),
            pyarrow.json.ReadOptions(block_size=len(block.data) + 1, use_threads=False),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if len(table) != len(block.numbers) or any(table[name].null_count for name in required):
        return None
    return [pc.fill_null(column.combine_chunks(), "") for column in table.columns]


def _records(lines: Iterable[tuple[int, str]], name: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of the lines with the required fields; a missing `title` becomes empty."""
    for number, line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, an integer of over 4,300 digits; nested too deeply
            problems.add(Kind.BAD_JSON, name, number, str(error))
            continue
        if wrong := _normalize(record):
            problems.add(Kind.BAD_ROW, name, number, wrong)
        else:
            yield number, record


def _normalize(record: Any) -> str:
    """Makes `_id`, `title` and `text` strings; returns what is wrong if a field cannot become a string."""
    if not isinstance(record, dict):
        return "not a JSON object"
    if type(record.get("_id")) is int:
        record["_id"] = str(record["_id"])
    if record.get("title") is None:
        record["title"] = ""
    if not isinstance(record.get("_id"), str) or not record["_id"]:
        return '"_id" is missing or not a string'
    if not isinstance(record.get("text"), str):
        return '"text" is missing or not a string'
    return "" if isinstance(record["title"], str) else '"title" is not a string'
