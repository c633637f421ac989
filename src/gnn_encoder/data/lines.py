"""Reads the lines of text files, plain or gzip, in blocks, so that memory holds one block.

Decoding and splitting a whole block takes a tenth of the time of reading line by line. Only a block with bytes that are
not UTF-8 is decoded line by line, to name the lines.

Arrow parses a block's bytes some ten times as fast as Python its lines, but cannot name the line of an error. So
readers decode only blocks that Arrow refuses (`delimited.tab_separated`, `beir.json_lines`), and parse their lines.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gnn_encoder.artifacts.folder import digest_of, sha256
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError

BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 24
"""Bytes: five times War and Peace. A .gz of 1 MB can hold a line of 1 GB, which took 192 s and 2.1 GB to refuse."""
MARK = b"\xef\xbb\xbf"
"""The byte order mark in UTF-8."""


@dataclass
class Block:
    """Some whole lines as bytes; the last line has no line end."""

    data: bytes
    first: int
    """Number of the first line, from 1."""
    consumed: int
    """Bytes read for this block (of the compressed file if the file is compressed)."""
    name: str

    @property
    def numbers(self) -> range:
        """The line numbers."""
        return range(self.first, self.first + self.data.count(b"\n") + 1)

    def lines(self, problems: Problems) -> Iterator[tuple[int, str]]:
        """(number, line without its end, `\\n` or `\\r\\n`); blank lines and lines that are not UTF-8 are left out."""
        lines: Iterable[str]
        try:
            lines = self.data.decode("utf-8").split("\n")
        except UnicodeDecodeError:
            numbered = zip(self.numbers, self.data.split(b"\n"), strict=True)
            lines = (_decode(line, number, self.name, problems) for number, line in numbered)
        for number, line in enumerate(lines, self.first):
            if line := line.removesuffix("\r"):
                yield number, line


def find(folder: Path, name: str) -> Path | None:
    """The file `name` or `name.gz` of a folder, None without either.

    Raises:
        UserError: both exist, or the file is not a regular one, or its name has unprintable characters.
    """
    paths = [path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is not a regular file: put the file there, or remove it")
        if not path.name.isprintable():
            raise UserError(f"{folder / repr(path.name)}: rename it without control characters and in UTF-8")
    if len(paths) > 1:
        raise UserError(f"{paths[0]} and {paths[1].name} both exist: keep one")
    return paths[0] if paths else None


def find_or_report(folder: Path, name: str, problems: Problems) -> Path | None:
    """As `find`, but counts a missing file as a problem."""
    path = find(folder, name)
    if path is None:
        problems.add(Kind.MISSING_FILE, str(folder / name), detail="(.gz would do)")
    return path


def files_digest(files: list[Path], **facts: str) -> str:
    """Hex SHA-256 over facts and the names and contents of files."""
    return digest_of({"facts": facts, "files": sorted((path.name, sha256(path)) for path in files)})


def read_blocks(path: Path, problems: Problems, name: str = "") -> Iterator[Block]:
    """Yields a file in blocks of whole lines.

    A byte order mark at the start of any line is removed, because concatenated files have a mark at each part.
    """
    name = name or path.name
    number, rest, position = 1, b"", 0
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            while data := cast(IO[bytes], file).read(BLOCK_BYTES):
                data = rest + data
                end = data.rfind(b"\n") + 1
                data, rest = data[:end], data[end:]
                if data:
                    block = Block(_without_marks(data[:-1]), number, raw.tell() - position, name)
                    number, position = block.numbers.stop, raw.tell()
                    yield block
                if len(rest) > LONGEST_LINE:
                    problems.add(Kind.UNREADABLE, name, number, f"a line of more than {LONGEST_LINE:,} bytes")
                    return
            if rest:
                yield Block(_without_marks(rest), number, raw.tell() - position, name)
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Kind.UNREADABLE, name, detail=getattr(error, "strerror", None) or str(error))


def read_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """A file's lines, see `Block.lines`."""
    for block in read_blocks(path, problems):
        yield from block.lines(problems)


def json_objects(
    lines: Iterable[tuple[int, str]], name: str, problems: Problems
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of the lines that are JSON objects."""
    for number, line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, an integer of over 4,300 digits; nested too deeply
            problems.add(Kind.BAD_JSON, name, number, str(error))
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            problems.add(Kind.BAD_ROW, name, number, "not a JSON object")


def _without_marks(data: bytes) -> bytes:
    # Searching one byte is ten times as fast as searching three bytes.
    return re.sub(rb"(?m)^(\xef\xbb\xbf)+", b"", data) if b"\xef" in data and MARK in data else data


def _decode(line: bytes, number: int, name: str, problems: Problems) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add(Kind.ENCODING, name, number, f"byte 0x{line[error.start]:02x} at {error.start + 1}")
        return ""
