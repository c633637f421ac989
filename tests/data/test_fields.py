"""Further fields of a corpus: typed, of the passages that are kept, and in every bundle of the data."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from beir_folder import PASSAGES, ingested, lines, write_beir

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.artifacts.fields import FIELDS, kind_of, read_fields
from gnn_encoder.errors import Damaged
from gnn_encoder.settings.foundation import Ingest

VALUES: list[dict[str, Any]] = [
    {
        "metadata": {
            "product": "pump",
            "day": "2026-01-01",
            "year": 2020,
            "groups": ["a", "b"],
            "code": "7",
            "mixed": 1,
        }
    },
    {"metadata": {"product": "valve", "day": "2026-01-02T10:00:00", "groups": [], "mixed": "x"}, "public": True},
    {"metadata": {}, "year": 2021, "url": "u" * 300},
    {"metadata": {"product": None, "year": 2022.5, "groups": None, "deep": {"a": 1}}, "public": False},
    {"metadata": {"day": "2026-02-01", "groups": ["b"], "mixed": True}, "author": "A"},
    {"metadata": {"product": "pump", "year": 7, "mixed": 2.5}, "author": ["B", "C"]},
]
TYPED = {
    "product": ("text", ["pump", "valve", None, None, None, "pump"]),
    "day": ("date", [datetime(2026, 1, 1), datetime(2026, 1, 2, 10), None, None, datetime(2026, 2, 1), None]),
    "year": ("number", [2020.0, None, 2021.0, 2022.5, None, 7.0]),
    "groups": ("lists of text", [["a", "b"], None, None, None, ["b"], None]),
    "code": ("text", ["7", None, None, None, None, None]),
    "mixed": ("text", ["1", "x", None, None, "true", "2.5"]),
    "public": ("truth", [None, True, None, False, None, None]),
    "author": ("lists of text", [None, None, None, None, ["A"], ["B", "C"]]),
}


def in_python(dataset: Dataset) -> dict[str, tuple[str, list[Any]]]:
    """Type and values of each field; an empty list is no value."""
    fields = read_fields(dataset.path, len(dataset.passages))
    assert fields
    named = zip(fields.schema.names, fields.columns, strict=True)
    columns = {name: [None if value == [] else value for value in column.to_pylist()] for name, column in named}
    return {f.name: (kind_of(f.type), columns[f.name]) for f in fields.schema}


@pytest.mark.usefixtures("way")
def test_fields_are_typed_however_the_file_is_read(tmp_path: Path) -> None:
    corpus = [{**passage, **more} for passage, more in zip(PASSAGES, VALUES, strict=True)]
    folder = write_beir(tmp_path / "beir", lines(corpus))
    dataset, report = ingested(Ingest(dataset=str(folder)), tmp_path / "dataset")
    assert in_python(dataset) == TYPED
    assert report.facts["fields"].startswith("product (text), day (date), year (number), groups (lists of text)")
    remarks = {remark for remark in report.remarks if remark.startswith("field ")}
    assert "field 'url' has texts of more than 256 characters: no search filters by it" in remarks


def test_fields_stay_with_their_passages_when_rows_are_left_out(tmp_path: Path) -> None:
    rows = [{**passage, "number": i} for i, passage in enumerate(PASSAGES)]
    rows[1:1] = [{"_id": "empty", "title": " ", "text": "", "number": 90}, {"_id": "d0", "text": "twice", "number": 91}]
    corpus = lines(rows) + '{"_id": "half", "text": "\\ud800", "number": 92}\n' + '{"text": "no id", "number": 93}\n'
    folder = write_beir(tmp_path / "beir", corpus)
    dataset, _ = ingested(Ingest(dataset=str(folder), on_bad_rows="drop"), tmp_path / "dataset")
    assert in_python(dataset) == {"number": ("number", list(range(6)))}
    assert dataset.passages.ids().to_pylist() == [f"d{i}" for i in range(6)]


@pytest.mark.usefixtures("way")
def test_values_of_a_row_and_of_its_metadata(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [
        {"metadata": {"groups": ["a"], "size": 2**53 + 1}},
        {"groups": ["b"], "size": 2},
        {"groups": ["c"], "metadata": {"groups": ["d"]}, "size": None},
        {"groups": None, "metadata": {"groups": ["e"], "size": 2.5}},
        {"metadata": None},
        {"metadata": {"groups": None}},
    ]
    corpus = [{**passage, **more} for passage, more in zip(PASSAGES, values, strict=True)]
    dataset, _ = ingested(Ingest(dataset=str(write_beir(tmp_path / "beir", lines(corpus)))), tmp_path / "dataset")
    kind, groups = in_python(dataset)["groups"]
    assert (kind, groups) == ("lists of text", [["a"], ["b"], ["c"], ["e"], None, None])
    assert in_python(dataset)["size"] == ("text", ["9007199254740993", "2", None, "2.5", None, None])


@pytest.mark.usefixtures("way")
def test_whole_numbers_that_fp64_rounds_are_texts(tmp_path: Path) -> None:
    large = [10**19 + i for i in range(6)]
    corpus = [
        {
            **passage,
            "large": n,
            "metadata": {"lists": [n], "floats": n * 1.5, "int64": 2**62 + n % 10},
            "\ud800": n % 10,
        }
        for passage, n in zip(PASSAGES, large, strict=True)
    ]
    dataset, _ = ingested(Ingest(dataset=str(write_beir(tmp_path / "beir", lines(corpus)))), tmp_path / "dataset")
    assert in_python(dataset) == {
        "lists": ("lists of text", [[str(n)] for n in large]),
        "floats": ("number", [n * 1.5 for n in large]),
        "int64": ("number", [2**62 + n % 10 for n in large]),
        "large": ("text", [str(n) for n in large]),
        "?": ("number", [n % 10 for n in large]),
    }


@pytest.mark.usefixtures("way")
def test_where_passages_stand_is_a_field_if_only_metadata_name_a_document(tmp_path: Path) -> None:
    more = [{"metadata": {"doc_id": f"D{i}"}, "order": i, "section": f"s{i}", "parent": i % 2} for i in range(6)]
    corpus = [{**passage, **fields} for passage, fields in zip(PASSAGES, more, strict=True)]
    dataset, _ = ingested(Ingest(dataset=str(write_beir(tmp_path / "beir", lines(corpus)))), tmp_path / "dataset")
    assert dataset.structure is None
    assert in_python(dataset) == {
        "doc_id": ("text", [f"D{i}" for i in range(6)]),
        "order": ("number", list(range(6))),
        "section": ("text", [f"s{i}" for i in range(6)]),
        "parent": ("number", [0, 1, 0, 1, 0, 1]),
    }


def fields_of_dpr(header: str, rows: list[str], folder: Path) -> dict[str, tuple[str, list[Any]]]:
    """The fields of a corpus with tabs between its columns."""
    folder.mkdir()
    (folder / "psgs_w100.tsv").write_text("\n".join([header, *rows, header, ""]), encoding="utf-8")
    for split in ("train", "dev", "test"):
        questions = [{"question": f"q{i} of {split}", "positive_ctxs": [{"passage_id": str(i)}]} for i in range(3)]
        (folder / f"nq-{split}.json").write_text(json.dumps(questions), encoding="utf-8")
    dataset, _ = ingested(Ingest(dataset=str(folder)), folder.with_name(f"{folder.name}-dataset"))
    return in_python(dataset)


def test_columns_of_a_file_with_tabs(tmp_path: Path) -> None:
    rows = [f"{i}\ttext {i}\tTitle {i}\t{2000 + i}\t2026-01-0{i + 1}T00:00:00Z\t{'' if i else 'x'}" for i in range(3)]
    days = [datetime(2026, 1, day) for day in (1, 2, 3)]
    expected = {"year": ("number", [2000, 2001, 2002]), "day": ("date", days), "note": ("text", ["x", None, None])}
    assert fields_of_dpr("id\ttext\ttitle\tyear\tday\tnote", rows, tmp_path / "dpr") == expected


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["0123", "123", ""], ["0123", "123", None]),
        (["0123", "1.5", "2"], ["0123", "1.5", "2"]),
        (["12345678901234567890", "12345678901234567891", "7"], None),
        (["9007199254740993", "0.5", "1"], None),
        (["9007199254740993", "-5", "0"], [9007199254740993, -5, 0]),
        (["0.10", "1e300", "-3"], [0.1, 1e300, -3.0]),
        (["0x1F", "2", "3"], None),
    ],
)
def test_texts_are_numbers_only_if_numbers_say_all_that_they_say(
    texts: list[str], values: list[Any] | None, tmp_path: Path
) -> None:
    rows = [f"{i}\ttext {i}\tTitle {i}\t{text}" for i, text in enumerate(texts)]
    (field,) = fields_of_dpr("id\ttext\ttitle\tcode", rows, tmp_path / "dpr").values()
    expected = values or texts
    assert field == ("text" if isinstance(expected[0], str) else "number", expected)


def test_data_without_further_fields_have_no_file(tmp_path: Path) -> None:
    dataset, report = ingested(Ingest(dataset=str(write_beir(tmp_path / "beir"))), tmp_path / "dataset")
    assert not (dataset.path / FIELDS).exists() and read_fields(dataset.path, 6) is None
    assert "fields" not in report.facts


def test_a_bundle_has_them_also_with_written_queries(tmp_path: Path) -> None:
    corpus = [{**passage, "metadata": {"number": i}} for i, passage in enumerate(PASSAGES)]
    folder = write_beir(tmp_path / "beir", lines(corpus))
    dataset, _ = ingested(Ingest(dataset=str(folder)), tmp_path / "dataset")
    with drafting(tmp_path / "more", "dataset") as draft:
        extend_queries(draft, dataset, ["written"], ["train"], [[0]], [-1], dataset.recurring, False)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        Bundle.complete(draft, Dataset(tmp_path / "more"))
    fields = Bundle.read(tmp_path / "bundle").fields
    assert fields and fields.column("number").to_pylist() == list(range(6))
    (tmp_path / FIELDS).write_bytes((tmp_path / "bundle" / FIELDS).read_bytes()[:-40])
    with pytest.raises(Damaged, match="cannot be read"):
        read_fields(tmp_path, 6)
    with pytest.raises(Damaged, match="6 rows for 7 passages"):
        read_fields(tmp_path / "bundle", 7)
