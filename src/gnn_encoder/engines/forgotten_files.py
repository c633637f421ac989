"""Finds and removes forgotten texts in files that are no artifacts: logs, caches, copies, exports, and label files."""

import csv
import gzip
import json
import mmap
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.digests import WORDS, find, text_digests
from gnn_encoder.artifacts.finished_run import bundles_of
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.errors import UserError
from gnn_encoder.judging.pool import ANSWERS, FIGURES, JUDGEMENTS, LABELS, ORDER, PEOPLE, POOL, QRELS
from gnn_encoder.serving.exports import export
from gnn_encoder.serving.exports.job import FACTS

BEGINNING = 100
"""Characters by which a text is found: a log or a report may have its beginning alone."""
SHORT = 20
"""A text of fewer characters counts only as a whole line, cell or JSON string: other texts may contain it."""


class Traces:
    """Finds texts in files of any kind, as they are, and as JSON, HTML and Python write them."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = {text.strip() for text in texts} - {""}
        self._whole = {folded(text) for text in texts}
        self._all = _forms(text[:BEGINNING] for text in texts)
        self._begins = _forms(text[:BEGINNING] for text in texts if len(text) >= SHORT)
        self._long = _forms(text for text in texts if len(text) >= BEGINNING)

    def is_row(self, line: bytes) -> bool:
        """Whether a line is of a text: it, a cell or a JSON string in it is the text, or it has a whole long text."""
        return _has(line, self._long) or any(folded(part) in self._whole for part in _strings(line))

    def in_file(self, path: Path, short: bool = False) -> bool:
        """Whether a file has the beginning of a text; compressed and Parquet files are read.

        `short`: also of a short text, so the file may be of something else.
        """
        forms = self._all if short else self._begins
        with suppress(OSError, EOFError, zlib.error, pa.ArrowException):  # it only has such a name: read as it is
            if path.suffix == ".gz":
                return _has(gzip.decompress(path.read_bytes()), forms)
            if path.suffix == ".parquet":
                return any(folded(text) in self._whole or _has(text.encode(), forms) for text in _cells(path))
        if not path.stat().st_size:
            return False
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _has(content, forms)

    def below(self, path: Path, short: bool = False) -> bool:
        """Whether a file, or a file below a folder, has it."""
        return any(self.in_file(file, short) for file in (path, *path.rglob("*")) if file.is_file())

    def without_lines(self, path: Path, rows: bool = False) -> bool:
        """Takes the lines with a text, or only its `rows`, out of a file; returns whether there were any."""
        if not rows and not self.in_file(path, short=True):  # logs can be long
            return False
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if not self.is_row(line) and (rows or not _has(line, self._begins))]
        if len(kept) < len(lines):
            _replace(path, b"".join(kept))
        return len(kept) < len(lines)


def _forms(texts: Iterable[str]) -> set[bytes]:
    ways = (str, escape, json.dumps, partial(json.dumps, ensure_ascii=False), lambda text: repr(text)[1:-1])
    # Quotes around a text are no part of it.
    return {way(text).strip('"').encode("utf-8", "surrogatepass") for text in texts for way in ways} - {b""}


def _has(content: bytes | mmap.mmap, forms: set[bytes]) -> bool:
    return any(content.find(form) >= 0 for form in forms)


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


def _cells(path: Path) -> Iterator[str]:
    """Yields the texts in a Parquet file, also those in its lists and objects."""
    with pq.ParquetFile(path) as file:
        columns = [field.name for field in file.schema_arrow if "string" in str(field.type)]
        for batch in file.iter_batches(columns=columns) if columns else ():
            for column in batch.columns:
                yield from _within(column.to_pylist())


def without_answers(journal: Path, kept: set[str]) -> bool:
    """Leaves of a journal of a language model's answers those in `kept`; returns whether there were others."""
    lines, staying = journal.read_bytes().splitlines(keepends=True), []
    for line in lines:
        with suppress(ValueError):  # a killed process has cut it
            staying += [line] if json.loads(line)["text"] in kept else []
    if len(staying) < len(lines):
        _replace(journal, b"".join(staying))
    return len(staying) < len(lines)


def without_vectors(paid: Path, texts: Iterable[str]) -> bool:
    """Takes the vectors of texts out of a folder of `update.paid`; returns whether there were any."""
    digests = np.fromfile(paid / "digests", WORDS)
    digests = digests[: len(digests) // 2 * 2].reshape(-1, 2)
    stays = find(text_digests(texts), digests) < 0
    if stays.all():
        return False
    vectors = np.fromfile(paid / "vectors", np.float32)
    width = len(vectors) // len(digests)
    # A killed process leaves fewer digests than vectors at most, never the digest of another vector.
    (paid / "digests").write_bytes(b"")
    _replace(paid / "vectors", vectors[: len(digests) * width].reshape(-1, width)[stays].tobytes())
    _replace(paid / "digests", digests[stays].tobytes())
    return True


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
    if (target / FACTS).is_file():
        known = json.loads((target / FACTS).read_text("utf-8"))
        if not {"system", "format", "bundle_digest"} <= {*known}:
            raise UserError(f"{target / FACTS} is not of `export`: make the export again, or delete the folder")
        bundle = _bundle_of(latest, known["system"], known.get("served_as", ""), target)
        if known["bundle_digest"] == bundle.manifest.digest:
            return False
        export(bundle, known["format"], fresh, table=known.get("table", "passages"), index=known.get("index"))
        if others := {path.name for path in target.iterdir()} - {path.name for path in fresh.iterdir()}:
            shutil.rmtree(fresh)
            raise UserError(f"{target} has {', '.join(sorted(others))}, which its export did not write: move them out")
    elif (target / MANIFEST).is_file():
        copied = Bundle.read(target)
        bundle = _bundle_of(latest, copied.system, copied.serving.system, target)
        if copied.manifest.digest == bundle.manifest.digest:
            return False
        shutil.copytree(bundle.path.resolve(), fresh)
    elif (target / POOL).is_file():
        return _without_judged(target, traces)
    else:
        raise UserError(f"{target} is no export, bundle, folder of judge or file of lines: name one, or delete it")
    target.rename(former)
    fresh.rename(target)
    shutil.rmtree(former)
    return True


def _without_judged(folder: Path, traces: Traces) -> bool:
    """Takes the queries that have a text, or a passage with one, out of a folder of `judge`, with their grades."""
    paths = [path for name in (ORDER, PEOPLE, LABELS, JUDGEMENTS, POOL) if (path := folder / name).is_file()]
    # A killed process may have begun the last line.
    lines = {path: [line for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")] for path in paths}
    gone = {json.loads(line)["query_id"] for line in lines[folder / POOL] if traces.is_row(line)}
    if not gone:
        return False
    shutil.rmtree(folder / ANSWERS, ignore_errors=True)
    for name in (QRELS, FIGURES):
        (folder / name).unlink(missing_ok=True)
    for path in paths:
        _replace(path, b"".join(line for line in lines[path] if json.loads(line)["query_id"] not in gone))
    return True


def _bundle_of(latest: Path, system: str, served: str, target: Path) -> Bundle:
    bundles = [bundle for place in bundles_of(latest) if (bundle := Bundle.read(place)).system == system]
    if not bundles:
        raise UserError(f"{latest} has no bundle of {system}, of which {target} is: delete {target}, and run again")
    return next((bundle for bundle in bundles if bundle.serving.system == served), bundles[0])


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.partial")
    fresh.write_bytes(content)
    shutil.copymode(path, fresh)
    fresh.replace(path)
