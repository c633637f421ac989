"""Queries without a model: sentences of the documents, and headings where the documents have no sections.

A heading is part of its passage's text, and a sentence is a quotation of it, so words find both at once: of scifact's
titles BM25 finds 0.996 (MRR@10), of its test queries 0.641. Who tunes on such queries tunes for quotations. Therefore a
sentence is a query for the *other* passages of its section, and the passage that has it is none of its hits, as in the
inverse cloze task (Lee, Chang and Toutanova, 2019). On obliqa, the curve of such queries over the weight of the vectors
in the sum with BM25 has the form of the real queries' curve; that of headings has its best value at 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from gnn_encoder.artifacts import Passages
from gnn_encoder.data.cutting import words_in
from gnn_encoder.inference.sentences import END

HEADING, SENTENCE = "heading", "sentence"
SEPARATOR = " > "
"""Between the titles of sections in a passage's title."""
FEWEST, MOST = 5, 40
"""Words of a sentence that is a query, by `words_in`: in scripts without spaces, two characters count as one."""
REACH = 3
"""Passages before and behind a sentence's that it is a query for. The time to tune uses of labels grows with it."""


class Written(NamedTuple):
    """A query for a passage, before it is selected; `quoted`: the row of the passage that has it, -1: none."""

    passage: int
    kind: str
    query: str
    quoted: int


def queries_of_sentences(
    batches: Iterable[Passages], per_passage: int, documents: np.ndarray | None = None
) -> Iterator[Written]:
    """Yields sentences of each passage as queries for the others of its section; batches: all passages in order.

    A passage that is alone in its section has those before and behind it in the same document, if the first of their
    sections is the same.

    Args:
        documents: the document of each passage, since sections of two documents may have one title; None: unknown.
    """
    rows = enumerate((title, text) for batch in batches for title, text in zip(batch.titles, batch.texts, strict=True))

    def section(row: tuple[int, tuple[str, str]]) -> tuple[int, str]:
        number, (title, _) = row
        return 0 if documents is None else int(documents[number]), title.partition(SEPARATOR)[0]

    for (_, top), group in groupby(rows, key=section):
        passages = list(group) if top else []
        titles = [title for _, (title, _) in passages]
        for index, (row, (title, text)) in enumerate(passages):
            around = range(max(0, index - REACH), min(len(passages), index + REACH + 1))
            inside = [other for other in around if other != index and titles[other] == title]
            beside = [other for other in (index - 1, index + 1) if 0 <= other < len(passages)]
            for query in sentences(text)[:per_passage]:
                for other in inside or beside:
                    yield Written(passages[other][0], SENTENCE, query, row)


def queries_of_headings(batches: Iterable[Passages]) -> Iterator[Written]:
    """Yields the heading of each passage that has one, as a query for it."""
    titles: Iterator[str] = (title for batch in batches for title in batch.titles)
    yield from (Written(row, HEADING, query, -1) for row, title in enumerate(titles) if (query := heading(title)))


def heading(title: str) -> str:
    """Returns the last heading of a title; after the one above it if it has a single word.

    In scripts without spaces, up to three characters are one.
    """
    parts = [part.strip() for part in title.split(SEPARATOR) if part.strip()]
    if parts and len(parts[-1].split()) == 1 and words_in(parts[-1]) <= 2:
        return " ".join(parts[-2:])
    return parts[-1] if parts else ""


def sentences(text: str) -> Sequence[str]:
    """Returns the sentences with `FEWEST` to `MOST` words, without the full stop, the longest first.

    A longer one is divided at its spaces: in Thai, whose words have none between them, that is where sentences end.
    """
    whole = [" ".join(part.split()).rstrip(".;:；：") for part in END.split(text)]
    parts = [part for sentence in whole for part in ([sentence] if words_in(sentence) <= MOST else sentence.split())]
    return sorted((part for part in parts if FEWEST <= words_in(part) <= MOST), key=len, reverse=True)
