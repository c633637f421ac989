"""Files with damaged bytes are read, or end in one line for the user: nothing else comes out."""

import gzip
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from odd_data.data_sets import OddData, data_sets, flat, write_beir, write_dpr, write_msmarco
from odd_data.test_ingestion import check, ingest

from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import compare

PIECES = (
    b"", b'"', b'""', b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf", b"\x00", b"\xff", b"\xed\xa0\x80", b"{",
    b"}", b"[", b"]", b",", b":", b"\\", b"\\u0000", b"\\ud800", b" ", b"1", b"-", b"null", b"1e999", b"\xc2\x85",
    b"\xe2\x80\xa8", b"id\ttext\ttitle\n", b"query-id\tcorpus-id\tscore\n", b'{"_id": "d0", "text": "again"}\n',
    b"9" * 400,
)  # fmt: skip
CUTS = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 9), st.sampled_from(PIECES)), min_size=1, max_size=4)
"""Place, number of bytes that are left out there, and what is put in."""


def damage(path: Path, cuts: list[tuple[int, int, bytes]]) -> None:
    """Changes bytes of a file."""
    data = path.read_bytes()
    for where, length, piece in cuts:
        start = where % (len(data) + 1)
        data = data[:start] + piece + data[start + length :]
    path.write_bytes(data)


def assert_one_line(error: UserError) -> None:
    assert str(error) and "\n" not in str(error)


@settings(max_examples=65, deadline=None, derandomize=True)
@given(data_sets(most=8), st.sampled_from((write_beir, write_msmarco, write_dpr)), CUTS, st.integers(0, 20))
def test_damaged_data_are_read_or_refused(data: OddData, write: object, cuts: list, which: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write(Path(root) / "data", flat(data))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        damage(files[which % len(files)], cuts)
        try:
            report = check(folder)
            kept, written = ingest(folder, on_bad_rows="drop")
        except UserError as error:
            assert_one_line(error)
        else:
            assert not report.fatal and report == written
            assert len(kept.passages) == report.passages


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 9), CUTS, st.booleans(), st.booleans())
def test_damaged_trec_files_are_read_or_refused(count: int, cuts: list, of_run: bool, zipped: bool) -> None:
    run = "".join(f"q{n % 3} Q0 d{n} {n} {1 / (n + 1)} tag\n" for n in range(count))
    qrels = "".join(f"q{n % 3} 0 d{n} {n % 3}\n" for n in range(1, count + 2))
    with tempfile.TemporaryDirectory() as root:
        paths = []
        for name, text in (("run.trec", run), ("qrels.txt", qrels)):
            paths.append(Path(root) / name)
            paths[-1].write_bytes(text.encode())
            if (name == "run.trec") == of_run:
                damage(paths[-1], cuts)
            if zipped:
                paths[-1].write_bytes(gzip.compress(paths[-1].read_bytes()))
        try:
            compare(paths[:1], paths[1], ("RR@10", "AP"))
        except UserError as error:
            assert_one_line(error)
