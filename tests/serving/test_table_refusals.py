"""A table that would differ from the bundle is refused, and whatever ends an export leaves the former rows."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest
from table_engines import Engine, LanceEngine, PostgresEngine, expected, write_bundle

from gnn_encoder import UserError
from gnn_encoder.artifacts import Bundle
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.serving.exports import export, lance_table, postgres_table, replay, rows
from gnn_encoder.serving.exports.job import Job
from gnn_encoder.serving.exports.rows import Block


def damaged(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
    """The rows of a bundle, in which the first row of each block has another vector than its digest says."""
    for block in rows.blocks(bundle, some, done):
        right, vectors = block.digests(), block.vectors.copy()
        vectors[0, 0] += np.float32(1e-4)

        class Damaged(Block):
            def digests(self, right: np.ndarray = right) -> np.ndarray:
                return right

        yield Damaged(block.passages, block.parts, vectors)


@pytest.mark.slow
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
            first: list[np.ndarray] = real(table, queries, k + 1, effort)
            return [hits[1:] if (effort is not None) == index else hits[:k] for hits in first]

        monkeypatch.setattr(engine.module._Table, "search", poor)
        with pytest.raises(UserError, match=problem):
            engine.export(former, index=index)
        assert engine.nothing()


def test_rows_that_are_missing_are_found(engine: Engine, former: Bundle) -> None:
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

    def interrupted(*arguments: Any) -> Any:
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


@pytest.mark.slow
def test_a_killed_update_of_lancedb_leaves_the_former_rows(former: Bundle, later: Bundle, tmp_path: Path) -> None:
    engine = LanceEngine(tmp_path)
    engine.export(former)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(later.path), engine.target])
    assert ended.returncode == -9 and engine.rows() == expected(former)
    engine.export(later, update=True)
    assert engine.rows() == expected(later)


def test_a_lost_connection_leaves_the_former_rows(
    former: Bundle, later: Bundle, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = PostgresEngine(postgres)
    engine.export(former)

    def lost(bundle: Bundle, some: Any = None, done: Any = None) -> Iterator[Block]:
        yield from rows.blocks(bundle, some, done)
        with psycopg.connect(postgres) as other:
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


def test_a_table_of_another_query_encoder_is_refused(
    engine: Engine, former: Bundle, later: Bundle, trained: Bundle
) -> None:
    engine.export(former, index=False)
    with pytest.raises(UserError, match="holds vectors of another query encoder"):
        engine.export(trained, update=True, same_encoder=True)
    assert engine.rows() == expected(former)
    older = {name: fact for name, fact in engine.facts().items() if name != "query_encoder_digest"}
    Job(trained, engine.form, engine.target, same_encoder=True).check_former("a table", older)
    for bundle, same_encoder in ((later, True), (trained, False)):
        engine.export(bundle, update=True, same_encoder=same_encoder)
        assert engine.rows() == expected(bundle)


def test_an_encoder_with_another_prompt_is_another_one(former: Bundle, tmp_path: Path) -> None:
    digests = []
    for name, prompts in (("same", {}), ("other", {"query": "query: "})):
        encoder = TextEncoder.load(former.query_encoder_path)
        encoder.prompts = prompts
        encoder.save(tmp_path / name)
        (tmp_path / f"of {name}").mkdir()
        origin = SimpleNamespace(query_encoder_path=tmp_path / name)
        words = [("p0", "", "a passage")]
        bundle = write_bundle(origin, words, np.array(former.vectors[:1]), tmp_path / f"of {name}")  # type: ignore[arg-type]
        digests.append(Job(bundle, "lancedb", "").encoder_digest)
    assert digests[0] == Job(former, "lancedb", "").encoder_digest != digests[1]


def test_a_table_of_another_origin_is_refused(former: Bundle, postgres: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    with pytest.raises(UserError, match="has no table passages of an earlier export"):
        export(former, "lancedb", tmp_path / "own", update=True)
    with psycopg.connect(postgres) as connection:
        connection.execute("CREATE TABLE own (id integer)")
    with pytest.raises(UserError, match="the table own is not of an earlier export"):
        export(former, "pgvector", postgres, table="own", update=True)


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
        "postgresql://someone:%hunter2@localhost:1/db",
        "postgresql://localhost:1/db?user=someone&password=%hunter2",
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
