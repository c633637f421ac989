"""Labels from a log of searches (`ingest.log`): how often users clicked, or used, a passage for a query.

The log is CSV with a header line (commas, semicolons or tabs) or JSON lines, plain or .gz. A row has the text of a
query and the id of a passage; and a count, or clicks and views (how often the passage was shown for the query), or
neither, and is then one click. Optional: the position at which it was shown (1: first), and a date or time in ISO 8601.
Rows of one query (texts that are equal when `folded`) and passage add up.

A count becomes a label of relevance 1 if it is at least `log_clicks`, and chance explains as many with a probability of
less than `log_chance`. By chance, clicks are Poisson with the mean

    with views      v · max(rate of the query's other passages, rate of other queries)      rate = clicks / views
    without views   clicks of the query · share of the passage in the clicks of other queries

where v are the pair's views. So a passage that is clicked whatever was asked, and a query whose hits are all clicked
alike, give no label.

With positions, views count as much as users look at their position: v = Σ_k p_k · views at k (the position-based model,
inverse propensity weighting: Joachims, Swaminathan and Schnabel, WSDM 2017). The propensities p_k come from the log
itself: passages that one query showed at several positions are an experiment (intervention harvesting: Agarwal and
others, WSDM 2019). Here p is their maximum likelihood under that model with Poisson clicks.

With times, the log is cut by time into parts with a share of the clicks each: the last is test, the one before it dev
(`dev_fraction` each), the first train. A query belongs to the part in which it was first asked, and only that part's
rows label it: no training label knows the future, and no test query was asked before. If the data have labels for dev
or test, the log adds none there; training queries it adds in any case.
"""

import csv
import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.tables import pair_keys
from gnn_encoder.artifacts.texts import folded, is_blank
from gnn_encoder.data.delimited import LABEL_COLUMNS
from gnn_encoder.data.lines import read_lines
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import Kind, Problems, refusal
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

FIELDS = {
    "query": {"query", "question", "search", "search_term", "query_text", "q"},
    "passage": LABEL_COLUMNS["passage"] | {"passage"},
    "count": {"count", "uses", "n"},
    "clicks": {"clicks", "click", "clicked"},
    "views": {"views", "impressions", "shown"},
    "position": {"position", "rank"},
    "time": {"time", "date", "timestamp", "day"},
}
"""What a field holds → its names, with `_` for `-` and in lower case."""
DELIMITERS = "\t;,"
LOWEST = 20
"""Positions from here on count as one: too few users look there to tell them apart."""
ROUNDS, CHANGE = 1000, 1e-7
"""Most rounds in which propensities are fitted, and the relative change at which the fit ends."""
MOST = 1e12
PREFIX = "log-"
"""Of the ids of a log's queries."""


@dataclass(frozen=True)
class Clicks:
    """The rows of a log.

    texts     the distinct queries, and `passage_ids` the distinct ids of passages
    query, passage   int64 [r], numbers of the row's query and passage
    clicks    float64 [r]
    views     float64 [r]; None: the log has none
    position  int64 [r], from 1; None: the log has none
    time      float64 [r], seconds; None: the log has none
    line      int64 [r]
    """

    texts: list[str]
    passage_ids: list[str]
    query: np.ndarray
    passage: np.ndarray
    clicks: np.ndarray
    views: np.ndarray | None
    position: np.ndarray | None
    time: np.ndarray | None
    line: np.ndarray

    @classmethod
    def read(cls, path: Path, problems: Problems) -> "Clicks":
        """Reads a log; a bad row is a problem and left out.

        Raises:
            UserError: no column with queries or with passages.
        """
        suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
        json_lines = bool(suffixes) and suffixes[-1] in (".json", ".jsonl", ".ndjson")
        records = _json_records(path, problems) if json_lines else _csv_records(path, problems)
        forms, queries, passages = dict[str, int](), dict[str, int](), dict[str, int]()
        texts: list[str] = []
        columns = {name: array("d") for name in ("query", "passage", "clicks", "views", "position", "time", "line")}
        present: list[bool] | None = None
        for line, record in records:
            row, wrong = _row(record)
            if row:
                here = [value is not None for value in (row.views, row.position, row.time)]
                present = present or here
                wrong = wrong or ("" if here == present else "not the fields of the first row")
            if wrong or row is None:
                problems.add(Kind.BAD_ROW, path.name, line, wrong)
                continue
            if row.query not in forms:
                key = folded(row.query)
                if key not in queries:
                    texts.append(row.query)
                forms[row.query] = queries.setdefault(key, len(queries))
            numbers = (forms[row.query], passages.setdefault(row.passage, len(passages)), row.clicks)
            for name, value in zip(columns, (*numbers, row.views, row.position, row.time, line), strict=True):
                columns[name].append(0.0 if value is None else value)
        query, passage, clicks, views, position, time, lines = map(np.array, columns.values())
        has_views, has_position, has_time = present or (False, False, False)
        return cls(
            texts,
            list(passages),
            query.astype(np.int64),
            passage.astype(np.int64),
            clicks,
            views if has_views else None,
            position.astype(np.int64) if has_position else None,
            time if has_time else None,
            lines.astype(np.int64),
        )

    def where(self, keep: np.ndarray) -> "Clicks":
        """The rows where a mask [r] is true."""
        columns = {name: column for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return replace(self, **{name: column[keep] for name, column in columns.items()})


@dataclass(frozen=True)
class _Row:
    query: str
    passage: str
    clicks: float
    views: float | None
    position: float | None
    time: float | None


class QueryLog:
    """The queries and labels that a log gives.

    rows      queries and labels, as of a data set
    traffic   id of each of these queries → its clicks in its part of the log
    remarks   how rows became labels, and what was left out
    """

    def __init__(
        self, settings: Ingest, passage_ids: pa.ChunkedArray, labelled: Sequence[str], problems: Problems
    ) -> None:
        """Reads the log of `settings`.

        Args:
            passage_ids: ids of the corpus.
            labelled: the splits that the data have labels for.

        Raises:
            UserError: the file cannot be used at all, or it gives no label.
        """
        path = log_file(settings)
        self._name, self.traffic = path.name, dict[str, float]()
        self.remarks, self.rows = list[str](), list[Query | Label]()
        clicks = Clicks.read(path, problems)
        if settings.on_bad_rows == "refuse" and (wrong := problems.all()):
            raise UserError(refusal(f"{settings.dataset} with {path}", wrong))
        split, kept = self._split(clicks, settings, labelled), self._in_corpus(clicks, passage_ids)
        split, clicks = split[kept], clicks.where(kept)
        clicks = replace(clicks, views=self._examined(clicks, split == SPLITS.index("train")))
        known = clicks.views is None or ~np.isnan(clicks.views)
        for code in np.unique(split[split >= 0]):
            self._add(SPLITS[code], clicks.where((split == code) & known), settings)
        if not self.traffic:
            raise UserError(
                f"{path} gives no label: no passage was clicked {settings.log_clicks} times (ingest.log_clicks) for a "
                f"query, and more often than by chance (ingest.log_chance): {'; '.join(self.remarks)}"
            )

    def _split(self, clicks: Clicks, settings: Ingest, labelled: Sequence[str]) -> np.ndarray:
        """Returns the split of each row, int8 [r]; -1: its query was first asked in an earlier part of the log."""
        wanted = [split for split in ("dev", "test") if split not in labelled] if settings.dev_fraction else []
        if clicks.time is None or not wanted:
            return np.zeros(len(clicks.query), np.int8)
        times, row = np.unique(clicks.time, return_inverse=True)
        if len(times) <= len(wanted):
            raise UserError(
                f"{self._name} has {len(times)} different times: a split by time needs at least {len(wanted) + 1}; "
                "leave the times out to split by chance"
            )
        of_time = np.bincount(row, clicks.clicks)
        before = (np.cumsum(of_time) - of_time) / max(of_time.sum(), 1)
        ends = 1 - settings.dev_fraction * np.arange(len(wanted), 0, -1)
        part = np.searchsorted(ends, before + 1e-9, side="right")[row]
        first = np.full(len(clicks.texts), len(wanted))
        np.minimum.at(first, clicks.query, part)
        later = part > first[clicks.query]
        for number, split in enumerate(wanted, 1):
            inside = part == number
            if not inside.any():
                self.remarks.append(f"{self._name}: no time is left for {split}")
                continue
            start = datetime.fromtimestamp(clicks.time[inside].min(), UTC)
            share = clicks.clicks[inside & later].sum() / max(clicks.clicks[inside].sum(), 1)
            self.remarks.append(
                f"{self._name}: {split} is the log from {start:%Y-%m-%d} on; {100 * share:.0f} % of its clicks are of "
                "queries that were asked before, and label nothing"
            )
        codes = np.array([SPLITS.index(split) for split in ("train", *wanted)], np.int8)
        return np.where(later, np.int8(-1), codes[part])

    def _in_corpus(self, clicks: Clicks, passage_ids: pa.ChunkedArray) -> np.ndarray:
        """Returns the rows of passages that the corpus has, bool [r]."""
        names = pa.array(clicks.passage_ids, pa.large_string())
        known = pc.is_in(names, value_set=passage_ids.combine_chunks().cast(names.type)).to_numpy(zero_copy_only=False)
        if not known.any():
            raise UserError(f"{self._name} names no passage of the corpus: its passages must be the corpus's ids")
        there: np.ndarray = known[clicks.passage]
        self._remark(~there, clicks.clicks, "name a passage that the corpus lacks and were left out")
        return there

    def _examined(self, clicks: Clicks, train: np.ndarray) -> np.ndarray | None:
        """Returns how often users looked at the passage of each row [r]; NaN: unknown; None: the log has no views.

        Only rows of the training part, bool [r], say how often users look at a position.
        """
        if clicks.views is None or clicks.position is None:
            if clicks.position is not None:
                self.remarks.append(f"{self._name} has positions and no views: they say nothing about clicks by chance")
            return clicks.views
        position = np.minimum(clicks.position, LOWEST)
        pair = np.unique(pair_keys(clicks.query, clicks.passage), return_inverse=True)[1]
        p = np.full(position.max(initial=0) + 1, np.nan)
        of_train = propensities(pair[train], position[train], clicks.clicks[train], clicks.views[train])
        p[: len(of_train)] = of_train
        if np.isnan(p).all():
            self.remarks.append(
                f"{self._name} shows no passage at several positions for one query: a view counts the same at each"
            )
            return clicks.views
        examined: np.ndarray = clicks.views * p[position]
        lost = np.isnan(examined)
        self._remark(lost, clicks.clicks, "are at positions that share no passage with others and were left out")
        looked = ", ".join(f"{k}: {p[k]:.2f}" for k in (1, 2, 3, 5, 10) if k < len(p) and not np.isnan(p[k]))
        self.remarks.append(f"{self._name}: how often users look at a position, from passages that moved: {looked}")
        return examined

    def _add(self, split: str, clicks: Clicks, settings: Ingest) -> None:
        """Adds the queries and labels of one split's rows."""
        keys, first, pair = np.unique(pair_keys(clicks.query, clicks.passage), return_index=True, return_inverse=True)
        query, passage, count = keys >> 32, keys & 0xFFFFFFFF, np.bincount(pair, clicks.clicks)
        views = None if clicks.views is None else np.bincount(pair, clicks.views)
        enough = count >= settings.log_clicks
        label = enough & (by_chance(query, passage, count, views) < settings.log_chance)
        of_query = np.bincount(query, count)
        frequent, labelled = np.unique(query[enough]), np.unique(query[label])
        for rows, why in (
            (np.setdiff1d(query, frequent), f"no passage was clicked {settings.log_clicks} times (ingest.log_clicks)"),
            (np.setdiff1d(frequent, labelled), "chance explains the clicks (ingest.log_chance)"),
        ):
            if len(rows):
                clicked = f"{len(rows):,} {split} queries, {of_query[rows].sum():,.0f} clicks"
                self.remarks.append(f"{self._name}: {clicked}, were left out: {why}")
        texts, passage_ids = clicks.texts, clicks.passage_ids
        ids = {row: log_query_id(texts[row]) for row in labelled.tolist()}
        asked, at = np.unique(clicks.query, return_index=True)
        lines = clicks.line[at[np.searchsorted(asked, labelled)]].tolist()
        for (row, query_id), line in zip(ids.items(), lines, strict=True):
            self.rows.append(Query(query_id, texts[row], [], split, self._name, line))
            self.traffic[query_id] = float(of_query[row])
        pairs = zip(query[label].tolist(), passage[label].tolist(), clicks.line[first[label]].tolist(), strict=True)
        self.rows += [Label(ids[q], passage_ids[p], 1, split, self._name, line) for q, p, line in pairs]

    def _remark(self, rows: np.ndarray, clicks: np.ndarray, what: str) -> None:
        if rows.any():
            self.remarks.append(f"{self._name}: {int(rows.sum()):,} rows, {clicks[rows].sum():,.0f} clicks, {what}")


def log_file(settings: Ingest) -> Path:
    """Returns the file of `ingest.log`; raises UserError if there is none."""
    path = Path(settings.log)
    if not path.is_file():
        raise UserError(f"ingest.log = {path}: no such file; name a log of queries and passages, CSV or JSON lines")
    return path


def log_query_id(text: str) -> str:
    """The id of a log's query; texts that are equal when `folded` have one id."""
    return PREFIX + blake2b(folded(text).encode(), digest_size=8).hexdigest()


def by_chance(query: np.ndarray, passage: np.ndarray, clicks: np.ndarray, views: np.ndarray | None) -> np.ndarray:
    """Returns the probability [r] of at least so many clicks by chance, of distinct pairs [r], as the module says.

    Args:
        views: [r] how often users looked at the passage; None: unknown.
    """
    from scipy.special import gammainc

    of_query = np.bincount(query, clicks)[query]
    if views is None:
        expected = of_query * _rate(np.bincount(passage, clicks)[passage] - clicks, clicks.sum() - of_query)
    else:
        views_of_query = np.bincount(query, views)[query]
        within = _rate(of_query - clicks, views_of_query - views)
        others = _rate(clicks.sum() - of_query, views.sum() - views_of_query)
        expected = views * np.maximum(within, others)
    # The regularized gamma function P(c, m) is the probability of c or more events of a Poisson variable of mean m.
    probability: np.ndarray = np.where(clicks > 0, gammainc(np.maximum(clicks, 1), expected), 1.0)
    return probability


def propensities(pair: np.ndarray, position: np.ndarray, clicks: np.ndarray, views: np.ndarray) -> np.ndarray:
    """Returns the probability p_k that users look at position k, relative to the first position that is known.

    The maximum likelihood of clicks ~ Poisson(views · p_k · r_pair), by turns for p and r. Only pairs that were shown
    at several positions say something about p.

    Args:
        pair: [r] number of the row's query and passage, from 0.
        position: [r] from 1.

    Returns:
        [k + 1], entry 0 unused; NaN: unknown, because no passage links the position with those that have most views, or
        none was clicked there.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(position.max(initial=0)) + 1
    p = np.full(size, np.nan)
    at = np.unique(pair_keys(pair, position))
    moved = np.bincount(at >> 32, minlength=int(pair.max(initial=0)) + 1) > 1
    rows = moved[pair] & (views > 0)
    if not rows.any():
        return p
    pair, position, clicks, views = pair[rows], position[rows], clicks[rows], views[rows]
    pair = np.unique(pair, return_inverse=True)[1]
    links = coo_array((np.ones(len(pair)), (position, size + pair)), shape=(size + pair.max() + 1,) * 2)
    part = connected_components(links, directed=False)[1][position]
    rows = part == np.bincount(part, views).argmax()
    pair, position, clicks, views = pair[rows], position[rows], clicks[rows], views[rows]
    of_pair, of_position = np.bincount(pair, clicks), np.bincount(position, clicks, minlength=size)
    fitted = np.ones(size)
    for _ in range(ROUNDS):
        relevance = _rate(of_pair, np.bincount(pair, views * fitted[position]))
        latest = _rate(of_position, np.bincount(position, views * relevance[pair], minlength=size))
        latest /= max(latest.max(), 1e-300)
        done = np.abs(latest - fitted).max() < CHANGE
        fitted = latest
        if done:
            break
    known = fitted > 0
    if known.any():
        p[known] = fitted[known] / fitted[np.flatnonzero(known)[0]]
    return p


def _rate(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns part / whole, and 0 where nothing is whole; rounding may leave less than nothing of a difference."""
    rate: np.ndarray = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 1e-9)
    return rate.clip(0)


def _csv_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line at which each row ends, and its fields by what they hold."""
    at = 0

    def lines() -> Iterator[str]:
        nonlocal at
        for number, line in read_lines(path, problems):
            at = number
            yield f"{line}\n"

    source = lines()
    header = next(source, "")
    names: dict[str, int] = {}
    for delimiter in DELIMITERS:
        columns: list[str] = []
        with suppress(csv.Error):  # a line of 100,000 characters is no header
            columns = next(csv.reader([header], delimiter=delimiter), [])
        names = {what: i for i, column in enumerate(columns) if (what := _field(column))}
        if {"query", "passage"} <= set(names):
            break
    else:
        raise UserError(
            f"{path}: its first line must name the columns, query and passage among them, and not be {header[:80]!r}"
        )
    rows = csv.reader(source, delimiter=delimiter)
    while True:
        try:
            fields_of_row = next(rows, None)
        except csv.Error as error:
            problems.add(Kind.BAD_ROW, path.name, at, str(error))
            continue
        if fields_of_row is None:
            return
        if len(fields_of_row) != len(columns):
            problems.add(Kind.BAD_ROW, path.name, at, f"{len(fields_of_row)} columns, not {len(columns)}")
        else:
            yield at, {what: fields_of_row[i] for what, i in names.items()}


def _json_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number and the object of each line, by what its fields hold."""
    for number, line in read_lines(path, problems):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.add(Kind.BAD_JSON, path.name, number, str(error))
            continue
        if isinstance(record, dict):
            yield number, {what: value for name, value in record.items() if (what := _field(name))}
        else:
            problems.add(Kind.BAD_ROW, path.name, number, "not a JSON object")


def _field(name: str) -> str:
    """What a field of some name holds; empty: nothing that is read."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    return next((what for what, known in FIELDS.items() if plain in known), "")


def _row(record: dict[str, Any]) -> tuple[_Row | None, str]:
    """Returns a row, or what is wrong with it."""
    query, passage = record.get("query"), record.get("passage")
    passage = str(passage) if type(passage) is int else passage
    if not isinstance(query, str) or is_blank(query):
        return None, '"query" is missing or not a text'
    if not isinstance(passage, str) or not passage:
        return None, '"passage" is missing or not an id'
    if any("\ud800" <= character <= "\udfff" for character in query + passage):
        return None, "half a surrogate pair"
    numbers: dict[str, float | None] = dict.fromkeys(("count", "clicks", "views", "position"))
    for name in numbers:
        if record.get(name) not in (None, ""):
            number = _number(record[name])
            if number is None or (name == "position" and (number < 1 or number % 1)):
                return None, f"{name} {record[name]!r} is not a number from {int(name == 'position')}"
            numbers[name] = number
    count, clicks, views, position = numbers.values()
    if count is not None and clicks is not None:
        return None, "both a count and clicks"
    if views is not None and clicks is None:
        return None, "views without clicks"
    clicked = next((number for number in (clicks, count) if number is not None), 1.0)
    if views is not None and clicked > views:
        return None, f"{clicked:g} clicks of {views:g} views"
    time = None
    if record.get("time") not in (None, ""):
        try:
            moment = datetime.fromisoformat(str(record["time"]).strip())
            time = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None, f"time {record['time']!r} is not a date or time in ISO 8601"
    return _Row(query, passage, clicked, views, position, time), ""


def _number(value: Any) -> float | None:
    """Returns a number from 0 to `MOST`; None for what is none."""
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MOST else None
