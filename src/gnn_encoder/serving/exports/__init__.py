"""Writes a bundle's query encoder or its passage vectors for other programs, and compares the export with the bundle.

The rows are read, sent and compared in blocks. Each new export is replayed before it gets its name or is committed
(`exports.replay`): the encoder must give the bundle's vectors of some texts; the rows must be the bundle's, and so must
a table's first hits. So an export that another program would read otherwise is refused and leaves nothing.

An update of a LanceDB or PostgreSQL table sends only the rows that the table lacks, and deletes those that the bundle
lacks, in one commit of the table. Rows are compared by a digest of all their content (`exports.rows`). PostgreSQL's
update is replayed before its commit. LanceDB's is replayed after it, and undone if the replay refuses it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnn_encoder.artifacts import Bundle
from gnn_encoder.errors import UserError
from gnn_encoder.serving.exports import lance_table, parquet_file, postgres_table, query_encoder
from gnn_encoder.serving.exports.job import Job
from gnn_encoder.storage import is_remote
from gnn_encoder.tracking.progress import NewProgress


@dataclass(frozen=True)
class Format:
    """A format of export."""

    write: Callable[[Job], str]
    """Writes the export and returns what was compared, in words."""
    reader: str
    """Who reads the export; `{target}` and `{table}` are its place."""
    is_table: bool = False
    """Whether the export is a table of an engine, which can have an index and can be updated."""
    has_index: bool = False
    """Whether an approximate index is built unless it is declined."""


FORMATS = {
    "sentence-transformers": Format(query_encoder.export, "SentenceTransformer('{target}') reads it"),
    "parquet": Format(parquet_file.export, f"any reader of Parquet reads {{target}}/{parquet_file.PASSAGES}"),
    "lancedb": Format(
        lance_table.export,
        "lancedb.connect('{target}').open_table('{table}').search(vector).distance_type('dot') asks it",
        is_table=True,
    ),
    "pgvector": Format(
        postgres_table.export,
        "SELECT passage_id FROM {table} ORDER BY vector <#> '[…]' LIMIT 10 asks it",
        is_table=True,
        has_index=True,
    ),
}


def export(
    bundle: Bundle,
    form: str,
    target: str | Path,
    *,
    table: str = "passages",
    index: bool | None = None,
    update: bool = False,
    same_encoder: bool = False,
    progress: NewProgress | None = None,
) -> str:
    """Writes an export to `target` and returns what was compared, in words.

    Args:
        bundle: the bundle.
        form: a key of `FORMATS`.
        target: a folder, or the address of a PostgreSQL database.
        table: name of the table of LanceDB or PostgreSQL; with a dot, schema and table of PostgreSQL.
        index: whether the table has an approximate index; None: as the format has it, or as the updated table has it.
        update: send only changes to a table that exists; without it the folder or table must not exist.
        same_encoder: refuse to update a table with vectors of another query encoder, since its readers use that one;
            `forget` renews such a table, too.
        progress: makes the progress of each stage.

    Raises:
        UserError: another format, a target that exists or is of another system, a package is missing, the database
            refuses, or the replay differs.
    """
    if form not in FORMATS:
        raise UserError(
            f"{form!r} is no format of export: choose {', '.join(list(FORMATS)[:-1])} or {list(FORMATS)[-1]}"
        )
    if not bundle.has_vectors:
        raise UserError(f"{bundle.path} ranks by words alone: there are no vectors and no encoder to export")
    chosen = FORMATS[form]
    if update and not chosen.is_table:
        raise UserError(f"an export to {form} is written once: leave out --update and name a new folder")
    if index is not None and not chosen.is_table:
        raise UserError(f"--index and --no-index are for tables of LanceDB and PostgreSQL, not for {form}")
    named = r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?" if form == "pgvector" else r"[a-z_][a-z0-9_]*"
    if not re.fullmatch(named, table):
        raise UserError(f"--table {table!r}: a name has lower-case letters, digits and _, and begins with a letter")
    if form != "pgvector" and (is_remote(str(target)) or "://" in str(target)):
        raise UserError(f"an export to {form} is a folder of this machine: name one, `gnn-encoder copy` sends it on")
    job = Job(bundle, form, str(target), table, index, chosen.has_index, update, same_encoder, progress)
    return chosen.write(job)
