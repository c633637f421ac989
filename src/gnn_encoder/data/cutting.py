"""Cuts long texts into passages where a reader would pause: between paragraphs, lines, sentences, and at last words."""

import re
from collections.abc import Callable, Iterator
from functools import cache

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.artifacts.words import UNSPACED

LOW, HIGH = 60, 100
SHORTEST_TAIL = 20
"""A last passage with fewer words is joined to the previous passage."""
BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"(?<=[.!?;])\s+"), re.compile(r"\s+"))
"""Where to cut, the best first: paragraphs, lines, sentences, words. Longer runs without spaces are cut anywhere."""
_EASTERN = re.compile("[\u0600-\u1fff\u2e80-\U0010ffff]")
"""A range around the scripts that have marks of their own or no spaces."""
_EASTERN_SENTENCES = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；؟۔।॥။។๚๛])\s*")


def cut(text: str) -> list[str]:
    """Cuts a text into passages of at most `HIGH + SHORTEST_TAIL` words, none empty, with all words in order.

    In scripts without spaces between words, two characters count as a word.
    """
    passages = []
    current, words = "", 0
    for piece, separator in _pieces(text.strip(), 0):
        length = _length(piece)
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
    separator = ("\n\n", "\n", " ", " ", "")[level]
    if level == len(BREAKS):
        parts = [text[i : i + HIGH] for i in range(0, len(text), HIGH)]
    elif level == 2 and _EASTERN.search(text):
        parts = _EASTERN_SENTENCES.split(text)
    else:
        parts = BREAKS[level].split(text)
    for part in parts:
        before = "" if level == 2 and _unspaced(part[:1]) else separator
        if _length(part) <= HIGH:
            if part.strip():
                yield part, before
            continue
        for i, (piece, finer) in enumerate(_pieces(part, level + 1)):
            yield piece, before if i == 0 else finer


def _length(text: str) -> int:
    """Returns the number of words."""
    return len(text.split()) + _unspaced(text) // 2


def _unspaced(text: str) -> int:
    """Returns the number of characters of scripts without spaces between words, of which Korean has some."""
    return len(_of_unspaced()(text)) if not text.isascii() and _EASTERN.search(text) else 0


@cache
def _of_unspaced() -> Callable[[str], list[str]]:
    import regex  # takes a tenth of a second

    scripts = "".join(rf"\p{{sc={script}}}" for script in UNSPACED if script != "Hangul")
    found: Callable[[str], list[str]] = regex.compile(f"[{scripts}]").findall
    return found
