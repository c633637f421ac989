"""Cuts a text into passages of about 60 to 100 words, at paragraph boundaries where it can."""

import re
from collections.abc import Iterator

LOW, HIGH = 60, 100
SHORTEST_TAIL = 20
"""A last passage with fewer words joins the one before it."""
BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?;])\s+"), re.compile(r"\s+"))
"""Where to cut, the best first: paragraphs, lines, sentences, words."""


def cut(text: str) -> list[str]:
    """Passages of at most `HIGH + SHORTEST_TAIL` words that hold all of the text's words in order; none is empty."""
    passages: list[tuple[str, int]] = []
    current, words = "", 0
    for piece, separator in _pieces(text.strip(), 0):
        length = len(piece.split())
        if current and (words + length > HIGH or (words >= LOW and separator == "\n\n")):
            passages.append((current, words))
            current, words = "", 0
        current = f"{current}{separator}{piece}" if current else piece
        words += length
    if passages and words < SHORTEST_TAIL:
        last, count = passages.pop()
        current, words = f"{last}\n{current}", count + words
    return [passage for passage, _ in [*passages, (current, words)] if passage.strip()]


def _pieces(text: str, level: int) -> Iterator[tuple[str, str]]:
    """(piece of at most HIGH words, what joins it to the one before), cut as coarsely as that allows."""
    separator = ("\n\n", "\n", " ", " ")[level]
    for part in BREAKS[level].split(text):
        if len(part.split()) <= HIGH:
            if part.strip():
                yield part, separator
            continue
        for i, (piece, finer) in enumerate(_pieces(part, level + 1)):
            yield piece, separator if i == 0 else finer
