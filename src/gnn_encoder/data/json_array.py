"""A JSON array's elements, one at a time: files of several gigabytes hold one array."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from gnn_encoder.data.validation import Kind, Problems

CHUNK_BYTES = 1 << 20
BLANK = " \t\r\n"


def read_array(path: Path, problems: Problems) -> Iterator[tuple[int, Any]]:
    """(line where it starts, element) for each element of the array in a file, plain or .gz.

    What is not JSON ends the reading: there is no telling where the next element starts.
    Memory: the text of one element and a chunk.
    """
    line = 1
    try:
        with path.open("rb") as raw:
            file = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw)
            buffer = _Buffer(file)
            line = buffer.skip(BLANK)
            if not buffer.take("["):
                raise ValueError("the file is not a JSON array")
            line = buffer.skip(BLANK)
            while not buffer.take("]"):
                yield line, buffer.element()
                line = buffer.skip(BLANK)
                comma = buffer.take(",")
                line = buffer.skip(BLANK)
                if not comma and not buffer.starts("]"):
                    raise ValueError("expected ',' or ']' after an element")
    except UnicodeDecodeError as error:
        problems.add(Kind.UNREADABLE, path.name, line, f"not UTF-8: byte 0x{error.object[error.start]:02x}")
    except ValueError as error:
        problems.add(Kind.UNREADABLE, path.name, line, f"bad JSON: {error}")
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Kind.UNREADABLE, path.name, detail=getattr(error, "strerror", None) or str(error))


class _Buffer:
    """The undecoded rest of a file, as much of it as one element needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._text, self._at, self._line = file, "", 0, 1
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._parse = json.JSONDecoder().raw_decode
        self._ended = False

    def _more(self, least: int) -> bool:
        """Read on; False at the file's end."""
        if self._ended:
            return False
        data = self._file.read(least)
        self._ended = not data
        self._line += self._text.count("\n", 0, self._at)
        self._text, self._at = self._text[self._at :] + self._decode.decode(data, final=self._ended), 0
        return True

    def starts(self, character: str) -> bool:
        """Whether the character comes next."""
        while self._at >= len(self._text):
            if not self._more(CHUNK_BYTES):
                raise ValueError("the array does not end")
        return self._text[self._at] == character

    def take(self, character: str) -> bool:
        """Pass the character if it comes next."""
        found = self.starts(character)
        self._at += found
        return found

    def skip(self, characters: str) -> int:
        """Pass any of the characters; the line that comes next."""
        while self.starts(self._text[self._at : self._at + 1] or " ") and self._text[self._at] in characters:
            self._at += 1
            if self._at >= len(self._text) and not self._more(CHUNK_BYTES):
                break
        return self._line + self._text.count("\n", 0, self._at)

    def element(self) -> Any:
        """The element that comes next."""
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError:
                # Cut by the chunk's end, or wrong: only the rest of the file can tell. Reading as much again
                # as is there keeps an element of many chunks from being parsed once per chunk.
                if not self._more(max(CHUNK_BYTES, len(self._text) - self._at)):
                    raise
                continue
            # A number may go on in the next chunk.
            if end == len(self._text) and self._more(CHUNK_BYTES):
                continue
            self._at = end
            return value
