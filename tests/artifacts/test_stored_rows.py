"""Rows of a Parquet file against pyarrow's own table, whatever the reader keeps of it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gnn_encoder.artifacts import passages
from gnn_encoder.artifacts.passages import StoredTable


@pytest.mark.parametrize("room", [1, 3000, 2**26])
def test_rows_equal_the_table_and_what_is_kept_is_bounded(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages, "RECENT", room)
    random = np.random.default_rng(0)
    whole = pa.table({"text": [f"{number} {'x' * random.integers(40)}" for number in range(500)]})
    pq.write_table(whole, tmp_path / "t.parquet", row_group_size=20)
    stored, most = StoredTable(tmp_path / "t.parquet"), 0
    for _ in range(40):
        rows = random.integers(0, 500, random.integers(0, 60))
        assert stored.rows(rows).column("text").to_pylist() == whole.take(rows).column("text").to_pylist()
        kept = sum(group.nbytes for group in stored._recent.values())
        assert kept <= room or len(stored._recent) == 1
        assert stored._room == room - kept
        most = max(most, len(stored._recent))
    assert {1: most == 1, 3000: 1 < most < 25, 2**26: most == 25}[room]
