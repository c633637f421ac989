"""Queries and labels: joins them to each other and to the corpus, checks them, and assigns splits."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import DatasetWriter, pair_keys
from gnn_encoder.artifacts.added_labels import read_labels
from gnn_encoder.artifacts.dataset import IDENTICAL, MISSING, QUERY_VALUES, RECURRING, SPLITS, TRAFFIC, TRAINED
from gnn_encoder.artifacts.passages import passage_text
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.forgotten import Forgotten
from gnn_encoder.data.query_log import QueryLog
from gnn_encoder.data.question_tables import (
    ADDED,
    LABELS,
    QUERIES,
    TEXT,
    add_problems,
    added_rows,
    read_tables,
    usable_queries,
    with_rows,
)
from gnn_encoder.data.rows import Source, duplicates
from gnn_encoder.data.splits import DEV, NONE, TRAIN, complete, drawn, highest, leaked
from gnn_encoder.data.twins import recurring, twin_groups
from gnn_encoder.data.validation import FEWEST_TRAINING, Kind, Problems, WithoutMissing
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


class Questions:
    """The queries and labels of all splits: read, checked and joined, ready to be written.

    Unusable rows are left out and counted as problems. Of labels that contradict each other, none is used. Queries of
    no split, repeated labels, and training queries with the words of a dev or test query are left out with a remark
    only.

    Training and dev queries are drawn last. Missing splits come from all training queries, so dev and test are the same
    with every draw of training queries, and figures of two such draws are comparable. Queries that are left out take no
    place in a draw.

    queries   a table of `QUERIES`, labels   a table of `LABELS`
    known_ids ids of all queries with a text, those that were left out included
    split     int8 [queries]: index of the final split in `SPLITS`
    query, passage   int64 [labels]: rows in `queries` and in the corpus. A passage that the corpus lacks, or is the
                     query itself, has a row behind those of the corpus; only labels of dev and test name it.
    identical int64 [queries]: as `Dataset.identical`
    groups    int [queries]: as `Dataset.groups`
    trained   bool [queries]: training queries that are trained on
    recurring bool [queries, splits]: whether another query of each split nearly equals the query
    train_before_draw, dev_before_draw   number of training, and of dev queries before the draw
    """

    def __init__(self, source: Source, passage_ids: pa.ChunkedArray, settings: Ingest, problems: Problems) -> None:
        self.remarks: list[str] = []
        log, self._traffic = settings.log, dict[str, float]()
        forgotten = Forgotten.read(settings.forgotten) if settings.forgotten else None
        queries, self.labels = read_tables(source.questions(WithoutMissing(problems) if log else problems), problems)
        if log:
            labelled = [split for code, split in enumerate(SPLITS) if code in self.labels["split"].to_numpy()]
            read = QueryLog(settings, passage_ids, labelled, problems)
            self.remarks += read.remarks
            self._traffic = read.traffic
            rows = forgotten.without(read.rows) if forgotten else read.rows
            queries, self.labels = (
                pa.concat_tables(tables).combine_chunks()
                for tables in zip((queries, self.labels), read_tables(iter(rows), problems), strict=True)
            )
        self.queries = usable_queries(queries, problems)
        field, valued = settings.query_field, pc.any(pc.not_equal(self.queries["value"], ""))
        if field and len(self.queries) and not valued.as_py():  # data without a query have a problem of their own
            raise UserError(
                f"ingest.query_field = {field!r}: no query of {source.name} has a value of it; name a field of "
                "queries.jsonl, or of its metadata, or leave the setting empty"
            )
        self._added = read_labels(Path(settings.labels)) if settings.labels else []
        if forgotten:
            self._added = [label for label in self._added if not forgotten.has_query(label.query)]
        self._add_labels(passage_ids)
        self.known_ids = self.queries["id"].combine_chunks()
        query = pc.index_in(self.labels["query_id"], value_set=self.queries["id"].combine_chunks())
        passage_id = self.labels["passage_id"].cast(pa.large_string())
        passage = pc.index_in(passage_id, value_set=passage_ids.combine_chunks())
        # Without any query or passage, a file is missing or empty. Then every label would be reported.
        for rows, kind, name, known in (
            (query, Kind.UNKNOWN_QUERY, "query_id", self.queries),
            (passage, Kind.UNKNOWN_PASSAGE, "passage_id", passage_ids),
        ):
            if len(known):
                add_problems(problems, kind, self.labels.filter(rows.is_null()), name)
        self._passages = len(passage_ids)
        missing = self.labels["passage_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        in_corpus = passage.is_valid().to_numpy()
        self.query = _numbers(query.fill_null(0))
        self.passage = np.where(in_corpus, _numbers(passage.fill_null(0)), self._passages + missing)
        self._keep_labels(query.is_valid().to_numpy() & (in_corpus | self._measurable(in_corpus)))
        self._settle_splits(settings, problems)
        self.train_before_draw = int((self.split == TRAIN).sum())
        self.dev_before_draw = int((self.split == DEV).sum())
        most = {TRAIN: settings.max_train_queries, DEV: settings.max_dev_queries}
        self._keep_queries(self._drawn(most, settings.seed))
        self._find_identical(source, passage_ids, settings.ignore_identical_ids)
        self._find_twins(settings.twin_similarity)
        train = self.split == TRAIN
        self.trained = train & self._drawn({TRAIN: settings.max_trained_queries}, settings.seed)
        texts = self.queries["text"].to_pylist()
        self.recurring = recurring(texts, self.split, len(SPLITS), settings.recurrence_similarity)
        self.needs = settings.needs
        """As `Ingest.needs`: a climb needs labels or judged queries."""
        if not source.has_queries and not log:
            if settings.needs != "passages":
                self.remarks.append(
                    "no queries: `run --documents` makes them from titles; `run --dataset` and `rerank` need "
                    "queries.jsonl and qrels in the folder, or --generator"
                )
        elif not problems.count(Kind.MISSING_FILE):
            if self.needs == "climb":
                self.needs = "labels" if self._different(self.split == TRAIN) else "judged"
                if self.needs == "judged":
                    remark = "no labelled training query: `run` ends with the rung as-it-is, a preset refuses the data"
                    self.remarks.append(remark)
            for kind in self._lacks(len(passage_ids)):
                problems.add(kind, source.name)

    def _drawn(self, most: Mapping[int, int], seed: int) -> np.ndarray:
        """bool [queries]: as `splits.drawn`; queries that came with added labels are kept besides the draw."""
        drawing = np.where(added_rows(self.queries), NONE, self.split)
        return drawn(drawing, self.queries["text"], self.answered(), most, seed)

    def _lacks(self, passages: int) -> Iterator[Kind]:
        """Yields what a run needs and the queries lack; a step would find it only after hours of training."""
        if self.needs == "passages":
            return
        if self.needs == "labels" and (different := self._different(self.trained)) < FEWEST_TRAINING:
            if self._different(self.split == TRAIN) >= FEWEST_TRAINING:
                raise UserError(
                    f"ingest.max_trained_queries leaves {different} different training queries with a relevant "
                    f"passage: set it to at least {FEWEST_TRAINING}, or more if queries ask the same"
                )
            yield Kind.NO_TRAINING
        elif self.needs == "labels" and not self.has_negatives(np.arange(passages)):
            yield Kind.NO_NEGATIVE
        if not (self.answered(findable=True) & (self.split != TRAIN)).any():
            yield Kind.NO_EVALUATION

    def _different(self, chosen: np.ndarray) -> int:
        """Number of queries, of those in `chosen` (bool [queries]), that have a relevant passage; twins are one."""
        return len(np.unique(self.groups[self.query[self.positive() & chosen[self.query]]]))

    def has_negatives(self, passage_groups: np.ndarray) -> bool:
        """Whether a passage is irrelevant to a query that is trained on; copies by `Dataset.passage_groups` are one."""
        pair, alike = self.positive() & self.trained[self.query], np.flatnonzero(self.trained & (self.identical >= 0))
        query = np.concatenate([self.query[pair], alike])
        passage = passage_groups[np.concatenate([self.passage[pair], self.identical[alike]])]
        relevant = np.unique(np.unique(pair_keys(self.groups[query], passage)) >> 32, return_counts=True)[1]
        return bool((relevant < len(np.unique(passage_groups))).any())

    def positive(self) -> np.ndarray:
        """bool [labels]: labels of at least 1."""
        return _numbers(self.labels["relevance"]) >= 1

    def in_corpus(self) -> np.ndarray:
        """bool [labels]: labels of passages that the corpus has."""
        return self.passage < self._passages

    def answered(self, findable: bool = False) -> np.ndarray:
        """bool [queries]: queries with a label of at least 1; `findable`: of a passage in the corpus."""
        answered = np.zeros(len(self.queries), dtype=bool)
        answered[self.query[self.positive() & (self.in_corpus() if findable else True)]] = True
        return answered

    def write(self, writer: DatasetWriter) -> None:
        """Write both tables."""
        ids, texts, answers = self.queries.select(["id", "text", "answers"]).columns
        writer.queries(ids, texts, np.array(SPLITS)[self.split].tolist(), answers, self.groups)
        in_corpus = self.in_corpus()
        columns = self.labels.select(["query_id", "passage_id", "relevance"])
        query_ids, passage_ids, relevance = columns.filter(pa.array(in_corpus)).columns
        writer.qrels(query_ids, passage_ids, relevance, self.query[in_corpus], self.passage[in_corpus])
        if not in_corpus.all():
            _, passage_ids, relevance = columns.filter(pa.array(~in_corpus)).columns
            writer.table(MISSING, self.query[~in_corpus], passage_ids, relevance)
        if len(alike := np.flatnonzero(self.identical >= 0)):
            writer.table(IDENTICAL, alike, self.identical[alike])
        if len(recurring := np.flatnonzero(self.recurring[:, TRAIN])):
            writer.table(RECURRING, recurring)
        traffic = np.array([self._traffic.get(query_id, 0.0) for query_id in ids.to_pylist()] if self._traffic else [])
        if len(clicked := np.flatnonzero(traffic)):
            writer.table(TRAFFIC, clicked, traffic[clicked])
        values = self.queries["value"].to_pylist()
        if valued := [row for row, value in enumerate(values) if value]:
            writer.table(QUERY_VALUES, valued, [values[row] for row in valued])
        if self.trained.sum() < (self.split == TRAIN).sum():
            writer.table(TRAINED, np.flatnonzero(self.trained))
        added = self.labels.filter(pa.array(added_rows(self.labels))).select(["query_id", "passage_id"]).to_pylist()
        used = {(row["query_id"], row["passage_id"]) for row in added}
        if labels := [label for label in self._added if (label.query_id, label.passage_id) in used]:
            writer.added(labels)

    def _add_labels(self, passage_ids: pa.ChunkedArray) -> None:
        """Appends the labels of `ingest.labels` and their queries, without labels of passages that the corpus lacks."""
        if not self._added:
            return
        wanted = pa.array([label.passage_id for label in self._added], TEXT)
        existing = set(passage_ids.filter(pc.is_in(passage_ids, value_set=wanted)).to_pylist())
        rows = [(line, label) for line, label in enumerate(self._added, start=1) if label.passage_id in existing]
        if missing := len(self._added) - len(rows):
            self.remarks.append(f"{missing:,} added labels name a passage that the corpus does not have: left out")
        labels = [(label.query_id, label.passage_id, 1, SPLITS.index("train"), ADDED, line) for line, label in rows]
        first: dict[str, tuple[Any, ...]] = {
            label.query_id: (label.query_id, label.query, [], NONE, ADDED, line, "") for line, label in reversed(rows)
        }
        ids = pa.array(list(first), TEXT)
        known = set(self.queries["id"].filter(pc.is_in(self.queries["id"], value_set=ids)).to_pylist())
        queries = [row for query, row in reversed(first.items()) if query not in known]
        self.queries = with_rows(self.queries, queries, QUERIES)
        self.labels = with_rows(self.labels, labels, LABELS)

    def _measurable(self, in_corpus: np.ndarray) -> np.ndarray:
        """bool [labels]: labels of dev and test, and those of queries with a label of a passage that is `in_corpus`.

        Such labels of train stay as long as their queries may become dev or test queries.
        """
        known = np.zeros(len(self.queries) + 1, dtype=bool)
        known[self.query[in_corpus]] = True
        return np.asarray((_numbers(self.labels["split"]) != TRAIN) | known[self.query])

    def _settle_splits(self, settings: Ingest, problems: Problems) -> None:
        """Assigns a split to every query; leaves out queries and labels without a split."""
        of_label, added = _numbers(self.labels["split"]), added_rows(self.labels)
        self.split = highest(_numbers(self.queries["split"]), self.query[~added], of_label[~added])
        labelled = np.zeros(len(self.queries), dtype=bool)
        labelled[self.query[added]] = True
        self.split[labelled & (self.split == NONE)] = TRAIN
        stray = of_label != self.split[self.query]
        contradicting = self._contradicting(~(stray & added), problems)
        self._remark(stray & added, "added labels are of a dev or test query and were left out")
        strays = self.labels.filter(pa.array(stray & ~added))
        first = ~duplicates(strays["query_id"].combine_chunks())
        add_problems(problems, Kind.SHARED_QUERY, strays.filter(pa.array(first)), "query_id")
        self._keep_labels(~(stray | contradicting))
        repeated = duplicates(pa.array(pair_keys(self.query, self.passage)))
        self._remark(repeated, "labels repeat an earlier one of the same query and passage and were left out")
        self._keep_labels(~repeated)
        self._remark(self.split == NONE, "queries are in no qrels and were left out")
        self._keep_queries(self.split != NONE)
        fraction, similarity = settings.dev_fraction, settings.twin_similarity
        alone = added_rows(self.queries)  # a query that came with its labels trains, whatever the hash of its text
        splits = np.where(alone, NONE, self.split)
        self.split, remarks = complete(splits, self.queries["text"], self.answered(), fraction, similarity)
        self.split[alone] = TRAIN
        self.remarks += remarks
        copies = leaked(self.queries["text"], self.split)
        self._remark(copies, "queries have the words of one in a later split (train, dev, test) and were left out")
        self._keep_queries(~copies)
        self._keep_labels(self.in_corpus() | (self.split[self.query] != TRAIN))
        missed = ~self.in_corpus()
        self._remark(missed, "labels of dev or test name a passage that the corpus lacks: they count as missed")

    def _find_identical(self, source: Source, passage_ids: pa.ChunkedArray, left_out: bool) -> None:
        """Finds the passage with the id of each query (`Ingest.ignore_identical_ids`), and settles labels of both."""
        self.identical = np.full(len(self.queries), -1, np.int64)
        ids = self.queries["id"].combine_chunks().cast(pa.large_string())
        query_of_passage = pc.index_in(passage_ids, value_set=ids)
        passage = np.flatnonzero(query_of_passage.is_valid().to_numpy())
        query, first = np.unique(query_of_passage.drop_null().to_numpy(), return_index=True)
        if not len(query):
            return
        if not left_out:
            self.remarks.append(f"{len(query):,} queries have the id of a passage, which may be among their hits")
            return
        self.identical[query] = passage[first]
        joined = self.positive() & (self.identical[self.query] == self.passage)
        # BEIR goes by the id alone. Others number queries and passages alike, so the words must be equal, too.
        checked = np.unique(self.query[joined]) if source.format == "beir" else query
        if len(checked):
            differ = ~self._has_words(source, {ids[row].as_py(): row for row in checked.tolist()})
            self.identical[checked[differ[checked]]] = -1
        alike = self.identical >= 0
        self._remark(
            alike,
            "queries have the id of a passage, which is left out of their hits, as by BEIR's ignore_identical_ids: set "
            "ingest.ignore_identical_ids=false if the ids are equal by chance",
        )
        if joined.any():
            same = alike[self.query]
            if source.format == "beir":
                other = joined & ~same
                self._remark(other, "labels name the passage with the query's id and other words: it stays a hit")
            trained = joined & same & (self.split[self.query] == TRAIN)
            missed = joined & same & ~trained
            self._remark(missed, "labels of dev or test name the query itself: they count as missed")
            self.passage[missed] = self._passages
            self._remark(trained, "labels of train name the query itself and were left out")
            self._keep_labels(~trained)

    def _has_words(self, source: Source, wanted: dict[str, int]) -> np.ndarray:
        """bool [queries]: queries with the words of the passage that has their id; `wanted`: rows of queries by id."""
        same, texts = np.zeros(len(self.queries), dtype=bool), self.queries["text"]
        names = pa.array(list(wanted), TEXT)
        for rows in source.passages(Problems()):
            ids = pa.array(rows.ids, TEXT) if isinstance(rows.ids, list) else rows.ids
            for row in np.flatnonzero(pc.is_in(ids, value_set=names.cast(ids.type)).to_numpy(zero_copy_only=False)):
                if (query := wanted.pop(ids[row].as_py(), None)) is not None:
                    columns = (rows.titles[row], rows.texts[row])
                    title, text = (value.as_py() if isinstance(value, pa.Scalar) else value for value in columns)
                    words = {folded(text), folded(passage_text(title, text))}
                    same[query] = folded(texts[query].as_py()) in words
        return same

    def _contradicting(self, counts: np.ndarray, problems: Problems) -> np.ndarray:
        """bool [labels]: the labels of pairs of a query and a passage with several relevances, which are problems.

        An added label says that a passage is relevant, and not how much, so any relevance of at least 1 agrees with it.
        Labels that are not in `counts`, bool [labels], contradict nothing.
        """
        relevance, added = _numbers(self.labels["relevance"]), added_rows(self.labels)
        _, first, pair = np.unique(pair_keys(self.query, self.passage), return_index=True, return_inverse=True)
        earlier = first[pair]
        differs = counts & np.where(added, relevance[earlier] < 1, relevance != relevance[earlier])

        def describe(row: int) -> tuple[str, int, str]:
            this, other = self.labels.take(pa.array([row, earlier[row]])).to_pylist()
            location = (
                f"line {other['line']}" if other["file"] == this["file"] else f"{other['file']} line {other['line']}"
            )
            ids = f"{this['query_id']!r}, {this['passage_id']!r}"
            return this["file"], this["line"], f"{this['relevance']}, but {other['relevance']} in {location}: {ids}"

        problems.add_rows(Kind.CONTRADICTION, np.flatnonzero(differs), describe)
        return counts & np.isin(pair, pair[differs])

    def _find_twins(self, similarity: float) -> None:
        rows = np.flatnonzero(self.split == TRAIN)
        self.groups = np.arange(len(self.queries))
        self.groups[rows] = rows[twin_groups(self.queries["text"].take(pa.array(rows)).to_pylist(), similarity)]
        twins = np.bincount(self.groups, minlength=1)[self.groups] > 1
        self._remark(twins, "training queries ask the same as another: they share their positives")

    def _keep_labels(self, keep: np.ndarray) -> None:
        if not keep.all():
            self.labels = self.labels.filter(pa.array(keep))
            self.query, self.passage = self.query[keep], self.passage[keep]

    def _keep_queries(self, keep: np.ndarray) -> None:
        """Keeps some queries; leaves out the other queries and their labels."""
        self._keep_labels(keep[self.query])
        self.queries, self.split = self.queries.filter(pa.array(keep)), self.split[keep]
        self.query = (np.cumsum(keep) - 1)[self.query]

    def _remark(self, rows: np.ndarray, remark: str) -> None:
        if rows.any():
            self.remarks.append(f"{int(rows.sum()):,} {remark}")


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """An Arrow column as NumPy: splits stay int8, rows become int64."""
    array: np.ndarray = column.to_numpy()
    return array if array.dtype == np.int8 else array.astype(np.int64)
