"""Finds and removes forgotten texts in files that are no artifacts: logs, caches, copies, exports, and label files."""

import csv
import gzip
import json
import re
import shutil
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.finished_run import bundles_of
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.errors import UserError
from gnn_encoder.inference.answers import JOURNAL
from gnn_encoder.judging.grading import grade_in, read_judgements
from gnn_encoder.judging.people import PeoplesFile
from gnn_encoder.judging.pool import ANSWERS, FIGURES, JUDGEMENTS, LABELS, ORDER, PEOPLE, POOL, QRELS
from gnn_encoder.serving.exports import export
from gnn_encoder.serving.exports.job import FACTS

BEGINNING = 100
"""Characters by which a text is found: a log or a report may have its beginning alone."""
SHORT = 20
"""A text of fewer characters counts only as a whole line, cell or JSON string: other texts may contain it."""
BLOCK = 2**24
"""Bytes of a file that are searched at a time."""
END = 8
"""Bytes at the end of a form by which it is found."""


class Forms:
    """Texts as files write them: as they are, and as JSON, HTML and Python escape them.

    A table of hashes says where a form may end in a content, then it is compared: thousands take as long as one.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        ways = (str, escape, json.dumps, partial(json.dumps, ensure_ascii=False), lambda text: repr(text)[1:-1])
        # Quotes around a text are no part of it.
        forms = {way(text).strip('"').encode("utf-8", "surrogatepass") for text in texts for way in ways}
        self._short = [re.escape(form) for form in forms if 0 < len(form) < END]
        self._by_end = defaultdict[bytes, list[bytes]](list)
        for form in forms:
            if len(form) >= END:
                self._by_end[form[-END:]].append(form)
        self._may_end = np.zeros(2**20, bool)
        self._may_end[_hashes(b"".join(self._by_end), 0)] = True
        self._longest = max(map(len, forms), default=0) or 1

    def places(self, content: bytes) -> Iterator[tuple[int, int]]:
        """Yields where a form begins and ends in a content."""
        yield from (match.span() for match in re.finditer(b"|".join(self._short), content) if self._short)
        for shift in range(END) if self._by_end else ():
            for end in END * np.flatnonzero(self._may_end[_hashes(content, shift)]) + shift + END:
                for form in self._by_end.get(content[end - END : end], ()):
                    if content.endswith(form, 0, end):
                        yield int(end) - len(form), int(end)

    def are_in(self, file: IO[bytes] | gzip.GzipFile) -> bool:
        """Whether a file has one."""
        content = b""
        while block := file.read(BLOCK):
            content = content[-self._longest :] + block
            if any(True for _ in self.places(content)):
                return True
        return False


def _hashes(content: bytes, shift: int) -> np.ndarray:
    """Returns a number below 2^20 for each `END` bytes from `shift` on."""
    words = np.frombuffer(content[shift : shift + (len(content) - shift) // END * END], "<u8")
    return (words * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(44)


class Traces:
    """Finds texts in files of any kind."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = {text.strip() for text in texts} - {""}
        self._whole = {folded(text) for text in texts}
        self._all = Forms(text[:BEGINNING] for text in texts)
        self._begins = Forms(text[:BEGINNING] for text in texts if len(text) >= SHORT)

    def in_file(self, path: Path, short: bool = False) -> bool:
        """Whether a file has the beginning of a text; compressed and Parquet files are read.

        `short`: also of a short text, so the file may be of something else.
        """
        forms = self._all if short else self._begins
        with suppress(OSError, EOFError, zlib.error, pa.ArrowException):  # it only has such a name: read as it is
            if path.suffix == ".parquet":
                return any(
                    any(True for _ in forms.places("\0".join(cells).encode()))
                    or not self._whole.isdisjoint(map(folded, cells))
                    for cells in _cells(path)
                )
            if path.suffix == ".gz":
                with gzip.open(path) as unpacked:
                    return forms.are_in(unpacked)
        with path.open("rb") as file:
            return forms.are_in(file)

    def in_text(self, text: str) -> bool:
        """Whether a text has the beginning of one."""
        return any(True for _ in self._begins.places(text.encode("utf-8", "surrogatepass")))

    def below(self, path: Path, short: bool = False) -> bool:
        """Whether a file, or a file below a folder, has it."""
        return any(self.in_file(file, short) for file in (path, *path.rglob("*")) if file.is_file())

    def has_row(self, line: bytes) -> bool:
        """Whether a line is a text, or has one as a cell or a JSON string."""
        return not self._whole.isdisjoint(map(folded, _strings(line)))

    def without_lines(self, path: Path, rows: bool = False) -> bool:
        """Takes the lines with a text, or only its `rows`, out of a file; returns whether there were any."""
        if not rows and not self.in_file(path, short=True):  # logs can be long
            return False
        content = path.read_bytes()
        lines = content.splitlines(keepends=True)
        ends, gone = list(accumulate(map(len, lines))), {n for n, line in enumerate(lines) if self.has_row(line)}
        for start, end in () if rows else self._begins.places(content):
            gone.update(range(bisect_right(ends, start), bisect_right(ends, end - 1) + 1))
        if gone:
            replace_content(path, b"".join(line for number, line in enumerate(lines) if number not in gone))
        return bool(gone)


def _strings(line: bytes) -> Iterator[str]:
    """Yields a line, its cells, and the strings in its JSON."""
    text = line.decode("utf-8", "replace").strip()
    yield text
    yield from text.split("\t")
    with suppress(csv.Error):
        yield from next(csv.reader([text]), [])
    with suppress(ValueError, RecursionError):
        yield from _within(json.loads(text))


def _within(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _within(part)


def _cells(path: Path) -> Iterator[list[str]]:
    """Yields the texts in a Parquet file, also those in its lists and objects, some at a time."""
    with pq.ParquetFile(path) as file:
        columns = [field.name for field in file.schema_arrow if "string" in str(field.type)]
        for batch in file.iter_batches(columns=columns) if columns else ():
            yield list(_within([column.to_pylist() for column in batch.columns]))


def without_answers(journal: Path, stays: Callable[[str], bool]) -> bool:
    """Leaves of a journal of a language model's answers those that stay; returns whether there were others."""
    lines, kept = journal.read_bytes().splitlines(keepends=True), []
    for line in lines:
        with suppress(ValueError):  # a killed process has cut it
            kept += [line] if stays(json.loads(line)["text"]) else []
    if len(kept) < len(lines):
        replace_content(journal, b"".join(kept))
    return len(kept) < len(lines)


def renewed(target: Path, latest: Path, traces: Traces) -> bool:
    """Makes an export, or a copy of a bundle, anew from the bundles of a root; takes lines out of files of lines.

    Args:
        target: a folder of `export`, of `copy` or of `judge`, or a file of lines, such as `labels.jsonl`.
        latest: ROOT/latest.

    Returns whether anything had to be changed.

    Raises:
        UserError: it is none of these, or the root has no bundle of its system.
    """
    target = target.resolve()
    fresh, former = (target.with_name(f".{target.name}.{name}") for name in ("fresh", "former"))
    if fresh.exists() and not target.exists():  # the last attempt ended between the two moves below
        fresh.rename(target)
    for folder in (fresh, former):
        shutil.rmtree(folder, ignore_errors=True)
    if target.is_file():
        if b"\0" in target.read_bytes() or target.suffix in (".gz", ".parquet"):
            raise UserError(f"{target} is no file of lines: unpack it, name the folder of `export`, or delete it")
        return traces.without_lines(target, rows=True)
    if (target / POOL).is_file():
        return _without_judged(target, traces)
    if (target / FACTS).is_file():
        known = json.loads((target / FACTS).read_text("utf-8"))
        if not {"system", "format", "served_as", "bundle_digest"} <= {*known}:
            raise UserError(f"{target / FACTS} is not of `export`: make the export again, or delete the folder")
        bundle = bundle_of(latest, known["system"], known["served_as"], target)
        if known["bundle_digest"] == bundle.manifest.digest:
            return False
        export(bundle, known["format"], fresh, table=known.get("table", "passages"), index=known.get("index"))
        if others := {path.name for path in target.iterdir()} - {path.name for path in fresh.iterdir()}:
            shutil.rmtree(fresh)
            raise UserError(f"{target} has {', '.join(sorted(others))}, which its export did not write: move them out")
    elif (target / MANIFEST).is_file():
        copied = Bundle.read(target)
        bundle = bundle_of(latest, copied.system, copied.serving.system, target)
        if copied.manifest.digest == bundle.manifest.digest:
            return False
        shutil.copytree(bundle.path.resolve(), fresh)
    else:
        raise UserError(f"{target} is no export, bundle, folder of judge or file of lines: name one, or delete it")
    target.rename(former)
    fresh.rename(target)
    shutil.rmtree(former)
    return True


def _without_judged(folder: Path, traces: Traces) -> bool:
    """Takes the queries that have a text, or a passage with one, out of a folder of `judge`, with their grades.

    Of the model's answers stay those whose grade and reason only other queries have. The pool is replaced last, so that
    another attempt finishes this one. Raises UserError while a server takes grades for the folder.
    """
    gone = {json.loads(line)["query_id"] for line in _whole_lines(folder / POOL) if traces.has_row(line)}
    if not gone:
        return False
    with closing(PeoplesFile(folder / PEOPLE)):
        _take_out(gone, folder)
    return True


def _whole_lines(path: Path) -> list[bytes]:
    """Returns a file's lines without the last one that a killed process may have begun."""
    return [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")]


def _take_out(gone: set[str], folder: Path) -> None:
    if (journal := folder / ANSWERS / JOURNAL).is_file():
        reasons: dict[bool, set[tuple[int | None, str]]] = {True: set(), False: set()}
        for judged in read_judgements(folder / JUDGEMENTS):
            reasons[judged.query_id in gone].add((judged.grade, judged.reason))
        without_answers(journal, lambda answer: grade_in(answer) in reasons[False] - reasons[True])
    for name in (QRELS, FIGURES):
        (folder / name).unlink(missing_ok=True)
    for path in (folder / name for name in (ORDER, PEOPLE, LABELS, JUDGEMENTS, POOL)):
        if path.is_file():
            kept = [line for line in _whole_lines(path) if json.loads(line)["query_id"] not in gone]
            replace_content(path, b"".join(kept))


def bundle_of(latest: Path, system: str, served: str, target: Path | str) -> Bundle:
    """Returns the bundle of a system, if possible as served; raises UserError for the `target` of another root."""
    bundles = [bundle for folder in bundles_of(latest) if (bundle := Bundle.read(folder)).system == system]
    if not bundles:
        raise UserError(f"{latest} has no bundle of {system}, of which {target} is: delete {target}, and run again")
    return next((bundle for bundle in bundles if bundle.serving.system == served), bundles[0])
