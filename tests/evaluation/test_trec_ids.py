"""Whatever ids a dataset has, the TREC files that this program writes name each differently, and are read back."""

import gzip
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Dataset, DatasetWriter, Qrels, Run, drafting
from gnn_encoder.evaluation.trec import Ids, read_qrels, read_run_of, without_space, write_qrels, write_run

IDS = st.lists(
    st.text(st.sampled_from('ab%20%25C"\0\t \u00a0\u2028\ufeff\x1c\x85é'), min_size=1, max_size=6)
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
    min_size=1, max_size=12, unique=True,
)  # fmt: skip


def dataset(folder: Path, queries: list[str], passages: list[str]) -> Dataset:
    with drafting(folder, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(passages, [""] * len(passages), ["text"] * len(passages))
        writer.queries(queries, ["query"] * len(queries), ["test"] * len(queries), [[]] * len(queries))
        writer.qrels([queries[0]], [passages[0]], [1], [0], [0])
        writer.close()
    return Dataset(folder)


@settings(max_examples=60, deadline=None)
@given(IDS, IDS)
def test_any_ids_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, queries: list[str], passages: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("trec")
    data, n, m = dataset(folder / "data", queries, passages), len(queries), len(passages)
    columns = data.queries["query_id"], data.passages.ids()
    run = Run.from_hits(np.arange(n), np.tile(np.arange(m), (n, 1)), np.tile(-np.arange(m, dtype=float), (n, 1)))
    write_run(folder / "run.gz", run, *columns, "tag")
    read_back = read_run_of(folder / "run.gz", data)
    for name in Run.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(read_back, name), getattr(run, name))

    rows = np.arange(m, dtype=np.int32)
    write_qrels(folder / "qrels.gz", Qrels(rows % n, rows, rows % 2), *columns)
    names = Ids(), Ids()
    labels = read_qrels(folder / "qrels.gz", *names)
    for ids, column, row in ((names[0], queries, labels.query), (names[1], passages, labels.passage)):
        written = [ids.column()[number].as_py() for number in row]
        assert written == [
            without_space(pa.chunked_array([column]))[i].as_py() for i in (rows % n if column is queries else rows)
        ]
    for fields in (line.split() for line in gzip.decompress((folder / "run.gz").read_bytes()).decode().splitlines()):
        assert len(fields) == 6  # also for a reader that ends fields at every white space


@settings(deadline=None)
@given(IDS)
def test_an_id_with_white_space_makes_all_ids_urls_and_none_leaves_them(ids: list[str]) -> None:
    with_space = [*ids, " "] if " " not in ids else ids
    written = without_space(pa.chunked_array([with_space])).to_pylist()
    assert [unquote(name) for name in written] == with_space
    plain = [name for name in ids if not set(name) & set("\0\t \u00a0\u2028\ufeff\x1c\x85") and name.split() == [name]]
    if plain == ids:
        assert without_space(pa.chunked_array([ids], pa.string())).to_pylist() == ids


def test_ordinary_ids_stay_and_those_of_other_programs_are_known(tmp_path: Path) -> None:
    urls = ["https://x.org/a%20b", "50%_off", "100%25"]
    assert without_space(pa.chunked_array([urls])).to_pylist() == urls
    assert without_space(pa.chunked_array([[*urls, "a b"]])).to_pylist() == [
        "https://x.org/a%2520b", "50%_off", "100%2525", "a%20b",
    ]  # fmt: skip
    data = dataset(tmp_path / "data", ["q"], ["a b", "a%20b", "x%20y"])
    path = tmp_path / "run"
    path.write_text("q Q0 a%20b 1 3 t\nq Q0 a%2520b 2 2 t\nq Q0 x%20y 3 1 t\n")  # the last as it is in the data
    assert read_run_of(path, data).passage.tolist() == [0, 1, 2]
