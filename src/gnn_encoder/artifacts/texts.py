"""When two texts are equal, and when a text is empty: one rule of each, for queries and passages alike.

Published data sets hold one query in several forms: with a byte order mark, a soft hyphen, a zero-width space,
full-width letters, decomposed accents. A reader sees one text and most tokenizers make the same tokens of them, so a
test query in another form in train is a leak.
"""

import re
import unicodedata
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt, 16.0); `regex` knows it, `re` does not.
_DEFAULT_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Control characters that are no white space, and interlinear annotations: BERT's tokenizers leave these out, too.
_CONTROL = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufff9-\ufffb"
_INVISIBLE = re.compile(f"[{_DEFAULT_IGNORABLE}{_CONTROL}]")
_PLAIN = r"^([!-~]+( [!-~]+)*)?\z"
"""Texts of visible ASCII characters with single spaces between words: only their letter case is folded."""
_GRAPHIC = re.compile("[!-~]")
_EMPTY_CELL = "\u2800"  # a Braille cell without a dot
_VISIBLE = f"[^\\pZ\\p{{Cc}}{_EMPTY_CELL}{_DEFAULT_IGNORABLE}\ufff9-\ufffb]"  # in Arrow's expressions (RE2)


def visible(text: str) -> str:
    """Returns a text without characters that nobody sees: Unicode's default ignorable ones, and controls."""
    return _INVISIBLE.sub("", text)


def folded(text: str) -> str:
    """The form in which texts are compared.

    Two texts are equal if they differ only in letter case, white space, compatibility forms (NFKC) and characters that
    nobody sees (Unicode's default ignorable ones, controls). This is Unicode's NFKC_Casefold, with white space and
    controls left out as well.
    """
    seen = visible(text)
    if not seen.isascii():
        # NFKC can make upper-case letters, and case folding can make characters that NFKC composes. A normal form may
        # hold characters that are to be left out (U+FFA0 is U+1160).
        seen = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
        seen = visible(unicodedata.normalize("NFKC", seen.casefold()))
    return " ".join(seen.casefold().split())


def written_id(text: str) -> str:
    """The id of a query that a generator wrote: the same in every run, since labels that are added later name it."""
    return "written-" + blake2b(folded(text).encode(), digest_size=8).hexdigest()


def folded_column(texts: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Each text of a column as `folded`, string [n]; null stays null.

    Arrow folds `_PLAIN` texts 20 times as fast as Python, and Python the rest.
    """
    column = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    plain = pc.match_substring_regex(column, _PLAIN)
    lower = pc.ascii_lower(column)
    if pc.all(plain, min_count=0).as_py():
        return lower
    others = pc.invert(plain)
    return pc.replace_with_mask(lower, others, pa.array(map(folded, column.filter(others).to_pylist()), column.type))


def is_blank(text: str) -> bool:
    """Whether a text has no visible character, such as a text of spaces or zero-width spaces."""
    return not _GRAPHIC.search(text) and not folded(text).replace(_EMPTY_CELL, "").strip()


def blank(texts: pa.ChunkedArray) -> np.ndarray:
    """bool [n]: texts without a visible character, as `is_blank`."""
    return np.asarray(~pc.match_substring_regex(texts, _VISIBLE).to_numpy())


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line without its end) of a UTF-8 file that a person wrote.

    Byte order marks before a line are left out: Windows' editors write one, and joined files have one at each part. A
    line ends at `\\n`, `\\r\\n` or `\\r`, and not at the other characters of `str.splitlines`, which a text may hold.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removesuffix("\n").lstrip("\ufeff")
