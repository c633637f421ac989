"""DPR's files: psgs_*.tsv, retriever training JSON, question–answers CSV (plain or .gz), in any subfolder.

    psgs_w100.tsv                 id, text (quoted as in CSV), title; a header line
    [biencoder-]<set>-<split>.json  question, answers, positive_ctxs, …; a passage's id in `passage_id` or `psg_id`
    <set>-<split>.qa.csv, .csv    question and its answers as a list, tab-separated

The negatives of the training files are not read: the pipeline finds its own. A question in both a JSON
and a CSV file of a split is one query with the answers of both; questions have no ids in these files
and are numbered by split.
"""

import ast
import csv
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnn_encoder.data.delimited import read_passages
from gnn_encoder.data.json_array import read_array
from gnn_encoder.data.lines import files_digest, find, read_blocks
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems

PASSAGES = re.compile(r"psgs_.*\.tsv(\.gz)?")
TRAINING = re.compile(r"(?:biencoder-)?(?P<set>.+)-(?P<split>train|dev|test)\.json(\.gz)?")
ANSWERS = re.compile(r"(?P<set>.+)-(?P<split>train|dev|test)(\.qa)?\.csv(\.gz)?")
STRING = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
LIST = re.compile(rf"\s*\[\s*(?:{STRING}\s*(?:,\s*{STRING}\s*)*+,?\s*)?\]\s*")
BATCH = 1000
"""Questions handed on at a time: training files hold some 100 KB of negatives for each."""


class Dpr:
    """A folder with the files of one question set."""

    format = "dpr"
    unit = "bytes"

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = str(folder), folder
        self.facts: dict[str, str] = {}
        self.remarks: list[str] = []
        names = {
            (path.parent, path.name.removesuffix(".gz"))
            for path in folder.rglob("*")
            if any(pattern.fullmatch(path.name) for pattern in (PASSAGES, TRAINING, ANSWERS))
        }
        files = sorted(path for name in names if (path := find(*name)))
        self.corpora = [path for path in files if PASSAGES.fullmatch(path.name)]
        self.training = [(m["split"], path) for path in files if (m := TRAINING.fullmatch(path.name))]
        self.answers = [(m["split"], path) for path in files if (m := ANSWERS.fullmatch(path.name))]
        matches = (TRAINING.fullmatch(p.name) or ANSWERS.fullmatch(p.name) for p in files)
        self.sets = sorted({m["set"] for m in matches if m})
        self.work = sum(path.stat().st_size for path in self.corpora)

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus."""
        if len(self.corpora) != 1:
            detail = f"found {', '.join(p.name for p in self.corpora)}: keep one" if self.corpora else ""
            problems.add(Kind.MISSING_FILE, str(self.folder / "psgs_w100.tsv"), detail=detail)
        for path in self.corpora[:1]:
            yield from read_passages(path, problems, dpr=True)

    def questions(self, problems: Problems) -> Iterator[QueryRows | LabelRows]:
        """Questions with their answers, and the labels of those in training files."""
        if len(self.sets) != 1:
            detail = f"found the sets {', '.join(self.sets)}: keep one" if self.sets else ""
            problems.add(Kind.MISSING_FILE, str(self.folder / "nq-train.json"), detail=detail)
            return
        for split in ("train", "dev", "test"):
            answers = [row for s, path in self.answers if s == split for row in _answer_rows(path, problems)]
            known = {question: found for question, found, _, _ in answers}
            seen: dict[str, str] = {}
            for path in (path for s, path in self.training if s == split):
                yield from _training_rows(path, split, known, seen, problems)
            for name in dict.fromkeys(name for _, _, name, _ in answers):
                rows = [row for row in answers if row[2] == name and _number(row[0], split, seen)[1]]
                ids = [seen[row[0]] for row in rows]
                yield QueryRows(ids, [r[0] for r in rows], [r[1] for r in rows], split, name, [r[3] for r in rows])

    def digest(self) -> str:
        """Over the contents of the files that are read."""
        return files_digest([*self.corpora, *(path for _, path in (*self.training, *self.answers))])


def _number(question: str, split: str, seen: dict[str, str]) -> tuple[str, bool]:
    """The question's id, and whether it is new."""
    new = question not in seen
    return seen.setdefault(question, f"{split}-{len(seen)}"), new


def _training_rows(
    path: Path, split: str, known: dict[str, list[str]], seen: dict[str, str], problems: Problems
) -> Iterator[QueryRows | LabelRows]:
    queries = QueryRows([], [], [], split, path.name, [])
    labels = LabelRows([], [], [], split, path.name, [])
    query_lines: list[int] = []
    label_lines: list[int] = []
    for line, record in read_array(path, problems):
        if wrong := _wrong(record):
            problems.add(Kind.BAD_ROW, path.name, line, wrong)
            continue
        identity, new = _number(record["question"], split, seen)
        if new:
            queries.ids.append(identity)
            queries.texts.append(record["question"])
            queries.answers.append(list(dict.fromkeys([*record["answers"], *known.get(record["question"], [])])))
            query_lines.append(line)
        for context in record["positive_ctxs"]:
            labels.query_ids.append(identity)
            labels.passage_ids.append(str(_passage_id(context)))
            labels.relevance.append(1)
            label_lines.append(line)
        if len(query_lines) >= BATCH:
            queries.lines, labels.lines = query_lines, label_lines
            yield from (queries, labels)
            queries = QueryRows([], [], [], split, path.name, [])
            labels = LabelRows([], [], [], split, path.name, [])
            query_lines, label_lines = [], []
    queries.lines, labels.lines = query_lines, label_lines
    yield from (queries, labels)


def _wrong(record: Any) -> str:
    """What is wrong with an element of a training file."""
    if not isinstance(record, dict) or not isinstance(record.get("question"), str):
        return '"question" is missing or not a string'
    answers = record.setdefault("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        return '"answers" is not a list of strings'
    contexts = record.get("positive_ctxs")
    if not isinstance(contexts, list) or not all(isinstance(context, dict) for context in contexts):
        return '"positive_ctxs" is missing or not a list of objects'
    if not all(isinstance(_passage_id(context), str | int) for context in contexts):
        return 'a positive context has neither "passage_id" nor "psg_id", or it is no string or number'
    return ""


def _passage_id(context: dict[str, Any]) -> Any:
    return context.get("passage_id", context.get("psg_id"))


def _answer_rows(path: Path, problems: Problems) -> Iterator[tuple[str, list[str], str, int]]:
    """(question, answers, file, line) of a question–answers CSV."""
    for block in read_blocks(path, problems):
        for number, line in zip(block.numbers, block.lines, strict=True):
            try:
                question, listed = next(csv.reader([line], delimiter="\t"))
                yield question, _listed(listed), path.name, number
            except (ValueError, SyntaxError, csv.Error):
                problems.add(Kind.BAD_ROW, path.name, number, "not a question, a tab and a list of answers")


def _listed(text: str) -> list[str]:
    """The strings of a list as Python writes it.

    Only such a list reaches Python's parser: of an expression in its place, 90,000 minus signs took all memory.

    Raises:
        ValueError, SyntaxError: it is no such list.
    """
    if not LIST.fullmatch(text):
        raise ValueError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes that Python does not know
        answers: list[str] = ast.literal_eval(text)
    return answers
