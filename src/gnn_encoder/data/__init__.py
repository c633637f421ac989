"""Reads data sets: finds the reader of a format, and turns a data set into the canonical form or a report.

Each function raises a UserError of one line if there is no data set at the path, or the format is unknown.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.artifacts.folder import digest_of, sha256
from gnn_encoder.data.beir import Beir
from gnn_encoder.data.canonical import canonicalize
from gnn_encoder.data.document_folder import DocumentFolder
from gnn_encoder.data.dpr import Dpr
from gnn_encoder.data.file_reader import ENDINGS
from gnn_encoder.data.forgotten import Forgotten, Remaining
from gnn_encoder.data.ir_data import PREFIX, IrDatasets
from gnn_encoder.data.markup import Markup, markup_files
from gnn_encoder.data.msmarco import MsMarco
from gnn_encoder.data.python_docs import PythonDocs
from gnn_encoder.data.query_log import log_file
from gnn_encoder.data.rows import Source
from gnn_encoder.data.validation import DataReport, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.storage import local_folder

FOLDERS: dict[str, Callable[[Path], Source]] = {"beir": Beir, "msmarco": MsMarco, "dpr": Dpr, "markup": Markup}
SIGNS = {
    "beir": ("corpus.jsonl*", "queries.jsonl*", "qrels"),
    "msmarco": ("collection.tsv*", "queries.*.tsv*", "qrels.*.tsv*"),
    "dpr": ("**/psgs_*.tsv*", "**/*-train.json*", "**/*.qa.csv*"),
}
"""Format → file patterns that identify the format; one match is enough."""
PLACES = f"a folder, an s3:// address, {PREFIX}ID or {PythonDocs.format}"


def open_source(settings: Ingest) -> Source:
    """Opens the data set that the settings name; reads only a little."""
    source = _source(settings)
    source.query_field = settings.query_field
    return Remaining(source, Forgotten.read(settings.forgotten)) if settings.forgotten else source


def _source(settings: Ingest) -> Source:
    name, form = settings.dataset, str(settings.format)
    if not name and form != PythonDocs.format:
        raise UserError(f"no data set: give one with --dataset ({PLACES})")
    if form == PythonDocs.format or (form == "auto" and name == PythonDocs.format):
        return PythonDocs(settings.packages, settings.max_passages, settings.seed)
    if form == "ir_datasets" or (form == "auto" and name.startswith(PREFIX)):
        return IrDatasets(name)
    scheme, separator, _ = name.partition("://")
    if separator and scheme not in ("file", "s3"):
        raise UserError(f"{name}: data sets are read from folders and s3:// addresses: copy it to one and name that")
    folder = local_folder(name.removeprefix("file://"), indexed=False)
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"dataset {name} {state}: give {PLACES}")
    if form == "auto":
        form = _recognized(folder)
    if not form:
        expected = "corpus.jsonl (BEIR), collection.tsv (MS MARCO), psgs_*.tsv (DPR), *.md or *.html besides a README"
        if any(path.suffix.lower() in ENDINGS for path in folder.rglob("*")):
            expected += "; its documents are read by `run --documents FOLDER` and `data check --format documents`"
        raise UserError(f"{folder} holds no data set: expected {expected}")
    if form == DocumentFolder.format:
        return DocumentFolder(folder, settings)
    return FOLDERS[form](folder)


@contextmanager
def temporary_dataset(settings: Ingest) -> Iterator[tuple[Dataset, DataReport]]:
    """In the block, the data set as `ingest` would write it, in a folder for temporary files, and the report on it.

    Raises:
        UserError: `ingest` would fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        with drafting(Path(folder) / "dataset", "dataset") as draft:
            report = canonicalize(open_source(settings), settings, draft=draft)
        yield Dataset(draft.target), report


def _recognized(folder: Path) -> str:
    """The format of a folder; empty if there is no sign of any.

    Pages may have queries and labels beside them as a BEIR corpus has. A README alone is no page, because a data set of
    any layout may have one.
    """
    form = next((form for form, signs in SIGNS.items() if any(any(folder.glob(sign)) for sign in signs)), "")
    if form and (form != "beir" or any(folder.glob(SIGNS[form][0]))):
        return form
    pages = (path for path in markup_files(folder) if path.parent != folder or path.stem.lower() != "readme")
    return "markup" if any(pages) else form


def has_documents(settings: Ingest) -> bool:
    """Returns whether the data say which documents the passages are in; reads the corpus up to the first that does."""
    passages = open_source(settings).passages(Problems())
    return any(rows.places is not None for rows in passages)


def source_digest(settings: Ingest) -> str:
    """Hex digest of the contents of all files that `ingest` would read, or of the data set's id (ir_datasets).

    Raises:
        UserError: there is no log where the settings name one.
    """
    digest = open_source(settings).digest()
    return digest_of({"data": digest, "log": sha256(log_file(settings))}) if settings.log else digest
