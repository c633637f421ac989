"""Splits a text into words, per script: one rule for queries and passages, in BM25 and where queries are compared.

An ASCII text is split at all characters but letters, digits and `_`, and a word has at least two characters. Other
texts follow the same rule, with four additions:

- Marks, such as the vowel signs of Hindi and accents that are characters of their own, belong to the word.
- Characters that nobody sees, such as a soft hyphen or a zero-width non-joiner, do not split a word.
- A word is in the form in which texts are compared (`texts.folded`): composed and decomposed accents, full-width and
  other compatibility forms, upper and lower case of any script are the same. A sign that stands for letters, such as
  `㎏` or `№`, is these letters; raised ones, such as `™`, split words as other signs do.
- Scripts without spaces between words (`UNSPACED`) are split into overlapping pairs of characters, as Lucene's
  CJKBigramFilter splits Chinese, Japanese and Korean. A run of one character is a word, and so is a single letter or
  digit of another script beside such a run.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from gnn_encoder.artifacts.texts import folded, visible

UNSPACED = (
    "Han", "Hiragana", "Katakana", "Bopomofo", "Hangul", "Yi", "Thai", "Lao", "Myanmar", "Khmer", "Tai_Le",
    "New_Tai_Lue", "Tai_Tham", "Tai_Viet", "Ahom", "Javanese", "Balinese",
)  # fmt: skip
"""Scripts that are written without spaces between words. Korean has spaces, but none between a word and its
particles."""
_SIGNS = re.compile(
    "[\u00a0-\u00a9\u00ab\u00ac\u00ae-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7\u2010-\u2027\u2030-\u205e]"
)
"""Frequent signs that split words. Without them nearly all English texts are ASCII, whose words take a third of the
time."""
_ASCII_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f]")
_ASCII_WORDS = {1: re.compile(r"\w+", re.ASCII).findall, 2: re.compile(r"\w\w+", re.ASCII).findall}


def pairs(run: str) -> Iterator[str]:
    """Yields the overlapping pairs of a run of characters."""
    return (run[i : i + 2] for i in range(len(run) - 1))


def words(text: str, shortest: int = 2, runs: Callable[[str], Iterator[str]] = pairs) -> list[str]:
    """Returns the words of a text in order, each as often as it occurs.

    Args:
        shortest: the least number of characters of a word in a script with spaces, 1 or 2.
        runs: splits a run of at least two characters of `UNSPACED`.
    """
    if not text.isascii() and not (text := _SIGNS.sub(" ", text)).isascii():
        text = visible(text)
    if text.isascii():
        return _ASCII_WORDS[shortest](_ASCII_CONTROLS.sub("", text).lower())
    of_letters, letters, scripts = _patterns()
    return [word for run in of_letters(text) for word in _words_of_run(run, letters, scripts, shortest, runs)]


@cache
def _signs() -> frozenset[str]:
    """Returns the signs, and the connectors beside `_`, that stand for letters; all of them are below U+20000."""
    return frozenset(
        sign
        for sign in map(chr, range(0x80, 0x20000))
        if unicodedata.category(sign) in ("So", "Pc")
        and unicodedata.decomposition(sign).startswith("<")
        and not unicodedata.decomposition(sign).startswith("<super>")
    )


@cache
def _patterns() -> tuple[Callable[[str], list[str]], Callable[[str], list[str]], Callable[[str], Iterator[Any]]]:
    """Returns what finds the runs of letters, marks, digits and `_signs` in a text, the runs without such signs, and
    the parts of a run: characters of `UNSPACED` as group 1, or other characters.

    A run of `UNSPACED` starts with a character of one of these scripts, and goes on with those that they share with
    others (script extensions), such as kana's prolonged sound mark. Accents are among the shared ones, so they start
    no run.
    """
    import regex  # takes a tenth of a second, which the search for an ASCII question does not need

    starting, shared = ("".join(rf"\p{{{name}={script}}}" for script in UNSPACED) for name in ("sc", "scx"))
    letters, signs = r"\p{L}\p{N}_", "".join(sorted(_signs()))
    with_signs, without = (
        regex.compile(rf"[{letters}{more}][{letters}{more}\p{{M}}]*").findall for more in (signs, "")
    )
    return with_signs, without, regex.compile(rf"([{starting}][{shared}\p{{M}}]*)|[^{starting}]+").finditer


def _words_of_run(
    run: str,
    letters: Callable[[str], list[str]],
    scripts: Callable[[str], Iterator[Any]],
    shortest: int,
    unspaced: Callable[[str], Iterator[str]],
) -> Iterator[str]:
    """Yields the words of a run of letters, marks, digits and signs that stand for letters."""
    if run.isascii():
        if len(run) >= shortest:
            yield run.lower()
        return
    has_signs = not _signs().isdisjoint(run)
    for form in letters(folded(run)) if has_signs else folded(run).split():  # a few compatibility forms have spaces
        parts = list(scripts(form))
        mixed = any(part[1] for part in parts)
        for part in parts:
            text = part[0]
            if part[1] and len(text) > 1:
                yield from unspaced(text)
            elif mixed or (len(text) >= shortest and (len(run) >= shortest or has_signs or run.isalpha())):
                yield text  # a number such as ½ is one character, though its form is longer
