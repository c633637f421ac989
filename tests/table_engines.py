"""LanceDB and PostgreSQL with pgvector, as the tests of exported tables ask them.

Both clients are imported where they are used, because LanceDB takes as long to import as all else that tests import.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.bundle import VECTOR_PASSAGES
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.serving.exports import export, lance_table, postgres_table
from gnn_encoder.serving.exports.job import FACTS

Rows = dict[tuple[str, int], tuple[str, str, bytes]]
"""Passage id and part → title, text and vector."""


class LanceEngine:
    form = "lancedb"
    module: Any = lance_table

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = str(folder / "out")

    def _table(self) -> Any:
        import lancedb

        return lancedb.connect(self.target).open_table("passages")

    def rows(self) -> Rows:
        table = self._table().search().limit(None).to_arrow()
        columns = [table.column(name).to_pylist() for name in ("passage_id", "part", "title", "text")]
        vectors = table.column("vector").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return _rows(*columns, vectors)

    def facts(self) -> Any:
        return json.loads((Path(self.target) / FACTS).read_text())

    def search(self, query: np.ndarray, k: int) -> list[str]:
        nearest = self._table().search(query).distance_type("dot").limit(k).to_arrow()
        return list(nearest.column("passage_id").to_pylist())

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
        import psycopg
        from pgvector.psycopg import register_vector

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
        nearest = self._run("SELECT passage_id FROM {} ORDER BY vector <#> %s LIMIT %s", query, k)
        return [passage for (passage,) in nearest]

    def alter(self, passage: str) -> None:
        self._run("UPDATE {} SET text = 'altered' WHERE passage_id = %s", passage)

    def nothing(self) -> bool:
        return self._run("SELECT to_regclass('{}')")[0][0] is None

    def indexes(self) -> int:
        return len(self._run("SELECT 1 FROM pg_indexes WHERE tablename = '{}' AND indexdef LIKE '%hnsw%'"))

    def export(self, bundle: Bundle, **options: Any) -> str:
        return export(bundle, self.form, self.target, table=self.table, **options)


def _rows(ids: Any, parts: Any, titles: Any, texts: Any, vectors: np.ndarray) -> Rows:
    by_id = {
        (name, part): (title, text, vector.tobytes())
        for name, part, title, text, vector in zip(ids, parts, titles, texts, vectors, strict=True)
    }
    assert len(by_id) == len(vectors)
    return by_id


def expected(bundle: Bundle) -> Rows:
    of = bundle.vector_passages if bundle.vector_passages is not None else np.arange(len(bundle.vectors))
    some = bundle.passages.take(of)
    parts = [int((of[:i] == passage).sum()) for i, passage in enumerate(of)]
    return _rows(some.ids, parts, some.titles, some.texts, np.asarray(bundle.vectors))


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


Engine = LanceEngine | PostgresEngine
