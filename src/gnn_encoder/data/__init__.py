"""Reading data sets: what each format's reader, the checks and the canonical form have for a front door."""

from collections.abc import Callable
from pathlib import Path

from gnn_encoder.data.beir import Beir
from gnn_encoder.data.canonical import canonicalize
from gnn_encoder.data.dpr import Dpr
from gnn_encoder.data.ir_data import PREFIX, IrDatasets
from gnn_encoder.data.msmarco import MsMarco
from gnn_encoder.data.python_docs import PythonDocs
from gnn_encoder.data.rows import Source
from gnn_encoder.data.validation import DataReport
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.storage import local_folder

__all__ = ["DataReport", "canonicalize", "check", "open_source", "source_digest"]

FOLDERS: dict[str, Callable[[Path], Source]] = {"beir": Beir, "msmarco": MsMarco, "dpr": Dpr}
SIGNS = {
    "beir": ("corpus.jsonl*", "queries.jsonl*", "qrels"),
    "msmarco": ("collection.tsv*", "queries.*.tsv*", "qrels.*.tsv*"),
    "dpr": ("**/psgs_*.tsv*", "**/*-train.json*", "**/*.qa.csv*"),
}
"""Format → what a folder in it has, any of which tells it."""


def open_source(settings: Ingest) -> Source:
    """The data set that the settings name; little is read yet.

    Raises:
        UserError: nothing is there, or it is in no known format.
    """
    name, form = settings.dataset, settings.format
    if not name and form != PythonDocs.format:
        raise UserError(
            f"no data set: give one with --dataset (a folder, an s3:// address, {PREFIX}ID or {PythonDocs.format})"
        )
    if form == PythonDocs.format or (form == "auto" and name == PythonDocs.format):
        return PythonDocs(settings.packages, settings.max_passages, settings.seed)
    if form == "ir_datasets" or (form == "auto" and name.startswith(PREFIX)):
        return IrDatasets(name)
    scheme, separator, _ = name.partition("://")
    if separator and scheme not in ("file", "s3"):
        raise UserError(f"{name}: data sets are read from folders and s3:// addresses: copy it to one and name that")
    folder = local_folder(name.removeprefix("file://"), indexed=False)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"dataset {name} {what}: give a folder, an s3:// address, {PREFIX}ID or {PythonDocs.format}")
    return FOLDERS[detect(folder) if form == "auto" else form](folder)


def detect(folder: Path) -> str:
    """The format of a folder, by the names of its files.

    Raises:
        UserError: it looks like none of them.
    """
    for form, patterns in SIGNS.items():
        if any(True for pattern in patterns for _ in folder.glob(pattern)):
            return form
    raise UserError(
        f"{folder} holds no data set: expected corpus.jsonl (BEIR), collection.tsv (MS MARCO) or psgs_*.tsv (DPR)"
    )


def source_digest(settings: Ingest) -> str:
    """Hex digest of what `ingest` would read: it changes when the data does.

    Over the contents of the files, or an id that pins them (ir_datasets).

    Raises:
        UserError: see `open_source`.
    """
    return open_source(settings).digest()


def check(settings: Ingest) -> DataReport:
    """Read a data set to its end, write nothing, and say what it holds and what is wrong with it.

    Raises:
        UserError: see `open_source`; problems of the data itself are in the report.
    """
    return canonicalize(open_source(settings), settings)
