"""A pool given with the data is kept, and what does not fit it is named."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from beir_folder import check, write_beir
from command_line import call

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.data import source_digest
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.steps.ingest import ingest

HEADER = "query-id\tcorpus-id\tscore\n"


def with_pool(folder: Path, **files: str) -> Path:
    """The folder with candidates/NAME.tsv, or NAME.tsv.gz for a name that ends with `_gz`."""
    (folder / "candidates").mkdir()
    for name, text in files.items():
        zipped = name.endswith("_gz")
        path = folder / "candidates" / f"{name.removesuffix('_gz')}.tsv{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return folder


def pool_of(folder: Path, out: Path, **settings: str) -> list[tuple[str, str]] | None:
    """The text ids of all candidates."""
    ingest(Ingest(dataset=str(folder), **settings), dataset=out)
    data = Dataset(out)
    if data.pool is None:
        return None
    query, passage = data.pool
    assert query.dtype == passage.dtype == np.int32 and (np.diff(query) >= 0).all()
    queries = data.queries["query_id"].to_pylist()
    return list(zip((queries[row] for row in query), data.passages.take(passage).ids, strict=True))


def test_a_pool_is_kept_whatever_the_form_of_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_pool(
        write_beir(tmp_path / "d"),
        train_gz=HEADER + "q1\td5\t0.5\nq0\td4\t3\nq1\td1\t2\nq1\td5\t0\n",  # the last repeats the first
        validation="q3\td0\nq3\td3\t1\t7.5\n",  # lines of two and of four columns
        test="q4\td4\t1\nq5\td2\t1\n",  # q5 is in no qrels, so it is no query of the dataset
    )
    pool = pool_of(folder, tmp_path / "out")
    assert pool == [("q0", "d4"), ("q1", "d1"), ("q1", "d5"), ("q3", "d0"), ("q3", "d3"), ("q4", "d4")]
    manifest = read_manifest(tmp_path / "out")
    assert manifest.rows["pool"] == 6
    remark = "candidates for queries: train 3 for 2, dev 2 for 1, test 1 for 1"
    assert manifest.metrics["pool"] == remark
    call("data", "check", str(folder))
    assert f"pool       {remark}\n" in capsys.readouterr().out


def test_a_dataset_without_a_pool_is_as_it_was(tmp_path: Path) -> None:
    assert pool_of(write_beir(tmp_path / "d"), tmp_path / "out") is None
    assert sorted(path.name for path in (tmp_path / "out").glob("*.parquet")) == [
        "corpus.parquet", "qrels.parquet", "queries.parquet",
    ]  # fmt: skip
    before = Ingest(dataset=str(tmp_path / "d"))
    assert "pool" not in check(before).facts


def test_unknown_ids_are_counted_and_named_with_their_lines(tmp_path: Path) -> None:
    bad = "".join(f"q{n}\td0\n" for n in range(70, 75)) + "q0\td99\nq0\td1\nq0\n"
    folder = with_pool(write_beir(tmp_path / "d"), train=HEADER + bad, other=bad)
    with pytest.raises(UserError) as caught:
        ingest(Ingest(dataset=str(folder)), dataset=tmp_path / "out")
    message = str(caught.value)
    for part in (
        "5 × candidate of an unknown query (candidates/train.tsv line 2: 'q70', ",
        "1 × candidate that is an unknown passage (candidates/train.tsv line 7: 'd99')",
        "1 × wrong columns or fields (candidates/train.tsv line 9: 1 columns instead of 2 to 4)",
        "ingest.on_bad_rows=drop",
    ):
        assert part in message
    assert "\n" not in message
    assert pool_of(folder, tmp_path / "dropped", on_bad_rows="drop") == [("q0", "d1")]
    remarks = check(Ingest(dataset=str(folder))).remarks
    assert "'candidates/other.tsv' was not read: splits are train, dev and test" in remarks


def test_another_pool_is_another_dataset(tmp_path: Path) -> None:
    folder = with_pool(write_beir(tmp_path / "d"), test="q4\td4\n")
    settings = Ingest(dataset=str(folder))
    before = source_digest(settings)
    (folder / "candidates" / "test.tsv").write_text("q4\td3\n")
    assert source_digest(settings) != before
