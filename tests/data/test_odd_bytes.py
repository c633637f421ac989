"""Files with odd bytes are read, or refused in one line, and checked as they are read."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from beir_folder import check, ingested, write_beir
from layouts import write_dpr, write_msmarco

from gnn_encoder.data.validation import DataReport
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

ODD = [
    b"null", b"\nnull\n", b"[" * 3000, b'{"a":' * 3000, b"9" * 6000, b"-" * 90_000, b"\\ud800", b"\xed\xa0\x80",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\n\xef\xbb\xbf", b"\0", b"\r", b"\n", b"\n\n", b"\t", b'"', b"'", b"\\",
    b"NaN", b"1_0", b"\x1b[31m", b"\xe2\x80\x8b", b"2147483647", b"{}", b"[]", b",", b"id\ttext\n", b"\x1f\x8b\x08\0",
]  # fmt: skip
CODINGS = ["latin-1", "utf-16", "utf-32", "utf-8-sig", "cp1252"]


def spoil(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    for _ in range(draw.randrange(1, 3)):
        # Half of them at the start of a line, where most readers look first.
        starts = [0, *(i + 1 for i, byte in enumerate(data) if byte == ord("\n"))]
        at = draw.choice([draw.choice(starts), draw.randrange(len(data) + 1)])
        data = data[:at] + draw.choice(ODD) + data[at + draw.choice([0, 0, 1, 20]) :]
    if draw.random() < 0.15:
        data = data.decode("utf-8", "replace").encode(draw.choice(CODINGS), "replace")
    if draw.random() < 0.3:
        path.unlink()
        path = path.with_name(path.name + ".gz")
        data = gzip.compress(data, 1)
        data = draw.choice([data, data, gzip.compress(data, 1), data[: draw.randrange(len(data))], data + data])
    path.write_bytes(data)


def outcome(read: Callable[[], DataReport]) -> DataReport | str:
    """The report, or the line that refuses the data set."""
    try:
        report = read()
    except UserError as error:
        return str(error)
    for line in (*report.problems, *report.remarks):
        assert "\n" not in str(line)
        str(line).encode()
    return report


@pytest.mark.parametrize("write", [write_beir, write_msmarco, write_dpr])
def test_odd_bytes_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    ways = dict.fromkeys(("sound", "mended by drop", "refused"), 0)
    for seed in range(20):
        draw = random.Random(seed)
        monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", draw.choice([100, 1 << 22]))
        folder = write(tmp_path / str(seed))
        spoil(draw.choice(sorted(path for path in folder.rglob("*") if path.is_file())), draw)

        def kept(rows: str, folder: Path = folder) -> DataReport:
            return ingested(Ingest(dataset=str(folder), on_bad_rows=rows), folder / rows)[1]

        seen = outcome(lambda folder=folder: check(Ingest(dataset=str(folder))))
        refused, dropped = outcome(lambda: kept("refuse")), outcome(lambda: kept("drop"))
        if isinstance(seen, str) or seen.fatal:
            ways["refused"] += 1
            assert isinstance(refused, str) and isinstance(dropped, str) and "\n" not in refused + dropped
        else:
            ways["mended by drop" if seen.problems else "sound"] += 1
            assert dropped == seen, seed
            assert isinstance(refused, str) if seen.problems else refused == seen
    assert all(ways.values()), ways
