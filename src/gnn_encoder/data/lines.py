"""Lines of text files, plain or gzip, streamed in blocks: a block is all that is in memory.

A block is decoded and split at once, which costs a tenth of reading line by line; only a block with
bytes that are not UTF-8 is gone through line by line, to name the lines.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from gnn_encoder.artifacts.folder import digest_of, sha256
from gnn_encoder.data.validation import Kind, Problems

BLOCK_BYTES = 1 << 22


@dataclass
class Block:
    """Some lines that are not blank, with their numbers from 1."""

    numbers: Sequence[int]
    lines: list[str]
    consumed: int
    """Bytes of the file (compressed, if it is) read for this block."""


def find(folder: Path, name: str) -> Path | None:
    """The file `name` or `name.gz` of a folder."""
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def find_or_report(folder: Path, name: str, problems: Problems) -> Path | None:
    """`find`, a missing file counted as a problem."""
    found = find(folder, name)
    if found is None:
        problems.add(Kind.MISSING_FILE, str(folder / name), detail="(.gz would do)")
    return found


def files_digest(files: list[Path], **facts: str) -> str:
    """Hex SHA-256 over some facts and the names and contents of some files."""
    return digest_of({"facts": facts, "files": sorted((path.name, sha256(path)) for path in files)})


def read_blocks(path: Path, problems: Problems, name: str = "") -> Iterator[Block]:
    """Lines of a file without their ends, `\\n` or `\\r\\n`; a byte order mark is skipped."""
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
                    now = raw.tell()
                    yield _block(data[:-1], number, now - position, name, problems)
                    number, position = number + data.count(b"\n"), now
            if rest:
                yield _block(rest, number, raw.tell() - position, name, problems)
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Kind.UNREADABLE, name, detail=getattr(error, "strerror", None) or str(error))


def _block(data: bytes, first: int, consumed: int, name: str, problems: Problems) -> Block:
    if first == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        lines: list[str | None] = list(data.decode("utf-8").split("\n"))
    except UnicodeDecodeError:
        lines = [_decode(line, first + i, name, problems) for i, line in enumerate(data.split(b"\n"))]
    if b"\r\n" in data or data.endswith(b"\r"):
        lines = [line and line.removesuffix("\r") for line in lines]
    if all(lines):
        return Block(range(first, first + len(lines)), cast(list[str], lines), consumed)
    kept = [(first + i, line) for i, line in enumerate(lines) if line]
    return Block([n for n, _ in kept], [line for _, line in kept], consumed)


def _decode(line: bytes, number: int, name: str, problems: Problems) -> str | None:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        problems.add(Kind.ENCODING, name, number, f"byte 0x{line[error.start]:02x} at {error.start + 1}")
        return None
