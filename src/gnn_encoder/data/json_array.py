"""Reads the elements of a JSON array one at a time, because files of several gigabytes hold one array.

ijson 3.6 takes less than half the processor time. But ijson has no line numbers, replaces half a surrogate pair by `?`,
took all memory for 100,000 `[`, and crashed on an integer of 6,000 digits.
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from gnn_encoder.data.lines import LONGEST_LINE
from gnn_encoder.data.validation import Kind, Problems

CHUNK_BYTES = 1 << 20
BLANKS = re.compile(r"[ \t\r\n]*")
LONGEST_LITERAL = 16
"""Characters; more than in `-Infinity` or an escape."""


def read_array(path: Path, problems: Problems) -> Iterator[tuple[int, Any]]:
    """Yields (first line, element) for each element of the array in a file, plain or .gz.

    Reading ends at the first text that is not JSON, because the start of the next element is then unknown. Memory holds
    the text of one element and a chunk.
    """
    try:
        with path.open("rb") as raw:
            buffer = _Buffer(cast(IO[bytes], gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw))
            try:
                yield from buffer.elements()
            except UnicodeDecodeError as error:
                problem = f"not UTF-8: byte 0x{error.object[error.start]:02x} at or after it"
                problems.add(Kind.UNREADABLE, path.name, buffer.line_at(), problem)
            except (ValueError, RecursionError) as error:  # no JSON, an integer of over 4,300 digits; nested too deeply
                position, reason = (error.pos, error.msg) if isinstance(error, json.JSONDecodeError) else (None, error)
                problems.add(Kind.UNREADABLE, path.name, buffer.line_at(position), f"bad JSON: {reason}")
    except (OSError, EOFError, zlib.error) as error:
        problems.add(Kind.UNREADABLE, path.name, detail=getattr(error, "strerror", None) or str(error))


class _Buffer:
    """The part of a file that is not parsed yet, as much as one element needs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._text, self._at, self._line = file, "", 0, 1
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._parse = json.JSONDecoder().raw_decode
        self._ended = False

    def elements(self) -> Iterator[tuple[int, Any]]:
        self._expect("[")
        continues = not self._take("]")
        while continues:
            self._take("")
            yield self.line_at(), self._element()
            if continues := not self._take("]"):
                self._expect(",")
        self._take("")
        if self._at < len(self._text):
            raise json.JSONDecodeError("more after the end of the array", self._text, self._at)

    def line_at(self, position: int | None = None) -> int:
        """The line in the file of a position in the buffer; default: the position of the next character."""
        return self._line + self._text.count("\n", 0, self._at if position is None else position)

    def _take(self, character: str) -> bool:
        """Skips blanks, and then the character if it follows; returns whether it followed."""
        while True:
            self._at = BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches everywhere
            if self._at < len(self._text) or not self._more():
                break
        taken = self._text.startswith(character, self._at)
        self._at += len(character) * taken
        return taken

    def _expect(self, character: str) -> None:
        if not self._take(character):
            raise json.JSONDecodeError(f"expected {character!r} of an array", self._text, self._at)

    def _element(self) -> Any:
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                # Either the chunk's end cut the element, or the text is wrong. Parsing a cut element fails near the
                # end, or where the cut string starts.
                near_end = error.pos >= len(self._text) - LONGEST_LITERAL or error.msg.startswith("Unterminated")
                if near_end and len(self._text) - self._at > LONGEST_LINE:
                    raise json.JSONDecodeError(f"more than {LONGEST_LINE:,} characters", self._text, self._at) from None
                if not near_end or not self._more():
                    raise
                continue
            if end >= len(self._text) - len("e+") and self._more():
                continue  # a number may continue in the next chunk
            self._at = end
            return value

    def _more(self) -> bool:
        """At least doubles the text in the buffer, so that a long element is parsed few times; False at the end."""
        if self._ended:
            return False
        data = self._file.read(max(CHUNK_BYTES, len(self._text) - self._at))
        self._ended = not data
        text = self._decode.decode(data, final=self._ended)
        self._line, self._text, self._at = self.line_at(), self._text[self._at :] + text, 0
        return True
