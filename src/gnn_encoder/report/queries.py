"""Files beside the page, with which it shows any query: two systems side by side, their hits, and why they are there.

A page that is opened from a disk may not fetch, but it may add scripts. So each file is a call of the page's function
`part` with a name and a value:

index         ids and texts of the split's labelled queries, a measure of every system for each, and their strata
hits-I        for `PART` queries: each system's first hits, and the labels
passages-I    `PART` passages that are a hit or labelled: id, title, beginning of the text, link, training queries

Passages are numbered by their place among those passages. So a passage is stored once, however many queries have it.

All files together have at most `BYTES`. Of more queries some are drawn: `OF_STRATUM` of each stratum, then others; in
both, those on which the two systems that the page compares first differ come first.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.history import Record
from gnn_encoder.evaluation.measures import labelled_queries

PART = 256
"""Queries, or passages, of a file."""
BYTES = 64_000_000
"""Of all files at most: 100,000 queries of 30 systems would have 812 MB."""
OF_STRATUM = 100
"""Queries of each stratum that are drawn before others."""
MEASURED = 1_000
"""Queries by which the size of all is estimated."""
TEXT, QUERY = 420, 300
"""Most characters of a passage and of a query."""
TRAINING = 3
"""Most training queries shown of a passage that is labelled with them."""
LABELS = 30
"""Most labels of a query, the highest first, beside those of its hits."""
DECIMALS = 6
"""Of a figure: with three, queries that gained 0.0004 of AP would count as equal."""


def write_queries(
    folder: Path,
    data: Dataset,
    split: str,
    figures: Mapping[str, np.ndarray],
    hits: Mapping[str, np.ndarray],
    strata: Mapping[str, np.ndarray],
    source: Callable[[str], str],
    *,
    one: str,
    other: str,
    **facts: Any,
) -> int:
    """Writes the files, and returns the number of queries in them.

    Args:
        folder: exists, and is empty.
        figures: {system: [n]} the measure of each labelled query of the split.
        hits: {system: [n, s]} passage rows, best first, -1 after the last hit.
        strata: {name: bool [n]}.
        source: the address of a passage's source, from its id; empty if it has none.
        one, other: the systems that are compared at first. They and the facts go into the index.
    """
    queries = labelled_queries(data.judged(split))
    first = _first(figures[one] != figures[other], strata)

    def write(count: int) -> int:
        for file in folder.iterdir():
            file.unlink()
        rows = np.sort(first[:count])
        figures_of, hits_of, inside = (
            {name: of[rows] for name, of in some.items()} for some in (figures, hits, strata)
        )
        compared = {"one": one, "other": other, **facts}
        return _write_some(folder, data, split, queries[rows], figures_of, hits_of, inside, source, compared)

    count = min(MEASURED, len(first))
    size = write(count)
    if count < len(first):
        # More queries share more passages, so all may fit although the first ones do not say so.
        count = len(first) if size * len(first) <= 2 * BYTES * count else max(1, count * BYTES // size)
        size = write(count)
    while size > BYTES and count > 1:
        count = max(1, int(0.95 * count * BYTES / size))
        size = write(count)
    return count


def _first(differ: np.ndarray, strata: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the order [n] in which queries are drawn: some of each stratum, then those that `differ`, then others."""
    order = np.lexsort((np.random.default_rng(0).random(len(differ)), ~differ))
    kept = np.zeros(len(order), bool)
    for inside in strata.values():
        kept[order[inside[order]][:OF_STRATUM]] = True
    return np.concatenate([order[kept[order]], order[~kept[order]]])


def _write_some(
    folder: Path, data: Dataset, split: str, queries: np.ndarray, figures: Mapping[str, np.ndarray],
    hits: Mapping[str, np.ndarray], strata: Mapping[str, np.ndarray], source: Callable[[str], str],
    facts: Mapping[str, Any],
) -> int:  # fmt: skip
    """Writes the files of some queries (rows, ascending) and returns their bytes; the others as in `write_queries`."""
    judged = data.judged(split)
    judged = judged.where(judged.passage < len(data.passages))
    kept = judged.where(np.lexsort((-judged.relevance, judged.query)))
    kept = kept.where(np.isin(kept.query, queries))
    shown = np.stack(list(hits.values()), axis=1)  # [n, systems, s]
    row_of = np.searchsorted(queries, kept.query)
    is_shown = np.arange(len(row_of)) - np.searchsorted(row_of, row_of) < LABELS
    for of_system in hits.values():
        is_shown |= (of_system[row_of] == kept.passage[:, None]).any(axis=1)
    kept = kept.where(is_shown)
    used = np.unique(np.concatenate([shown[shown >= 0], kept.passage]))
    begins, ends = (np.searchsorted(kept.query, queries, side=side) for side in ("left", "right"))
    positions = np.where(shown >= 0, np.searchsorted(used, shown), -1)
    labels = np.stack([np.searchsorted(used, kept.passage), kept.relevance], axis=1)

    ids = data.queries.column("query_id").take(pa.array(queries)).to_pylist()
    index = {
        "part": PART,
        "systems": list(hits),
        "ids": ids,
        "texts": [_cut(text, QUERY) for text in data.query_texts(queries)],
        "figures": [np.round(figures[system], DECIMALS).tolist() for system in hits],
        "strata": {name: np.flatnonzero(inside).tolist() for name, inside in strata.items()},
        **facts,
    }
    size = _write(folder, "index", index)
    for number, start in enumerate(range(0, len(queries), PART)):
        rows = range(start, min(start + PART, len(queries)))
        hits_of = [[[p for p in of if p >= 0] for of in positions[row].tolist()] for row in rows]
        labels_of = [labels[begins[row] : ends[row]].tolist() for row in rows]
        size += _write(folder, f"hits-{number}", [list(both) for both in zip(hits_of, labels_of, strict=True)])
    training_queries = _training_queries(data, used)
    for number, start in enumerate(range(0, len(used), PART)):
        rows_of = used[start : start + PART]
        passages = data.passages.take(rows_of)
        columns = zip(passages.ids, passages.titles, passages.texts, rows_of.tolist(), strict=True)
        value = [
            [name, title, _cut(text, TEXT), source(name), training_queries.get(row, [])]
            for name, title, text, row in columns
        ]
        size += _write(folder, f"passages-{number}", value)
    return size


def source_of(ingest: Record) -> Callable[[str], str]:
    """Returns the function that links a passage to its source, from the record of the step that read the data.

    An id that is a web address is its own link; in a folder of documents, it is a file with the page or section.
    """
    settings = ingest.settings
    folder = Path(str(settings.get("dataset", "")))
    base = folder.absolute().as_uri() + "/" if settings.get("format") == "documents" and folder.is_dir() else ""

    def source(passage_id: str) -> str:
        if passage_id.startswith(("https://", "http://")):
            return passage_id
        if not base:
            return ""
        file, _, anchor = passage_id.partition("#")
        part = quote(anchor.rpartition(":")[0] or anchor, safe="=")
        return f"{base}{quote(file)}#{part}" if part else base + quote(file)

    return source


def _training_queries(data: Dataset, passages: np.ndarray) -> dict[int, list[str]]:
    """Returns {passage: texts of the first training queries that are labelled with it}."""
    labels = data.split_qrels("train").positive()
    labels = labels.where(np.isin(labels.passage, passages))
    labels = labels.where(np.argsort(labels.passage, kind="stable"))
    rank = np.arange(len(labels.passage)) - np.searchsorted(labels.passage, labels.passage)
    labels = labels.where(rank < TRAINING)
    texts: dict[int, list[str]] = {}
    for passage, text in zip(labels.passage.tolist(), data.query_texts(labels.query), strict=True):
        texts.setdefault(passage, []).append(_cut(text, QUERY // 2))
    return texts


def _write(folder: Path, name: str, value: Any) -> int:
    """Writes a file, and returns its bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return (folder / f"{name}.js").write_bytes(f"part({json.dumps(name)},{text})\n".encode("utf-8", "replace"))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"
