"""Cuts long texts into passages where a reader would pause: between paragraphs, lines, sentences, and at last words."""

import re
from collections.abc import Iterator

import regex

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.artifacts.words import UNSPACED

LOW, HIGH = 60, 100
SHORTEST_TAIL = 20
"""A last passage with fewer words is joined to the previous passage."""
_MARKS, _CLOSING = "。！？；؟۔।॥။።๚๛", "\"'”’»)\\]」』）】》〉〕］"
BREAKS = tuple(
    re.compile(end)
    for end in (
        r"(\n\s*\n)",
        r"(\n)",
        rf"(?:(?<=[.!?;])(?=\s)|[{_MARKS}][{_MARKS}{_CLOSING}.!?;…]*)(\s*)",
        r"(\s+)",
    )
)
"""Where to cut, the best first: paragraphs, lines, sentences, words; the group is the white space between two parts.
Longer runs without spaces are cut anywhere. A sentence ends before white space, or after all of another script's marks
and what they close."""
_SEPARATORS = ("\n\n", "\n", " ", " ")
_EASTERN = re.compile("[\u0600-\u1fff\u2e80-\U0010ffff]")
"""A range around the scripts that have no spaces."""
_SCRIPTS = "".join(rf"\p{{sc={script}}}" for script in UNSPACED if script != "Hangul")
"""Korean has some spaces."""
_UNSPACED = regex.compile(f"[{_SCRIPTS}]")
_WIDE = rf"[{_SCRIPTS}\p{{scx=Han}}！（），．：；？]"
LINE_END = regex.compile(rf"(?<={_WIDE})[ \t]*\r?\n[ \t]*(?={_WIDE})")
"""The end of a printed line that is no space between words: between two characters of these scripts and their
punctuation."""


def cut(text: str, high: int = HIGH) -> list[str]:
    """Cuts a text into passages of at most `high` words and a fifth, none empty, with all words in order.

    In scripts without spaces between words, two characters count as a word.
    """
    passages = []
    current, words, joint = "", 0, ""
    low, shortest = LOW * high // HIGH, SHORTEST_TAIL * high // HIGH
    for piece, separator in _pieces(text.strip(), 0, high):
        length = words_in(piece)
        if current and (words + length > high or (words >= low and separator == "\n\n")):
            passages.append(current)
            current, words, joint = "", 0, separator and "\n"
        current = f"{current}{separator}{piece}" if current else piece
        words += length
    if passages and words < shortest:
        current = f"{passages.pop()}{joint}{current}"
    return [passage for passage in [*passages, current] if not is_blank(passage)]


def _pieces(text: str, level: int, high: int) -> Iterator[tuple[str, str]]:
    """Yields (piece of at most `high` words, separator before the piece), cut as coarsely as possible."""
    for part, separator in _parts(text, level, high):
        if words_in(part) <= high:
            if part.strip():
                yield part, separator
            continue
        for i, (piece, finer) in enumerate(_pieces(part, level + 1, high)):
            yield piece, separator if i == 0 else finer


def _parts(text: str, level: int, high: int) -> Iterator[tuple[str, str]]:
    """Yields (part, separator before the part), which is empty where the text has no white space."""
    if level == len(BREAKS):
        yield from ((text[i : i + high], "") for i in range(0, len(text), high))
        return
    start, separator = 0, _SEPARATORS[level]
    for end in BREAKS[level].finditer(text):
        yield text[start : end.start(1)], separator
        start, separator = end.end(), _SEPARATORS[level] if end[1] else ""
    yield text[start:], separator


def words_in(text: str) -> int:
    """Returns the number of words; in scripts without spaces between words, two characters count as one."""
    unspaced = len(_UNSPACED.findall(text)) if not text.isascii() and _EASTERN.search(text) else 0
    return len(text.split()) + unspaced // 2
