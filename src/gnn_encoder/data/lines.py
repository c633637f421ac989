"""Lines of text files, plain or gzip, streamed in blocks: a block is all that is in memory.

A block is decoded and split at once, which costs a tenth of reading line by line; only a block with
bytes that are not UTF-8 is gone through line by line, to name the lines. Readers that can parse a whole
block (`columnar`) take it as bytes and decode only one that is not quite as it should be.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from gnn_encoder.artifacts.folder import digest_of, sha256
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError

BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 24
"""Bytes: five times War and Peace. A .gz of 1 MB can hold one line of 1 GB, which took 192 s and 2.1 GB to refuse."""
MARK = b"\xef\xbb\xbf"
"""The byte order mark in UTF-8."""


@dataclass
class Block:
    """Some lines that are not blank, with their numbers from 1."""

    numbers: Sequence[int]
    lines: list[str]


@dataclass
class RawBlock:
    """Some whole lines as bytes, the last without its end."""

    data: bytes
    first: int
    """Number of the first line, from 1."""
    consumed: int
    """Bytes of the file (compressed, if it is) read for this block."""
    name: str

    @property
    def numbers(self) -> range:
        """Of all its lines."""
        return range(self.first, self.first + self.data.count(b"\n") + 1)

    def decode(self, problems: Problems) -> Block:
        """Its lines without their ends, `\\n` or `\\r\\n`; blank ones and those that are not UTF-8 left out."""
        data = self.data
        try:
            lines: list[str | None] = list(data.decode("utf-8").split("\n"))
        except UnicodeDecodeError:
            lines = [_decode(line, self.first + i, self.name, problems) for i, line in enumerate(data.split(b"\n"))]
        if b"\r\n" in data or data.endswith(b"\r"):
            lines = [line and line.removesuffix("\r") for line in lines]
        if all(lines):
            return Block(self.numbers, cast(list[str], lines))
        kept = [(number, line) for number, line in zip(self.numbers, lines, strict=True) if line]
        return Block([n for n, _ in kept], [line for _, line in kept])


def find(folder: Path, name: str) -> Path | None:
    """The file `name` or `name.gz` of a folder, None if there is neither.

    Raises:
        UserError: both are there, or what is there cannot be read as a file or named in a line of text.
    """
    found = [path for path in (folder / name, folder / f"{name}.gz") if os.path.lexists(path)]
    for path in found:
        if not path.is_file():
            raise UserError(f"{path} is not a regular file: put the file there, or remove it")
        if not path.name.isprintable():
            raise UserError(f"{folder / repr(path.name)}: rename it without control characters and in UTF-8")
    if len(found) > 1:
        raise UserError(f"{found[0]} stands beside {found[1].name}: keep one")
    return found[0] if found else None


def find_or_report(folder: Path, name: str, problems: Problems) -> Path | None:
    """`find`, a missing file counted as a problem."""
    found = find(folder, name)
    if found is None:
        problems.add(Kind.MISSING_FILE, str(folder / name), detail="(.gz would do)")
    return found


def files_digest(files: list[Path], **facts: str) -> str:
    """Hex SHA-256 over some facts and the names and contents of some files."""
    return digest_of({"facts": facts, "files": sorted((path.name, sha256(path)) for path in files)})


def read_raw(path: Path, problems: Problems, name: str = "") -> Iterator[RawBlock]:
    """A file in blocks of whole lines.

    A byte order mark at the start of a line is left out: a file put together from several parts has one at each.
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
                    block = RawBlock(_without_marks(data[:-1]), number, raw.tell() - position, name)
                    number, position = block.numbers.stop, raw.tell()
                    yield block
                if len(rest) > LONGEST_LINE:
                    problems.add(Kind.UNREADABLE, name, number, f"a line of more than {LONGEST_LINE:,} bytes")
                    return
            if rest:
                yield RawBlock(_without_marks(rest), number, raw.tell() - position, name)
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Kind.UNREADABLE, name, detail=getattr(error, "strerror", None) or str(error))


def read_blocks(path: Path, problems: Problems, name: str = "") -> Iterator[Block]:
    """A file's lines, see `RawBlock.decode`."""
    for raw in read_raw(path, problems, name):
        yield raw.decode(problems)


def _without_marks(data: bytes) -> bytes:
    # One byte is found ten times as fast as three.
    return re.sub(rb"(?m)^(\xef\xbb\xbf)+", b"", data) if b"\xef" in data and MARK in data else data


def _decode(line: bytes, number: int, name: str, problems: Problems) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add(Kind.ENCODING, name, number, f"byte 0x{line[error.start]:02x} at {error.start + 1}")
        return None
