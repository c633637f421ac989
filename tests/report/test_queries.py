"""The files of queries beside a page: links to sources, parts, and cuts."""

import json
from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, Qrels
from gnn_encoder.artifacts.history import Record
from gnn_encoder.report import queries
from gnn_encoder.report.queries import source_of, write_queries


def test_links_lead_to_files_pages_and_the_web(tmp_path: Path) -> None:
    source = source_of(Record({"format": "documents", "dataset": str(tmp_path)}))
    assert source("a b.pdf#page=3:1") == f"{tmp_path.as_uri()}/a%20b.pdf#page=3"
    assert source("notes.md#use-it:2") == f"{tmp_path.as_uri()}/notes.md#use-it"
    assert source("plain.txt") == f"{tmp_path.as_uri()}/plain.txt"
    assert source("https://example.org/a") == "https://example.org/a"
    of_data = source_of(Record({"format": "auto", "dataset": str(tmp_path)}))
    assert of_data("a.pdf#page=3:1") == "" and of_data("javascript:alert(1)") == ""


def test_parts_hold_what_one_file_would(tmp_path: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = len(tiny_dataset.query_rows("test")), len(tiny_dataset.passages)
    hits = {name: np.random.default_rng(seed).integers(-1, m, (n, 4)) for seed, name in enumerate("ab")}
    figures = {name: np.random.default_rng(seed).random(n) for seed, name in enumerate("ab")}
    monkeypatch.setattr(queries, "TEXT", 12)

    def written(part: int) -> tuple[list, list]:
        monkeypatch.setattr(queries, "PART", part)
        folder = tmp_path / str(part)
        folder.mkdir()
        write_queries(folder, tiny_dataset, "test", figures, hits, {}, str, one="a", other="b", measure="MRR@10")
        values = {}
        for path in folder.iterdir():
            name, value = json.loads(f"[{path.read_text('utf-8')[len('part(') : -2]}]")
            values[name] = value
        assert values["index"]["measure"] == "MRR@10" and values["index"]["part"] == part
        return tuple(
            [row for number in range(len(values)) for row in values.get(f"{kind}-{number}", [])]
            for kind in ("hits", "passages")
        )  # type: ignore[return-value]

    whole, (of_queries, passages) = written(1000), written(7)
    assert whole == (of_queries, passages)
    everything = next(tiny_dataset.passages.stream())
    for row, (ranked, _) in enumerate(of_queries):
        for of, name in zip(ranked, "ab", strict=True):
            assert [passages[p][0] for p in of] == [everything.ids[p] for p in hits[name][row] if p >= 0]
    assert all(len(text) <= 13 and text.endswith("…") for _, _, text, *_ in passages)


def test_a_hit_has_its_label_however_many_labels_a_query_has(
    tmp_path: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LABELS", 2)
    labels = tiny_dataset.judged("test")
    query, m = int(labels.query[0]), len(tiny_dataset.passages)
    many = Qrels(*(np.asarray(of, np.int32) for of in ([query] * 6, range(6), [1, 1, 1, 1, 0, 1])))
    monkeypatch.setattr(Dataset, "judged", lambda *_: many)
    hits = {"a": np.array([[3, m - 1]]), "b": np.array([[4, -1]])}
    write_queries(tmp_path, tiny_dataset, "test", dict.fromkeys("ab", np.ones(1)), hits, {}, str, one="a", other="b")
    value = {path.stem: json.loads(f"[{path.read_text('utf-8')[5:-2]}]")[1] for path in tmp_path.iterdir()}
    ((ranked, of_query),), passages = value["hits-0"], value["passages-0"]
    ids = next(tiny_dataset.passages.stream()).ids
    assert {passages[row][0]: grade for row, grade in of_query} == {ids[0]: 1, ids[1]: 1, ids[3]: 1, ids[4]: 0}
    assert [[passages[row][0] for row in of] for of in ranked] == [[ids[3], ids[m - 1]], [ids[4]]]
    assert len(passages) == 5  # the labels that nothing shows bring no passages


def test_a_small_gain_is_a_gain(tmp_path: Path, tiny_dataset: Dataset) -> None:
    n = len(tiny_dataset.query_rows("test"))
    figures = {"a": np.full(n, 1 / 1000), "b": np.full(n, 1 / 900)}
    hits = dict.fromkeys("ab", np.zeros((n, 1), int))
    write_queries(tmp_path, tiny_dataset, "test", figures, hits, {}, str, one="a", other="b")
    _, index = json.loads(f"[{(tmp_path / 'index.js').read_text('utf-8')[5:-2]}]")
    worse, better = index["figures"]
    assert worse[0] < better[0]


def test_of_many_queries_some_are_drawn_of_each_stratum_and_those_that_differ(
    tmp_path: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, m = len(tiny_dataset.query_rows("test")), len(tiny_dataset.passages)
    hits = {name: np.random.default_rng(seed).integers(0, m, (n, 4)) for seed, name in enumerate("ab")}
    differ, cold = np.arange(n) % 3 == 0, np.arange(n) == 1
    figures = {"a": np.ones(n), "b": np.where(differ, 0.5, 1.0)}
    strata = {"warm": ~cold, "cold": cold}
    monkeypatch.setattr(queries, "OF_STRATUM", 1)

    def written(most: int, first: int) -> tuple[int, int, dict]:
        monkeypatch.setattr(queries, "BYTES", most)
        monkeypatch.setattr(queries, "MEASURED", first)
        folder = tmp_path / f"{most}-{first}"
        folder.mkdir()
        count = write_queries(folder, tiny_dataset, "test", figures, hits, strata, str, one="a", other="b")
        index = json.loads(f"[{(folder / 'index.js').read_text('utf-8')[5:-2]}]")[1]
        assert len(index["ids"]) == count and index["ids"] == [of for of in all_ids if of in index["ids"]]
        return count, sum(path.stat().st_size for path in folder.iterdir()), index

    all_ids = tiny_dataset.queries.column("query_id").take(tiny_dataset.query_rows("test")).to_pylist()
    count, whole, index = written(10**9, 4)
    assert count == n and index["figures"][1] == figures["b"].tolist()
    for first in (2, 10**6):
        count, size, index = written(whole // 2, first)
        assert 2 <= count < n and size <= whole // 2
        kept = [all_ids.index(of) for of in index["ids"]]
        assert len(index["strata"]["cold"]) == 1
        others = [row for row in kept if row != 1]
        assert all(differ[others]) or set(np.flatnonzero(differ)) <= set(others)
    assert written(1, 2)[0] == 1
