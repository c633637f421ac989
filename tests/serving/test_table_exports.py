"""Tables of LanceDB and PostgreSQL have the bundle's rows and hits, and an update sends only what changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from command_line import call
from pgvector.psycopg import register_vector
from table_engines import Engine, LanceEngine, PostgresEngine, expected, write_bundle

from gnn_encoder import Retriever, UserError
from gnn_encoder.artifacts import Bundle
from gnn_encoder.serving.exports import export, lance_table, postgres_table, rows
from gnn_encoder.serving.exports.job import Job
from gnn_encoder.serving.exports.rows import Block


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


def test_the_replay_searches_by_the_index_and_exactly(former: Bundle, postgres: str) -> None:
    engine = PostgresEngine(postgres)
    engine.export(former)
    with psycopg.connect(postgres) as connection:
        register_vector(connection)
        table = postgres_table._Table(Job(former, "pgvector", postgres, engine.table), connection)
        for effort, plan in ((None, "Seq Scan"), (40, "Index Scan using")):
            table.search(np.array(former.vectors[:1]), 10, effort)
            explained = table.run(
                "EXPLAIN SELECT digest FROM {table} ORDER BY vector <#> %s LIMIT 10", former.vectors[0]
            ).fetchall()
            assert any(plan in line for (line,) in explained), explained


def test_on_the_command_line(
    former: Bundle, later: Bundle, trained: Bundle, postgres: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = postgres.replace("postgres:@", "postgres:hunter2@")
    assert secret != postgres
    for form, target, table in (("lancedb", str(tmp_path / "out"), "passages"), ("pgvector", secret, "by_command")):
        command = ["export", "--format", form, "--table", table, target, "--bundle"]
        assert call(*command, str(former.path)) == 0
        shown = capsys.readouterr()
        assert "100 rows are the bundle's" in shown.out and table in shown.out
        assert any(line.startswith("export: comparing 100/100 rows") for line in shown.err.splitlines())
        assert call(*command, str(former.path)) == 2
        assert capsys.readouterr().err.startswith("error: ")
        assert call(*command, str(later.path), "--update") == 0
        assert "sent 3 rows, deleted 3, 97 stayed" in capsys.readouterr().out
        assert call(*command, str(trained.path), "--update") == 2
        assert "holds vectors of another query encoder" in capsys.readouterr().err
        assert "hunter2" not in shown.out + shown.err
    with psycopg.connect(postgres) as connection:
        (facts,) = connection.execute("SELECT obj_description('by_command'::regclass, 'pg_class')").fetchone() or ("",)
    assert "hunter2" not in facts


def test_a_table_of_postgresql_has_texts_without_nul_and_says_whose(
    former: Bundle, postgres: str, tmp_path: Path
) -> None:
    some = former.passages.take(np.arange(20))
    words = list(zip(some.ids, some.titles, some.texts, strict=True))
    words[3], words[7] = ("p3", "ti\0tle", "text"), ("a 'p'; 7", "title", "\0te\0xt\v\u2028")
    bundle = write_bundle(former, words, np.array(former.vectors[:20]), tmp_path / "with")
    engine, note = PostgresEngine(postgres), "; NUL characters left out of 2 passages, first 'p3'"
    assert engine.export(bundle).endswith(note)
    rows_of_table = engine.rows()
    assert [rows_of_table[name, 0][:2] for name in ("p3", "a 'p'; 7")] == [("title", "text"), ("title", "text\v\u2028")]
    assert engine.export(bundle, update=True).startswith("sent 0 rows, deleted 0, 20 stayed")
    assert engine.rows() == rows_of_table and engine.facts()["replay"].endswith(note)
    lance = LanceEngine(tmp_path)
    assert "NUL" not in lance.export(bundle) and lance.rows() == expected(bundle)  # which stores them


def test_an_id_with_nul_is_refused_before_anything_is_sent(former: Bundle, tmp_path: Path) -> None:
    some = former.passages.take(np.arange(20))
    words = [(f"p{i}\0" if i > 17 else f"p{i}", "", text) for i, text in enumerate(some.texts)]
    bundle = write_bundle(former, words, np.array(former.vectors[:20]), tmp_path)
    with pytest.raises(UserError, match=r"2 ids of passages have the character NUL.*first 'p18\\x00': give them other"):
        export(bundle, "pgvector", "postgresql://localhost:1/none")


@pytest.mark.slow
def test_a_passage_that_the_encoding_of_a_database_cannot_hold_is_named(
    former: Bundle, postgres: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    address = postgres.replace("/postgres?", "/latin?")
    assert address != postgres
    some = former.passages.take(np.arange(20))
    words = [
        (name, "\u00e9", "\u2014" if name == "p4" else text) for name, text in zip(some.ids, some.texts, strict=True)
    ]
    bundle = write_bundle(former, words, np.array(former.vectors[:20]), tmp_path)
    with pytest.raises(UserError, match=r"passage 'p4' has characters that the database's encoding, .*1, lacks: name"):
        export(bundle, "pgvector", address)
    assert "rows are the bundle's" in export(former, "pgvector", address)
