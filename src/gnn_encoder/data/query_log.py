"""Labels from a log of searches (`ingest.log`): how often users clicked, or used, a passage for a query.

A count becomes a label of relevance 1 if it is at least `log_clicks`, and chance explains as many with a probability of
less than `log_chance` (`clicks_by_chance`).

With times, the log is cut by time into parts with a share of the clicks each: the last is test, the one before it dev
(`dev_fraction` each), the first train. A query belongs to the part in which it was first asked, and only that part's
rows label it: no training label knows the future, and no test query was asked before. If the data have labels for dev
or test, the log adds none there; training queries it adds in any case.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.tables import pair_keys
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.clicks_by_chance import by_chance, propensities
from gnn_encoder.data.log_rows import Clicks
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import Kind, Problems, refusal
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

LOWEST = 20
"""Positions from here on count as one: too few users look there to tell them apart."""
PREFIX = "log-"
"""Of the ids of a log's queries."""


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
        of_log = _OfLog(problems)
        clicks = Clicks.read(path, of_log)
        if not len(clicks.query):
            reasons = "; ".join(map(str, of_log.all())) or "it is empty, or has a header line and no rows"
            raise UserError(f"{path} has no row that can be used: {reasons}: mend the log and run again")
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
        is_known: np.ndarray = known[clicks.passage]
        self._remark(~is_known, clicks.clicks, "name a passage that the corpus lacks and were left out")
        return is_known

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
        keys, first, pair = np.unique(pair_keys(clicks.query, clicks.passage), return_index=True, return_inverse=True)
        query, passage, count = keys >> 32, keys & 0xFFFFFFFF, np.bincount(pair, clicks.clicks)
        views = None if clicks.views is None else np.bincount(pair, clicks.views)
        is_frequent = count >= settings.log_clicks
        label = is_frequent & (by_chance(query, passage, count, views) < settings.log_chance)
        of_query = np.bincount(query, count)
        frequent, labelled = np.unique(query[is_frequent]), np.unique(query[label])
        for rows, reason in (
            (np.setdiff1d(query, frequent), f"no passage was clicked {settings.log_clicks} times (ingest.log_clicks)"),
            (np.setdiff1d(frequent, labelled), "chance explains the clicks (ingest.log_chance)"),
        ):
            if len(rows):
                clicked = f"{len(rows):,} {split} queries, {of_query[rows].sum():,.0f} clicks"
                self.remarks.append(f"{self._name}: {clicked}, were left out: {reason}")
        texts, passage_ids = clicks.texts, clicks.passage_ids
        ids = {row: log_query_id(texts[row]) for row in labelled.tolist()}
        queries, first_row = np.unique(clicks.query, return_index=True)
        lines = clicks.line[first_row[np.searchsorted(queries, labelled)]].tolist()
        for (row, query_id), line in zip(ids.items(), lines, strict=True):
            self.rows.append(Query(query_id, texts[row], [], split, self._name, line))
            self.traffic[query_id] = float(of_query[row])
        pairs = zip(query[label].tolist(), passage[label].tolist(), clicks.line[first[label]].tolist(), strict=True)
        self.rows += [Label(ids[q], passage_ids[p], 1, split, self._name, line) for q, p, line in pairs]

    def _remark(self, rows: np.ndarray, clicks: np.ndarray, remark: str) -> None:
        if rows.any():
            self.remarks.append(f"{self._name}: {int(rows.sum()):,} rows, {clicks[rows].sum():,.0f} clicks, {remark}")


class _OfLog(Problems):
    """The problems of a log, which are added to those of the whole data, too."""

    def __init__(self, whole: Problems) -> None:
        super().__init__()
        self._whole = whole

    def add(self, kind: Kind, file: str, line: int | None = None, detail: str = "") -> None:
        """As of `Problems`."""
        super().add(kind, file, line, detail)
        self._whole.add(kind, file, line, detail)


def log_file(settings: Ingest) -> Path:
    """Returns the file of `ingest.log`; raises UserError if there is none."""
    path = Path(settings.log)
    if not path.is_file():
        raise UserError(f"ingest.log = {path}: no such file; name a log of queries and passages, CSV or JSON lines")
    return path


def log_query_id(text: str) -> str:
    """The id of a log's query; texts that are equal when `folded` have one id."""
    return PREFIX + blake2b(folded(text).encode(), digest_size=8).hexdigest()
