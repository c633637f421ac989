"""Cuts long texts into passages where a reader would pause: between paragraphs, lines, sentences, and at last words."""

import re
from collections.abc import Iterator

from gnn_encoder.artifacts.texts import is_blank

LOW, HIGH = 60, 100
SHORTEST_TAIL = 20
"""A last passage with fewer words is joined to the previous passage."""
BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?;])\s+"), re.compile(r"\s+"))
"""Where to cut, the best first: paragraphs, lines, sentences, words."""


def cut(text: str) -> list[str]:
    """Cuts a text into passages of at most `HIGH + SHORTEST_TAIL` words, none empty, with all words in order."""
    passages = []
    current, words = "", 0
    for piece, separator in _pieces(text.strip(), 0):
        length = len(piece.split())
        if current and (words + length > HIGH or (words >= LOW and separator == "\n\n")):
            passages.append(current)
            current, words = "", 0
        current = f"{current}{separator}{piece}" if current else piece
        words += length
    if passages and words < SHORTEST_TAIL:
        current = f"{passages.pop()}\n{current}"
    return [passage for passage in [*passages, current] if not is_blank(passage)]


def _pieces(text: str, level: int) -> Iterator[tuple[str, str]]:
    """Yields (piece of at most HIGH words, separator before the piece), cut as coarsely as possible."""
    separator = ("\n\n", "\n", " ", " ")[level]
    for part in BREAKS[level].split(text):
        if len(part.split()) <= HIGH:
            if part.strip():
                yield part, separator
            continue
        for i, (piece, finer) in enumerate(_pieces(part, level + 1)):
            yield piece, separator if i == 0 else finer
