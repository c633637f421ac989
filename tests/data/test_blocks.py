"""What Arrow makes of a block is what the lines, gone through one by one, say."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gnn_encoder.data import beir, delimited
from gnn_encoder.data.beir import json_lines
from gnn_encoder.data.delimited import tab_separated
from gnn_encoder.data.lines import Block
from gnn_encoder.data.rows import PassageRows
from gnn_encoder.data.validation import Problems

WORDS = [
    "plain",
    "",
    " ",
    '"',
    '""',
    '"quoted"',
    '"a ""b"" c"',
    "NULL",
    "nan",
    "é",
    "日本",
    "\\N",
    "a,b",
    "'",
    "1",
    "\x00",
    "Id",
]


CLOSED = [word for word in WORDS if word != '"']
"""Words that are whole fields of a CSV file."""


def tsv_line(draw: random.Random, fault: float, words: list[str]) -> bytes:
    width = 3 if draw.random() > fault else draw.choice([1, 2, 4])
    line = "\t".join(draw.choice(words) for _ in range(width)).encode()
    if draw.random() < fault:
        line = draw.choice([b"", b"\xff\tx", line + b"\r", b"a\rb\tc", b" "])
    return line


def json_line(draw: random.Random, fault: float) -> bytes:
    record = {"_id": draw.choice(WORDS[6:]), "text": draw.choice(WORDS), "metadata": {"url": draw.choice(WORDS)}}
    if draw.random() < 0.5:
        record["title"] = draw.choice([*WORDS, None])
    if draw.random() < fault:
        record[draw.choice(["_id", "text", "title"])] = draw.choice(["", None, 7, ["x"]])
    line = json.dumps(record, ensure_ascii=draw.random() < 0.5).encode()
    if draw.random() < fault:
        line = draw.choice(
            [b"", b"{", b"[1]", b'{"_id": "a"}', line + b"\r", line[:-1], b'"\xff"', b'{"x": "\xff",' + line[1:]]
        )
    if draw.random() < fault / 4:
        line = line.replace(b'"text": "', b'"text": "\\ud800')
    return line


def read(source: str, path: Path) -> tuple[list[tuple[object, ...]], list[str]]:
    problems = Problems()
    if source == "beir":
        rows = list(beir.Beir(path.parent).passages(problems))
    else:
        rows = list(delimited.read_passages(path, problems, dpr=source == "quoted"))
    return [row for block in rows for row in unpacked(block)], [str(p) for p in problems.all()]


def unpacked(rows: PassageRows) -> list[tuple[object, ...]]:
    columns = [c if isinstance(c, list) else c.to_pylist() for c in (rows.ids, rows.titles, rows.texts)]
    return list(zip(*columns, rows.lines, strict=True))


@pytest.mark.parametrize("source", ["plain", "quoted", "beir"])
@pytest.mark.parametrize("fault", [0.0, 0.002, 0.1])
def test_arrow_reads_what_line_by_line_reading_reads(
    source: str, fault: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", 1 << 10)
    path = tmp_path / "corpus.jsonl"
    taken = []
    for module, name in ((beir, "json_lines"), (delimited, "tab_separated")):
        fast = getattr(module, name)

        def counted(*arguments: Any, fast: Any = fast) -> Any:
            rows_read = fast(*arguments)
            if rows_read is not None or arguments[-1] is not False:  # or other fields are taken in a second call
                taken.append(rows_read)
            return rows_read

        monkeypatch.setattr(module, name, counted)
    for seed in range(10):
        draw = random.Random(seed)
        if source == "beir":
            rows = [json_line(draw, fault) for _ in range(300)]
        else:
            words = CLOSED if source == "quoted" and not fault else WORDS
            rows = [b"id\ttext\ttitle", *(tsv_line(draw, fault, words) for _ in range(300))]
        path.write_bytes(b"\n".join(rows) + draw.choice([b"", b"\n"]))
        rows_read = read(source, path)
        with monkeypatch.context() as slow:
            slow.setattr(beir, "json_lines", lambda *a, **k: None)
            slow.setattr(delimited, "tab_separated", lambda *a: None)
            assert rows_read == read(source, path)
    quick = sum(rows_read is not None for rows_read in taken) / len(taken)
    assert (quick == 1) if fault == 0 else (0 < quick < 1) if fault < 0.1 else True


def test_a_block_that_is_not_in_order_is_left_to_its_lines() -> None:
    def block(data: bytes) -> Block:
        return Block(data, 1, len(data), "file")

    assert tab_separated(block(b'1\t"two\n3\tfour"'), range(2, 4))[1].to_pylist() == ['"two', 'four"']  # type: ignore[index]
    for bad in (
        b"1\t2\n1",
        b"1\t2\n\n3\t4",
        b"\n1\t2",
        b"1\t2\n",
        b"1\r\t2",
        b"0\t0\n1\t2\r3\t4\n\n5\t6",
        b"1\t\xff",
        b"1\t2\n1\t2\t3",
        b"1\t2\t3\t4",
    ):
        assert tab_separated(block(bad), range(2, 4)) is None
    good = b'{"a": "1"}\n{"a": "2", "b": null}'
    assert [c.to_pylist() for c in json_lines(block(good), ["a"], ["b"]) or []] == [["1", "2"], ["", ""]]
    assert json_lines(block(good), ["a"], ["b"], None, False) and json_lines(block(good), ["a"], [])
    assert json_lines(block(good), ["a"], [], None, False) is None, "there is another field, b"
    for bad in (
        b'{"a": 1}',
        b'{"a": "1"',
        b'{"b": "1"}',
        b'{"a": "1"}\n',
        b'{"a": "\\ud800"}',
        b'{"a": "1", "c": "\xff"}',
        b"null",
        b'null\n{"a": "1"}',
        b" null",
        b'{"a": "1"}\nnull',
    ):
        assert json_lines(block(bad), ["a"], ["b"]) is None
