"""Queries without a model: headings, and sentences of the documents themselves.

heading    the heading of the passage's section, with the one above it where it has a single word
neighbour  a sentence of the passage before, in the same section
sentence   a sentence of the passage itself, after its first one

A heading is part of its passage's text and a sentence is a quotation, so words find both at once. A neighbour's
sentence has the topic of its passage in other words, as a question has.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gnn_encoder.artifacts import Passages
from gnn_encoder.inference.sentences import END

HEADING, NEIGHBOUR, SENTENCE = KINDS = ("heading", "neighbour", "sentence")
SEPARATOR = " > "
"""Between the titles of sections in a passage's title."""
FEWEST, MOST = 5, 40
"""Words of a sentence that is a query."""


class Written(NamedTuple):
    """A query for a passage, before it is selected."""

    passage: int
    kind: str
    query: str


def queries_of_titles(batches: Iterator[Passages], kinds: tuple[str, ...] = KINDS) -> Iterator[Written]:
    """Yields at most one query of each kind for each passage, in the order of `kinds`, from all passages in order."""
    row, title_before, before = 0, "", ""
    for batch in batches:
        for title, text in zip(batch.titles, batch.texts, strict=True):
            inside = bool(title) and title == title_before
            of_kind = {
                HEADING: heading(title),
                NEIGHBOUR: sentence(before, 0) if inside else "",
                SENTENCE: sentence(text, 1),
            }
            yield from (Written(row, kind, of_kind[kind]) for kind in kinds if of_kind[kind])
            row, title_before, before = row + 1, title, text


def heading(title: str) -> str:
    """Returns the last heading of a title; after the one above it if it has a single word."""
    parts = [part.strip() for part in title.split(SEPARATOR) if part.strip()]
    if parts and len(parts[-1].split()) == 1:
        return " ".join(parts[-2:])
    return parts[-1] if parts else ""


def sentence(text: str, first: int) -> str:
    """Returns the longest sentence with `FEWEST` to `MOST` words, from number `first` on; empty if there is none."""
    sentences = [" ".join(part.split()) for part in END.split(text)[first:]]
    return max((part for part in sentences if FEWEST <= len(part.split()) <= MOST), key=len, default="")
