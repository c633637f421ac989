"""BEIR folders: corpus.jsonl, queries.jsonl (each plain or .gz) and qrels/<split>.tsv with a header line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from gnn_encoder.data.columnar import json_lines
from gnn_encoder.data.delimited import read_labels
from gnn_encoder.data.lines import Block, files_digest, find, find_or_report, read_blocks, read_raw
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "valid", "validation"), "test": ("test",)}
"""Our split → the names it goes by; the first that is there is read."""


class Beir:
    """A folder in BEIR's layout. A query belongs to the split of the qrels file that it stands in."""

    format = "beir"
    unit = "bytes"

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = str(folder), folder
        self.facts: dict[str, str] = {}
        self.qrels: dict[str, Path] = {}
        for split, names in SPLIT_NAMES.items():
            found = [path for name in names if (path := find(folder / "qrels", f"{name}.tsv"))]
            if found:
                self.qrels[split] = found[0]
        others = {path for path in (folder / "qrels").glob("*") if path.is_file()} - set(self.qrels.values())
        self.remarks = [
            f"{f'qrels/{path.name}'!r} was not read: splits are train, dev and test" for path in sorted(others)
        ]
        corpus = find(folder, "corpus.jsonl")
        self.work = corpus.stat().st_size if corpus else 0

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus; fields other than `_id`, `title` and `text` are not looked at."""
        path = find_or_report(self.folder, "corpus.jsonl", problems)
        if path is None:
            return
        for raw in read_raw(path, problems):
            found = json_lines(raw, required=["_id", "text"], optional=["title"])
            if found is not None and not pc.any(pc.equal(found[0], "")).as_py():
                ids, texts, titles = found
                yield PassageRows(ids, titles, texts, path.name, raw.numbers, raw.consumed)
            else:
                records, lines = _records(raw.decode(problems), path.name, problems)
                ids, titles, texts = ([r[key] for r in records] for key in ("_id", "title", "text"))
                yield PassageRows(ids, titles, texts, path.name, lines, raw.consumed)

    def questions(self, problems: Problems) -> Iterator[QueryRows | LabelRows]:
        """Queries, then the labels of each split."""
        path = find_or_report(self.folder, "queries.jsonl", problems)
        if path is not None:
            for block in read_blocks(path, problems):
                records, lines = _records(block, path.name, problems)
                ids, texts = ([r[key] for r in records] for key in ("_id", "text"))
                yield QueryRows(ids, texts, [[] for _ in records], None, path.name, lines)
        if not self.qrels:
            problems.add(Kind.MISSING_FILE, str(self.folder / "qrels" / "train.tsv"), detail="(dev and test too)")
        for split, qrels in self.qrels.items():
            yield from read_labels(qrels, split, problems, trec=False, name=f"qrels/{qrels.name}")

    def digest(self) -> str:
        """Over the contents of the files that are read."""
        found = [find(self.folder, name) for name in ("corpus.jsonl", "queries.jsonl")]
        return files_digest([path for path in (*found, *self.qrels.values()) if path])


def _records(block: Block, name: str, problems: Problems) -> tuple[list[dict[str, Any]], list[int]]:
    """The objects of a block's lines that have what they must, with `title` filled in, and their lines."""
    records, lines = [], []
    for number, line in zip(block.numbers, block.lines, strict=True):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, an integer of over 4,300 digits; nested too deeply
            problems.add(Kind.BAD_JSON, name, number, str(error))
            continue
        if wrong := _normalize(record):
            problems.add(Kind.BAD_ROW, name, number, wrong)
            continue
        records.append(record)
        lines.append(number)
    return records, lines


def _normalize(record: Any) -> str:
    """Make `_id`, `title` and `text` strings; what is wrong if that cannot be done."""
    if not isinstance(record, dict):
        return "not a JSON object"
    identity = record.get("_id")
    if type(identity) is int:
        record["_id"] = str(identity)
    elif not isinstance(identity, str) or not identity:
        return '"_id" is missing or not a string'
    if not isinstance(record.get("text"), str):
        return '"text" is missing or not a string'
    title = record.get("title")
    if title is None:
        record["title"] = ""
    elif not isinstance(title, str):
        return '"title" is not a string'
    return ""
