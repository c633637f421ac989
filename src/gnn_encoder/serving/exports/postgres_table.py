"""The passages and their vectors as a PostgreSQL table, with pgvector.

Everything is one transaction: a reader sees no table, or the former rows, until all rows are there, the index is built
and the replay has compared both. After an error or a lost connection the server rolls back.

PostgreSQL's texts have no NUL. It is left out of titles and texts, where it says nothing, and the last line names the
first such passage. An id with NUL is refused, because without it, it is another id.

The index is HNSW by inner product. The replay says which `hnsw.ef_search` finds 99 % of the exact first hits.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from gnn_encoder.artifacts import Passages
from gnn_encoder.errors import UserError, one_line, printable, without_password
from gnn_encoder.serving.exports import rows as export_rows
from gnn_encoder.serving.exports.job import Job, missing
from gnn_encoder.serving.exports.replay import replay
from gnn_encoder.serving.exports.rows import Block, Changes, blocks, digests_of

if TYPE_CHECKING:
    import psycopg

WIDEST = 2000
"""Largest width of an HNSW index over `vector`, by pgvector's documentation; `halfvec` has 4,000."""
LOCKING = "60s"
"""Time that `vacuum` waits for the end of other transactions."""
CONNECTING = 10
"""Seconds to wait for the server, unless the address says otherwise."""
COLUMNS = {
    "digest": "bigint PRIMARY KEY",
    "passage_id": "text NOT NULL",
    "part": "integer NOT NULL",
    "title": "text NOT NULL",
    "text": "text NOT NULL",
    "vector": "vector({width}) NOT NULL",
}
CONTENT = (
    r"convert_to(passage_id, 'UTF8') || '\x00' || convert_to(title, 'UTF8') || '\x00' || convert_to(text, 'UTF8') || "
    r"'\x00' || int4send(part) || vector_send(vector)"
)
"""What `Block.digests` takes the digest of."""
DIGEST = f"('x' || encode(substr(sha256({CONTENT}), 1, 8), 'hex'))::bit(64)::bigint"


def export(job: Job) -> str:
    """Writes or updates the table and returns what was compared, in words."""
    if job.new_index and job.width > WIDEST:
        raise UserError(
            f"pgvector's HNSW index takes vectors up to width {WIDEST:,} (4,000 as halfvec), and these have "
            f"{job.width:,}: add --no-index"
        )
    ids = job.bundle.passages.ids()
    if len(bad := ids.filter(pc.match_substring_regex(ids, r"\x00"))):
        raise UserError(
            f"{len(bad):,} ids of passages have the character NUL, which PostgreSQL cannot store, first "
            f"{printable(repr(bad[0].as_py()))[:80]}: give them other ids in the data, or export to lancedb or parquet"
        )
    with _connected(job.target) as connection:
        table, index = _Table(job, connection), job.new_index
        if not table.exists():
            sentence, effort = _create(job, table)
        elif job.update:
            sentence, index, effort = _update(job, table)
        else:
            raise UserError(
                f"the table {job.table} exists in {without_password(job.target)}: name another by --table, or send the "
                "changes with --update"
            )
        sentence += table.left_out
        table.keep(job.facts(sentence, table=job.table, index=index, ef_search=effort))
    return sentence


def read_facts(address: str, table: str) -> dict[str, Any]:
    """Returns what an export has written about its table; raises UserError for a table of another origin."""
    with _connected(address) as connection:
        return _facts(connection, table)


def vacuum(address: str, table: str) -> list[str]:
    """Rewrites the files of a table, and of PostgreSQL's statistics of its texts, without deleted rows.

    Readers wait meanwhile. Returns where deleted rows may still be, in words.
    """
    where = without_password(address)
    left = [f"write-ahead log, logs, replicas and backups of {where}"]
    with _connected(address, autocommit=True) as connection:
        from psycopg import errors, sql

        details: list[str] = []
        connection.add_notice_handler(lambda notice: details.append(notice.message_detail or ""))
        connection.execute(sql.SQL("SET lock_timeout = {}").format(LOCKING))
        for name in (table, "pg_catalog.pg_statistic"):
            details.clear()
            with suppress(errors.LockNotAvailable):
                connection.execute(sql.SQL("VACUUM (FULL, VERBOSE) {}").format(sql.Identifier(*name.split("."))))
            # The server says how many deleted rows it keeps for open transactions, or nothing without the right.
            if not any(re.match(r"0\D", detail) for detail in details):
                left.append(f"deleted rows of {name} in {where}: VACUUM FULL as its owner, without open transactions")
    return left


def _facts(connection: "psycopg.Connection[Any]", table: str) -> dict[str, Any]:
    row = connection.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", (table,)).fetchone()
    try:
        facts = json.loads((row and row[0]) or "{}")
    except ValueError:
        facts = {}
    if not isinstance(facts, dict) or "bundle_digest" not in facts:
        raise UserError(f"the table {table} is not of an earlier export: name another")
    return facts


def _create(job: Job, table: "_Table") -> tuple[str, int | None]:
    table.create()
    digests = table.send(None)
    if job.new_index:
        table.build_index()
    table.run("ANALYZE {table}")
    return replay(job, digests, table, job.new_index)


def _update(job: Job, table: "_Table") -> tuple[str, bool, int | None]:
    table.run("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")  # readers go on with the former rows
    facts = _facts(table.connection, job.table)
    job.check_former(f"the table {job.table}", facts)
    digests = digests_of(job.bundle, job.stage("reading", len(job.bundle.vectors)), table.stored)
    changes, index = Changes.between(digests, table.digests()), bool(facts.get("index"))
    table.delete(changes.old)
    table.send(changes.new)
    table.run("ANALYZE {table}")
    sentence, effort = replay(job, digests, table, index)
    return f"{changes}; {sentence}", index, effort


@contextmanager
def _connected(address: str, autocommit: bool = False) -> Iterator["psycopg.Connection[Any]"]:
    """Yields a connection with pgvector's types, in one transaction that is committed at the end, or in none."""
    try:
        import psycopg
        from pgvector.psycopg import register_vector
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise missing("psycopg and pgvector", "pgvector") from None
    if not address.startswith(("postgresql://", "postgres://")):
        raise UserError("the target of pgvector is a database: postgresql://USER:PASSWORD@HOST/DATABASE")
    # libpq would take the rest of such a password for the host, and name it in its error.
    before, at, _ = address.partition("://")[2].rpartition("@")
    if at and set(before) & set("@/?#"):
        raise UserError(
            "the address of the database has @, /, ? or # in its user or password: write %40, %2F, %3F, %23"
        )
    try:
        options: dict[str, Any] = {"connect_timeout": CONNECTING} | conninfo_to_dict(address)
    except psycopg.Error:  # its text has the part that it does not understand, which may be the password
        raise UserError(
            f"{without_password(address)} is no address of a database: postgresql://USER:PASSWORD@HOST/DATABASE, with "
            "a % written as %25 and a space as %20"
        ) from None
    try:
        with psycopg.connect(**options, autocommit=autocommit) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            register_vector(connection)
            yield connection
    except psycopg.Error as error:
        raise UserError(f"{without_password(address)}: {one_line(error)}") from None


class _Table:
    """A table of PostgreSQL, inside one transaction."""

    effort = "hnsw.ef_search"
    efforts = (40, 100, 200, 400, 1000)

    def __init__(self, job: Job, connection: "psycopg.Connection[Any]") -> None:
        from psycopg import sql

        self._sql, self._job, self.connection = sql, job, connection
        self._with_null: dict[str, None] = {}
        self._name = sql.Identifier(*job.table.split("."))

    def run(self, statement: str, *values: Any, **parts: Any) -> Any:
        """Runs a statement in which `{table}` is the table's name; values travel in binary."""
        query = self._sql.SQL(statement).format(table=self._name, **parts)
        return self.connection.execute(query, values or None, binary=True)

    def exists(self) -> bool:
        """Whether there is a relation of the table's name."""
        name = self._name.as_string(self.connection)
        return bool(self.run("SELECT to_regclass(%s) IS NOT NULL", name).fetchone()[0])

    @property
    def left_out(self) -> str:
        """What was left out of the texts, in words; empty: nothing."""
        if not self._with_null:
            return ""
        first = printable(repr(next(iter(self._with_null))))[:80]
        return f"; NUL characters left out of {len(self._with_null):,} passages, first {first}"

    def stored(self, block: Block) -> Block:
        """Returns the block with texts that PostgreSQL can store; counts the passages that had others."""
        passages = block.passages
        words = zip(passages.ids, passages.titles, passages.texts, strict=True)
        names = [name for name, title, text in words if "\0" in title or "\0" in text]
        if not names:
            return block
        self._with_null |= dict.fromkeys(names)
        titles, texts = ([text.replace("\0", "") for text in column] for column in (passages.titles, passages.texts))
        return Block(Passages(passages.ids, titles, texts), block.parts, block.vectors)

    def create(self) -> None:
        """Creates the table, which only this transaction sees."""
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        self.run(f"CREATE TABLE {{table}} ({columns.format(width=self._job.width)})")

    def send(self, rows: np.ndarray | None) -> np.ndarray:
        """Sends the bundle's rows, or some, and returns their digests."""
        job, digests = self._job, [np.empty(0, np.int64)]
        done = job.stage("sending", len(job.bundle.vectors) if rows is None else len(rows))
        types = [kind.split()[0].split("(")[0] for kind in COLUMNS.values()]
        names = self._sql.SQL(", ").join(map(self._sql.Identifier, COLUMNS))
        command = self._sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(self._name, names)
        with self.connection.cursor() as cursor, cursor.copy(command) as copy:
            copy.set_types(types)
            for block in map(self.stored, blocks(job.bundle, rows, done)):
                digests.append(block.digests())
                passages = block.passages
                columns = (digests[-1].tolist(), passages.ids, block.parts.tolist(), passages.titles, passages.texts)
                for row in zip(*columns, block.vectors, strict=True):
                    try:
                        copy.write_row(row)
                    except UnicodeEncodeError as error:
                        raise UserError(
                            f"{without_password(job.target)}: passage {printable(repr(row[1]))[:80]} has characters "
                            f"that the database's encoding, {error.encoding}, lacks: name one with ENCODING 'UTF8'"
                        ) from None
        return np.concatenate(digests)

    def delete(self, digests: np.ndarray) -> None:
        """Deletes rows."""
        for start in range(0, len(digests), export_rows.ROWS):
            self.run("DELETE FROM {table} WHERE digest = ANY(%s)", digests[start : start + export_rows.ROWS].tolist())

    def build_index(self) -> None:
        """Builds the HNSW index."""
        rows = len(self._job.bundle.vectors)
        done = self._job.stage("indexing", rows)
        self.run("CREATE INDEX ON {table} USING hnsw (vector vector_ip_ops)")
        done(rows)

    def keep(self, facts: dict[str, Any]) -> None:
        """Writes facts as the table's comment."""
        self.run("COMMENT ON TABLE {table} IS {facts}", facts=self._sql.Literal(json.dumps(facts, ensure_ascii=False)))

    def digests(self) -> np.ndarray:
        (count,) = self.run("SELECT count(*) FROM {table}").fetchone()
        with self.connection.cursor("digests", binary=True) as cursor:
            cursor.itersize = export_rows.ROWS
            cursor.execute(self._sql.SQL("SELECT digest FROM {}").format(self._name))
            return np.fromiter((digest for (digest,) in cursor), np.int64, count)

    def altered(self) -> str | None:
        rows = len(self._job.bundle.vectors)
        done = self._job.stage("comparing", rows)
        row = self.run(f"SELECT passage_id FROM {{table}} WHERE digest <> {DIGEST} LIMIT 1").fetchone()
        done(rows)
        return None if row is None else str(row[0])

    def search(self, queries: np.ndarray, k: int, effort: int | None) -> list[np.ndarray]:
        self.run(f"SET LOCAL enable_indexscan = {'off' if effort is None else 'on'}")
        self.run(f"SET LOCAL enable_seqscan = {'on' if effort is None else 'off'}")
        if effort is not None:
            self.run(f"SET LOCAL hnsw.ef_search = {effort}")
        question = "SELECT digest FROM {table} ORDER BY vector <#> %s LIMIT %s"
        answers = (self.run(question, query, k).fetchall() for query in queries)
        return [np.array([digest for (digest,) in answer], np.int64) for answer in answers]
