"""Reads DPR's files: psgs_*.tsv, retriever training JSON, question–answers CSV (plain or .gz), in any subfolder.

    psgs_w100.tsv                 id, text, title, or as its header line says; quoted as in CSV
    [biencoder-]<set>-<split>.json  question, answers, positive_ctxs, …; a passage's id in `passage_id` or `psg_id`
    <set>-<split>.qa.csv, .csv    question and its answers as a list, tab-separated, quoted as in CSV

DPR's own reader takes columns by their number even if a header has them in another order, and takes quotes at both ends
of a text away. Here the header counts, and a quote that belongs to the text stays.

The negatives in training files are not read, because the pipeline finds other negatives. A question in both a JSON and
a CSV file of a split is one query with the answers of both files. Questions have no ids and are numbered by split.
"""

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.data.delimited import Header, quoted_rows, read_passages
from gnn_encoder.data.json_array import read_array
from gnn_encoder.data.lines import find
from gnn_encoder.data.rows import FolderSource, Label, PassageRows, Query
from gnn_encoder.data.validation import Kind, Problems

PASSAGES = re.compile(r"psgs_.*\.tsv(\.gz)?")
TRAINING = re.compile(r"(?:biencoder-)?(?P<set>.+)-(?P<split>train|dev|test)\.json(\.gz)?")
ANSWERS = re.compile(r"(?P<set>.+)-(?P<split>train|dev|test)(\.qa)?\.csv(\.gz)?")
ANSWER_COLUMNS = {"question": {"question", "questions"}, "answers": {"answer", "answers"}}
STRING = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
LIST = re.compile(rf"\s*\[\s*(?:{STRING}\s*(?:,\s*{STRING}\s*)*+,?\s*)?\]\s*")


class Dpr(FolderSource):
    """A folder with the files of one question set."""

    format = "dpr"
    untyped_fields = True

    def __init__(self, folder: Path) -> None:
        names = {
            (path.parent, path.name.removesuffix(".gz"))
            for path in folder.rglob("*")
            if any(pattern.fullmatch(path.name) for pattern in (PASSAGES, TRAINING, ANSWERS))
        }
        files = sorted(path for name in names if (path := find(*name)))
        self.training = [(m, path) for path in files if (m := TRAINING.fullmatch(path.name))]
        self.answers = [(m, path) for path in files if (m := ANSWERS.fullmatch(path.name))]
        self.sets = sorted({m["set"] for m, _ in (*self.training, *self.answers)})
        others = [path for _, path in (*self.training, *self.answers)]
        super().__init__(folder, [path for path in files if PASSAGES.fullmatch(path.name)], others)

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus."""
        if len(self.corpora) != 1:
            detail = f"found {', '.join(p.name for p in self.corpora)}: keep one" if self.corpora else ""
            problems.add(Kind.MISSING_FILE, str(self.folder / "psgs_w100.tsv"), detail=detail)
        for path in self.corpora[:1]:
            yield from read_passages(path, problems, dpr=True)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Questions with answers, and the labels from training files."""
        if len(self.sets) != 1:
            detail = f"found the sets {', '.join(self.sets)}: keep one" if self.sets else ""
            problems.add(Kind.MISSING_FILE, str(self.folder / "nq-train.json"), detail=detail)
            return
        for split in SPLITS:
            listed = [row for m, path in self.answers if m["split"] == split for row in _answer_rows(path, problems)]
            answers = {question: strings for question, strings, _, _ in listed}
            ids: dict[str, str] = {}
            for path in (path for m, path in self.training if m["split"] == split):
                yield from _training_rows(path, split, answers, ids, problems)
            for question, strings, name, line in listed:
                if question not in ids:
                    yield Query(_numbered(question, split, ids), question, strings, split, name, line)


def _numbered(question: str, split: str, ids: dict[str, str]) -> str:
    return ids.setdefault(question, f"{split}-{len(ids)}")


def _training_rows(
    path: Path, split: str, answers: dict[str, list[str]], ids: dict[str, str], problems: Problems
) -> Iterator[Query | Label]:
    """Yields the queries of a training file that are not in `ids` yet, and the labels of all queries of the file."""
    for line, record in read_array(path, problems):
        if wrong := _wrong(record):
            problems.add(Kind.BAD_ROW, path.name, line, wrong)
            continue
        question = record["question"]
        if question not in ids:
            all_answers = list(dict.fromkeys([*record["answers"], *answers.get(question, [])]))
            yield Query(_numbered(question, split, ids), question, all_answers, split, path.name, line)
        for context in record["positive_ctxs"]:
            yield Label(ids[question], str(_passage_id(context)), 1, split, path.name, line)


def _wrong(record: Any) -> str:
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
    """(question, answers, file, line) of a question–answers CSV; as DPR does, leaves further columns out."""
    header = Header.of(path, True)
    column_of = header.columns(ANSWER_COLUMNS)
    is_named = len(column_of) == len(ANSWER_COLUMNS)
    column_of, below = (column_of, header.line) if is_named else ({"question": 0, "answers": 1}, 0)
    columns = range(max(column_of.values()) + 1, max(len(header.fields), 4) + 1)
    for rows in quoted_rows(path, columns, problems, path.name, below):
        questions, lists = (rows.columns[column_of[field]].to_pylist() for field in ANSWER_COLUMNS)
        for number, question, listed in zip(rows.lines, questions, lists, strict=True):
            try:
                yield question, _string_list(listed), path.name, number
            except (ValueError, SyntaxError):
                problems.add(Kind.BAD_ROW, path.name, number, "not a question, a tab and a list of answers")


def _string_list(text: str) -> list[str]:
    """Parses a list of strings in Python's syntax; raises ValueError or SyntaxError for any other text.

    `LIST` checks the text before Python's parser, because an expression of 90,000 minus signs took all memory.
    """
    if not LIST.fullmatch(text):
        raise ValueError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes that Python does not know
        return list(ast.literal_eval(text))
