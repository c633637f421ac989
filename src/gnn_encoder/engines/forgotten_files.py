"""Finds and removes forgotten texts in files that are no artifacts: logs, caches, copies, exports, and label files."""

import gzip
import json
import mmap
import shutil
from collections.abc import Iterable
from contextlib import suppress
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.digests import WORDS, find, text_digests
from gnn_encoder.artifacts.finished_run import bundles_of
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.errors import UserError
from gnn_encoder.judging.pool import ANSWERS, FIGURES, POOL, QRELS
from gnn_encoder.serving.exports import export
from gnn_encoder.serving.exports.job import FACTS

BEGINNING = 100
"""Characters by which a text is found: a log or a report may have its beginning alone."""


class Traces:
    """Finds texts in files of any kind, as they are, and as JSON and HTML write them."""

    def __init__(self, texts: Iterable[str]) -> None:
        begins = {text.strip()[:BEGINNING] for text in texts} - {""}
        ways = (str, escape, json.dumps, lambda text: json.dumps(text, ensure_ascii=False))
        # Python's quotes around a text are no part of it.
        self._forms = {way(text).strip('"').encode() for text in begins for way in ways} - {b""}

    def in_bytes(self, content: bytes | mmap.mmap) -> bool:
        """Whether a content has the beginning of a text."""
        return any(content.find(form) >= 0 for form in self._forms)

    def in_file(self, path: Path) -> bool:
        """Whether a file has it; compressed and Parquet files are read."""
        if path.suffix == ".gz":
            return self.in_bytes(gzip.decompress(path.read_bytes()))
        if path.suffix == ".parquet":
            columns = (column for column in pq.read_table(path).columns if pa.types.is_string(column.type))
            return any(
                self.in_bytes("\n".join(text or "" for text in column.to_pylist()).encode()) for column in columns
            )
        if not path.stat().st_size:
            return False
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return self.in_bytes(content)

    def below(self, path: Path) -> bool:
        """Whether a file, or a file below a folder, has it."""
        return any(self.in_file(file) for file in (path, *path.rglob("*")) if file.is_file())

    def without_lines(self, path: Path) -> bool:
        """Takes the lines with a text out of a file; returns whether there were any."""
        if not self.in_file(path):
            return False
        lines = path.read_bytes().splitlines(keepends=True)
        _replace(path, b"".join(line for line in lines if not self.in_bytes(line)))
        return True


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
    fresh = target.with_name(f".{target.name}.fresh")
    if fresh.exists() and not target.exists():  # the last attempt ended between the two moves below
        fresh.rename(target)
    if target.is_file():
        return traces.without_lines(target)
    facts, manifest = target / FACTS, target / MANIFEST
    shutil.rmtree(fresh, ignore_errors=True)
    if facts.is_file():
        known = json.loads(facts.read_text("utf-8"))
        bundle = _bundle_of(latest, known["system"], known.get("served_as", ""), target)
        if known["bundle_digest"] == bundle.manifest.digest:
            return False
        export(bundle, known["format"], fresh, table=known.get("table", "passages"), index=known.get("index"))
    elif manifest.is_file():
        former = Bundle.read(target)
        bundle = _bundle_of(latest, former.system, former.serving.system, target)
        if former.manifest.digest == bundle.manifest.digest:
            return False
        shutil.copytree(bundle.path.resolve(), fresh)
    elif (target / POOL).is_file():
        return _without_judged(target, traces)
    else:
        raise UserError(f"{target} is no export, bundle, folder of judge or file of lines: name one, or delete it")
    shutil.rmtree(target)
    fresh.rename(target)
    return True


def _without_judged(folder: Path, traces: Traces) -> bool:
    """Takes the queries that have a text, or a passage with one, out of a folder of `judge`, with their grades."""
    lines = {path: path.read_bytes().splitlines(keepends=True) for path in folder.glob("*.jsonl")}
    gone = {json.loads(line)["query_id"] for line in lines[folder / POOL] if traces.in_bytes(line)}
    if not gone:
        return False
    shutil.rmtree(folder / ANSWERS, ignore_errors=True)
    for name in (QRELS, FIGURES):
        (folder / name).unlink(missing_ok=True)
    for path in sorted(lines, key=lambda path: path.name == POOL):
        _replace(path, b"".join(line for line in lines[path] if json.loads(line)["query_id"] not in gone))
    return True


def _bundle_of(latest: Path, system: str, served: str, target: Path) -> Bundle:
    bundles = [bundle for place in bundles_of(latest) if (bundle := Bundle.read(place)).system == system]
    if not bundles:
        raise UserError(f"{latest} has no bundle of {system}, of which {target} is: delete {target}, and run again")
    return next((bundle for bundle in bundles if bundle.serving.system == served), bundles[0])


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
