"""`forget` takes texts out of what lies elsewhere: tables of PostgreSQL, and folders in object stores."""

from pathlib import Path

import psycopg
import pytest
from slow_store import slow_store
from table_engines import PostgresEngine, expected, write_bundle

from gnn_encoder.artifacts import Bundle
from gnn_encoder.engines.forgotten_files import Traces
from gnn_encoder.engines.forgotten_stores import remove, renew
from gnn_encoder.errors import UserError
from gnn_encoder.storage.transfer import get_folder, put_folder

PASSAGE = "an unheard of word in a passage that is forgotten"


@pytest.fixture
def whole(former: Bundle, tmp_path: Path) -> Bundle:
    """A bundle with the passage p3; `latest/bundle` is one without it."""
    some, vectors = former.passages.take(range(90)), former.vectors[:90].copy()
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    words[3] = ("p3", "River", PASSAGE)
    vectors[3] *= 0.123
    others = [row for row in range(90) if row != 3]
    less = write_bundle(former, [words[row] for row in others], vectors[others], tmp_path / "less")
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "bundle").symlink_to(less.path)
    return write_bundle(former, words, vectors, tmp_path / "whole")


def test_no_file_of_a_database_has_a_forgotten_passage(whole: Bundle, postgres: str, tmp_path: Path) -> None:
    engine, less = PostgresEngine(postgres), Bundle.read(tmp_path / "latest" / "bundle")
    changes: list[str] = []

    def files_with_it() -> set[str]:
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            (folder,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        paths = [path for path in (Path(folder) / "base").rglob("*") if path.is_file()]
        forms = (PASSAGE.encode(), whole.vectors[3].tobytes())
        return {path.name for path in paths if any(form in path.read_bytes() for form in forms)}

    def renewed() -> set[str]:
        changes.clear()
        traces, target = Traces([PASSAGE]), f"{postgres}#{engine.table}"
        renew(target, tmp_path / "latest", traces, lambda change, *lines: changes.extend((change, *lines)))
        assert engine.rows() == expected(less)
        return {line.split(" in ")[0] for line in changes if "deleted rows" in line}

    engine.export(whole)
    assert len(files_with_it()) == 3, "the table, its index and the statistics"
    with psycopg.connect(postgres) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        assert renewed() == {f"deleted rows of {name}" for name in (engine.table, "pg_catalog.pg_statistic")}
        assert files_with_it() and "rewritten" in changes, "the server keeps what the transaction might read"
    assert not renewed() and not files_with_it() and "rewritten" not in changes
    assert changes[1].startswith("write-ahead log, logs, replicas and backups of postgres")


def test_a_copy_in_an_object_store_is_made_anew(whole: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    less, changes = Bundle.read(tmp_path / "latest" / "bundle"), list[str]()
    with slow_store(monkeypatch) as store:
        put_folder(whole.path, "s3://bucket/copy")
        before = {name: content for name, content in store.objects.items() if name.startswith("copy/corpus")}
        for _ in range(2):
            renew("s3://bucket/copy", tmp_path / "latest", Traces([PASSAGE]), lambda *line: changes.extend(line))
        get_folder("s3://bucket/copy", tmp_path / "fetched")
        assert before and not {*before.values()} & {*store.objects.values()}
    assert Bundle.read(tmp_path / "fetched").manifest.digest == less.manifest.digest
    assert changes == ["rewritten", "s3://bucket/copy", "left", "left"], "the second time nothing is sent"


def test_a_copy_that_was_sent_in_part_is_sent_again(
    whole: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less, changes = Bundle.read(tmp_path / "latest" / "bundle"), list[str]()

    def renewed() -> None:
        renew("s3://bucket/copy", tmp_path / "latest", Traces([PASSAGE]), lambda *line: changes.extend(line))

    with slow_store(monkeypatch) as store:
        put_folder(whole.path, "s3://bucket/copy")
        store.room = 3
        with pytest.raises(UserError, match="full"):
            renewed()
        with pytest.raises(UserError, match="is not complete"):
            get_folder("s3://bucket/copy", tmp_path / "in-part")
        store.room = 1000
        renewed()
        get_folder("s3://bucket/copy", tmp_path / "fetched")
    assert Bundle.read(tmp_path / "fetched").manifest.digest == less.manifest.digest
    assert "s3://bucket/copy" in changes and not any((tmp_path / "forgotten").iterdir())


@pytest.mark.parametrize("password", ["hun#ter2", "hun#ter2@x", "hun%ter2", "hun ter2"])
def test_a_password_is_in_no_message(password: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        renew(f"postgresql://someone:{password}@localhost:1/db#passages", tmp_path, Traces([PASSAGE]), print)
    assert not any(part in str(caught.value) for part in ("hun", "ter2", "someone:"))


def test_what_a_store_keeps_is_noted(former: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = list[str]()
    with slow_store(monkeypatch) as store:
        put_folder(former.path, "s3://bucket/models/a")
        store.objects["models/b/corpus.parquet"] = b"not sent by put_folder"
        for name, deletes in (("a", False), ("b", True), ("a", True)):
            store.deletes = deletes
            remove(f"s3://bucket/models/{name}", lambda change, *lines: changes.extend(f"{change} {x}" for x in lines))
        assert [*store.objects] == ["models/b/corpus.parquet"]
    refused, *others = changes
    assert refused.startswith("left s3://bucket/models/a: the store denies access")
    assert others == ["left s3://bucket/models/b/corpus.parquet", "deleted s3://bucket/models/a"]
