"""Which written queries are of use as labels, and to which split each belongs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gnn_encoder.artifacts import Dataset, WrittenQueries
from gnn_encoder.artifacts.dataset import SPLITS, Asked
from gnn_encoder.artifacts.passages import PassageTable
from gnn_encoder.artifacts.texts import folded, is_blank, written_id
from gnn_encoder.artifacts.words import words as words_of
from gnn_encoder.data.splits import DEV, TEST, TRAIN, share
from gnn_encoder.data.twins import similar_pairs
from gnn_encoder.errors import printable
from gnn_encoder.settings.written import SelectQueries
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.written.titles import SEPARATOR

if TYPE_CHECKING:
    from gnn_encoder.retrieval.scorers import Scorer

SHOWN = 5
"""Examples of each reason."""
RERANKED_AT_A_TIME = 256
"""Queries whose pairs are in memory at a time."""
OFF = 0.5
"""Share of its share by which the queries of a split may be too many or too few."""
SEARCHED = 2
"""How many times as many queries are searched as are wanted."""


@dataclass
class Selection:
    """Distinct queries, in the order in which they were written, each with the passages that it was written for.

    quoted     row of the passage that each query quotes; -1: none
    left_out   reason → (query, passage's row) of each query that was left out
    """

    texts: list[str]
    passages: list[list[int]]
    quoted: list[int]
    left_out: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, written: WrittenQueries) -> "Selection":
        """The written queries; equal ones (`folded`) are one query with the passages of all of them."""
        selection, rows = cls([], [], []), dict[str, int]()
        quoted = written.quoted or [-1] * len(written.query)
        for text, passage, source in zip(written.query, written.passage, quoted, strict=True):
            if is_blank(text):
                selection.left_out.setdefault("without text", []).append((text, passage))
                continue
            row = rows.setdefault(folded(text), len(rows))
            if row == len(selection.texts):
                selection.texts.append(text)
                selection.passages.append([])
                selection.quoted.append(source)
            if passage not in (selection.quoted[row], *selection.passages[row]):
                selection.passages[row].append(passage)
        return selection

    def keep(self, reason: str, wanted: Sequence[list[int]]) -> None:
        """Keeps of each query the passages that are `wanted`; a query without any is left out for a reason."""
        kept = [row for row, passages in enumerate(wanted) if passages]
        without = [(self.texts[row], self.passages[row][0]) for row, passages in enumerate(wanted) if not passages]
        self.left_out.setdefault(reason, []).extend(without)
        self.texts, self.passages = [self.texts[row] for row in kept], [wanted[row] for row in kept]
        self.quoted = [self.quoted[row] for row in kept]

    def keep_where(self, reason: str, stays: Iterable[bool]) -> None:
        """As `keep`, of whole queries [n]."""
        self.keep(reason, [rows if kept else [] for rows, kept in zip(self.passages, stays, strict=True)])

    @property
    def counts(self) -> dict[str, int]:
        """Reason → number of queries that were left out."""
        return {reason: len(queries) for reason, queries in self.left_out.items()}

    def examples(self, titles: Callable[[int], str]) -> str:
        """Returns what was kept and what was left out, with examples, in Markdown; `titles`: of a passage's row."""
        kept = [(text, passages[0]) for text, passages in zip(self.texts, self.passages, strict=True)]
        lines = []
        for reason, queries in {"kept": kept, **self.left_out}.items():
            lines += [f"**{reason}**: {len(queries):,}", ""]
            step = max(1, len(queries) // SHOWN)
            lines += [f"- {printable(text)[:200]} → {printable(titles(row))}" for text, row in queries[::step][:SHOWN]]
            lines.append("")
        return "\n".join(lines)


def select(
    written: WrittenQueries,
    data: Dataset,
    search: Callable[[list[str], int], np.ndarray],
    settings: SelectQueries,
    reranker: "Scorer | None" = None,
    progress: Callable[[int], Progress] | None = None,
) -> Selection:
    """Applies all filters.

    Args:
        search: returns the rows [n, k] of the first k hits of n queries; -1: no hit.
        reranker: has to agree; None: it is not asked.
        progress: the progress of the re-ranker's work on n queries.
    """
    selection = Selection.of(written)
    of_data = dict(
        zip(data.queries.column("query_id").to_pylist(), data.query_texts(np.arange(len(data.queries))), strict=True)
    )
    # A written query to which people have added labels came with the data, too; it is written again.
    known = {folded(text) for query_id, text in of_data.items() if query_id != written_id(text)}
    selection.keep_where("a query of the data", [folded(text) not in known for text in selection.texts])
    openings = _openings(data, sorted({row for rows in selection.passages for row in rows}))
    selection.keep(
        "quotes the passage's beginning",
        [
            [row for row in rows if not quotes(text, openings[row], settings.quoted_words)]
            for text, rows in zip(selection.texts, selection.passages, strict=True)
        ],
    )
    if settings.similarity:
        near = _near(selection.texts, of_data, settings.similarity)
        selection.keep_where("nearly equal to an earlier query", ~near)
    wanted = settings.max_train + 2 * settings.max_evaluated
    if settings.max_train and settings.max_evaluated and len(selection.texts) > SEARCHED * wanted:
        drawn = set(_order(selection.texts, settings.seed)[: SEARCHED * wanted].tolist())
        selection.keep_where("beyond the number that is wanted", [row in drawn for row in range(len(selection.texts))])
    count = max(settings.found_within, settings.reranked if reranker else 0)
    hits = hits_of(selection.texts, selection.quoted, search, count)
    # All passages stay if one is found: the others are as relevant, and their words are other ones.
    is_hit = [
        bool(np.isin(rows, first[: settings.found_within]).any())
        for rows, first in zip(selection.passages, hits, strict=True)
    ]
    selection.keep_where(f"passage not in BM25's first {settings.found_within} hits", is_hit)
    if reranker:
        hits = [first[: settings.reranked] for first, kept in zip(hits, is_hit, strict=True) if kept]
        shown = progress(len(selection.texts)) if progress else None
        agreed = agrees(selection, hits, reranker, data.passages, settings, shown)
        selection.keep_where("the re-ranker does not agree", agreed)
    return selection


def agrees(
    selection: Selection, hits: list[np.ndarray], reranker: "Scorer", passages: PassageTable, settings: SelectQueries,
    progress: Progress | None = None,
) -> np.ndarray:  # fmt: skip
    """Which queries a re-ranker confirms, bool [n]: it ranks one of their passages as high as `SelectQueries` asks.

    Args:
        hits: of each query [n], the rows of the hits that it compares with the query's passages; -1: none.
    """
    agreed = np.zeros(len(selection.texts), dtype=bool)
    for start in range(0, len(agreed), RERANKED_AT_A_TIME):
        batch = range(start, min(start + RERANKED_AT_A_TIME, len(agreed)))
        compared = [np.union1d(selection.passages[row], hits[row][hits[row] >= 0]).astype(np.int64) for row in batch]
        query, passage = np.repeat(np.arange(len(batch)), [*map(len, compared)]), np.concatenate(compared)
        scores = reranker.score(
            Asked(selection.texts[batch.start : batch.stop], passages), query, passage, **settings.speed
        )
        for number, row in enumerate(batch):
            is_own, of_row = np.isin(compared[number], selection.passages[row]), scores[query == number]
            best = of_row[is_own].max()
            is_first = (of_row[~is_own] > best).sum() < settings.agreed_within
            agreed[row] = is_first and reranker.probability(best[None])[0] >= settings.agreed_probability
        if progress:
            progress.advance(len(batch))
    return agreed


def hits_of(
    texts: list[str], quoted: list[int], search: Callable[[list[str], int], np.ndarray], count: int
) -> list[np.ndarray]:
    """Returns the rows of the first `count` hits of each query [n], without the passage that it quotes."""
    every = search(texts, count + 1)
    return [hits[hits != source][:count] for hits, source in zip(every, quoted, strict=True)]


def _order(texts: list[str], seed: int) -> np.ndarray:
    """The rows of texts in a seeded order, which is the same for each text in any company."""
    return np.argsort([share(text, f"draw {seed}: ") for text in texts], kind="stable")


def quotes(query: str, opening: str, most: int) -> bool:
    """Whether a query has the first `most` words of a text in a row, or is the text's beginning itself."""
    words, first = list(words_of(query, shortest=1)), list(words_of(opening, shortest=1))[:most]
    if words == first[: len(words)]:
        return True
    return len(first) == most and any(words[i : i + most] == first for i in range(len(words) - most + 1))


def later_copies(texts: list[str], similarity: float) -> np.ndarray:
    """bool [n]: texts whose set of words is nearly that of an earlier text, one that is no such copy itself."""
    pairs = list(similar_pairs(texts, similarity, lambda left, right: np.ones(len(left), bool)))
    copy = np.zeros(len(texts), dtype=bool)
    if pairs:
        later, earlier = np.max(np.hstack(pairs), axis=0), np.min(np.hstack(pairs), axis=0)
        for first, second in sorted(zip(later.tolist(), earlier.tolist(), strict=True)):
            copy[first] |= not copy[second]
    return copy


def _near(texts: list[str], of_data: Mapping[str, str], similarity: float) -> np.ndarray:
    """bool [n]: as `later_copies`, after the data's queries (id → text).

    Texts that are in the data, too, come before the others: they are in train, and a copy may not be in dev or test.
    """
    ids = [written_id(text) for text in texts]
    order, new_ids = sorted(range(len(texts)), key=lambda row: ids[row] not in of_data), set(ids)
    others = [text for query_id, text in of_data.items() if query_id not in new_ids]
    near = np.zeros(len(texts), dtype=bool)
    near[order] = later_copies([*others, *(texts[row] for row in order)], similarity)[len(others) :]
    return near


def _openings(data: Dataset, rows: list[int]) -> dict[int, str]:
    """The texts of some passages, of which a query may not quote the beginning."""
    texts = data.passages.column("text", np.asarray(rows, np.int64))
    return dict(zip(rows, (text for part in texts for text in part.to_pylist()), strict=True))


def units_of(data: Dataset, fewest: int) -> list[str]:
    """Returns for each passage the name of the unit that belongs to one split: its document, or a part of it.

    Of fewer than `fewest` documents the units are their top sections, by the passages' titles, or the ones below.
    Without documents, each passage is alone.
    """
    if not data.structure:
        return [str(passage) for passage in data.passages.ids().to_pylist()]
    names = data.structure.document_ids.to_pylist()
    titles = [title.split(SEPARATOR) for batch in data.passages.stream() for title in batch.titles]
    documents = [names[number] for number in data.structure.document[: len(titles)].tolist()]
    units: list[str] = []
    for depth in range(max((len(title) for title in titles), default=0) + 1):
        units = [SEPARATOR.join([name, *title[:depth]]) for name, title in zip(documents, titles, strict=True)]
        if len(set(units)) >= fewest:
            break
    return units


def splits_of(queries: Mapping[str, int], shares: Mapping[int, float], seed: int) -> dict[str, int]:
    """Unit → split, by a hash of the unit's name, so that other units that come or go do not move it.

    Only where a split's queries would be more than `OFF` away from their share, as with few units of unlike size, units
    change places with train: the largest leave a split with too many queries, and those with the lowest hashes enter
    one with too few, unless they make it too large or leave none for the others. A split that still has none gets the
    unit with the fewest.

    Args:
        queries: unit → the number of its queries, of all units.
        shares: split → its share of the queries, or 0; the rest is train.
    """
    position = {unit: share(unit, f"split {seed}: ") for unit in queries}
    split, begin = dict.fromkeys(position, TRAIN), 0.0
    for code, fraction in shares.items():
        split |= {unit: code for unit, value in position.items() if begin <= value < begin + fraction}
        begin += fraction
    order = sorted((unit for unit, count in queries.items() if count), key=position.__getitem__)
    for at, (code, fraction) in enumerate(shares.items(), start=1):
        wanted = fraction * sum(queries.values())
        inside = sorted((unit for unit in order if split[unit] == code), key=lambda unit: queries[unit])
        has = sum(queries[unit] for unit in inside)
        while has > (1 + OFF) * wanted:
            split[inside[-1]] = TRAIN
            has -= queries[inside.pop()]
        # Train keeps a unit, and one for each later split that has none.
        empty = [other for other in [*shares][at:] if shares[other] and other not in {split[unit] for unit in order}]
        left = sum(split[unit] == TRAIN for unit in order) - 1 - len(empty)
        for unit in order:
            is_wanted = has < (1 - OFF) * wanted and has + queries[unit] <= (1 + OFF) * wanted
            if is_wanted and left > 0 and split[unit] == TRAIN:
                split[unit], has, left = code, has + queries[unit], left - 1
        training = [unit for unit in order if split[unit] == TRAIN]
        if wanted and not has and len(training) > 1:
            split[min(training, key=lambda unit: queries[unit])] = code
    return split


def assign(selection: Selection, data: Dataset, labelled: dict[str, int], settings: SelectQueries) -> np.ndarray:
    """Returns the split int8 [n] of each query, that of the unit of its first passage.

    A query keeps only its passages in that split. A query of dev or test for a passage that has a copy
    (`Dataset.passage_groups`) in another split is left out. A split in which people labelled queries (`labelled`: their
    number by split) gets no written ones, but train does. A written query to which people have added labels is in
    train, with those of its passages that are.
    """
    units = units_of(data, settings.fewest_units)
    queries = dict.fromkeys(units, 0) | Counter(units[passages[0]] for passages in selection.passages)
    fractions = {TEST: settings.test_fraction, DEV: settings.dev_fraction}
    of_unit = splits_of(queries, fractions, settings.seed)
    of_unit |= {unit: TRAIN for unit, code in of_unit.items() if labelled[SPLITS[code]]}
    of_row = np.array([of_unit[unit] for unit in units], dtype=np.int8)
    split = of_row[[passages[0] for passages in selection.passages]]
    data_ids = set(data.queries.column("query_id").to_pylist())
    split[[written_id(text) in data_ids for text in selection.texts]] = TRAIN
    torn = _torn(data.passage_groups, of_row)
    wanted = [
        [] if code != TRAIN and torn[passages].any() else [row for row in passages if of_row[row] == code]
        for passages, code in zip(selection.passages, split.tolist(), strict=True)
    ]
    split = split[[bool(rows) for rows in wanted]]
    selection.keep("for a passage with a copy in another split", wanted)
    most = {TRAIN: settings.max_train, DEV: settings.max_evaluated, TEST: settings.max_evaluated}
    order = _order(selection.texts, settings.seed)
    keep = np.ones(len(split), dtype=bool)
    for code, count in most.items():
        inside = order[split[order] == code]
        keep[inside[count or len(inside) :]] = False
    selection.keep_where("beyond the number that is wanted", keep)
    return np.asarray(split[keep])


def _torn(groups: np.ndarray | None, split: np.ndarray) -> np.ndarray:
    """Which passages have a copy in another split, bool [m].

    Args:
        groups: `Dataset.passage_groups`.
        split: int8 [m] of each passage.
    """
    if groups is None:
        return np.zeros(len(split), dtype=bool)
    lowest, highest = np.full(len(split), len(SPLITS)), np.full(len(split), -1)
    np.minimum.at(lowest, groups, split)
    np.maximum.at(highest, groups, split)
    return np.asarray(lowest[groups] < highest[groups])
