"""The pairs and vectors that labels change in a bundle of labelled queries: query sum, query memory, query clusters.

A label changes the vectors of its passage alone, or none: the softmax form of query memory, and a weight of 0. So the
work does not grow with the corpus, except for looking up ids and texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.artifacts.added_labels import AddedLabel, ChangedPairs, Changes
from gnn_encoder.artifacts.finished_run import run_folder
from gnn_encoder.artifacts.labelled_queries import BundleLabels
from gnn_encoder.errors import UserError
from gnn_encoder.labels.nodes import encoded
from gnn_encoder.labels.requests import Known
from gnn_encoder.retrieval.labelled_vectors import windows_with_labels


@dataclass(frozen=True)
class LabelledRun:
    """A bundle of labelled queries, and the dataset that it was made from."""

    bundle: Bundle
    labelled: BundleLabels
    dataset: Dataset

    @classmethod
    def of(cls, bundle: Bundle, labelled: BundleLabels) -> "LabelledRun":
        """Opens the dataset beside the bundle; a UserError if it is missing, or another run's."""
        path = run_folder(bundle.path) / "dataset"
        if not path.exists():
            raise UserError(
                f"{bundle.path}: no dataset beside it, and without it no label can be checked; give --bundle "
                "ROOT/latest/bundle of a finished run"
            )
        dataset = Dataset(path)
        if dataset.manifest.digest != bundle.manifest.inputs.get("dataset"):
            raise UserError(f"{path} is not what {bundle.path} was made from; give --bundle ROOT/latest/bundle")
        return cls(bundle, labelled, dataset)

    @cached_property
    def known(self) -> Known:
        """The run's queries, passages and labels."""
        return Known(self.dataset, self.bundle)


def with_pairs(run: LabelledRun, labels: Sequence[AddedLabel]) -> tuple[Changes | None, np.ndarray]:
    """Returns what exactly `labels` change in the bundle that the run wrote, and the passages with new vectors.

    These passages, int64 ascending, are those that a label was added to or removed from since the bundle's last change.
    """
    pairs, use = changed_pairs(run, labels), run.labelled.use
    passages, changes = pairs.passages, None
    if len(passages) and use.changes_vectors:
        plain, position = run.labelled.plain(passages, run.bundle.stored_vectors, run.bundle.stored_vector_passages)
        owner = np.repeat(np.arange(len(passages)), np.diff(pairs.indptr))
        several = position if run.labelled.in_windows else None
        vectors, of = windows_with_labels(use, plain, several, owner, _vectors(run, pairs))
        changes = Changes(passages[of], vectors, pairs=pairs)
    elif len(passages):
        changes = Changes(passages[:0], pairs.vectors[:0], pairs=pairs)
    former = {(label.query_id, label.passage_id) for label in run.known.labels}
    moved = former ^ {(label.query_id, label.passage_id) for label in labels}
    rows = run.known.passage_rows([passage for _, passage in moved]) if use.changes_vectors else {}
    return changes, np.array(sorted(rows.values()), np.int64)


def changed_pairs(run: LabelledRun, labels: Sequence[AddedLabel]) -> ChangedPairs:
    """Returns the passages that gain or lose a labelled query if exactly `labels` are in the data, and their queries.

    A label that the dataset has read before (`Dataset.added`) is taken out if it is not among `labels`.
    """
    before, now = (
        {(label.query_id, label.passage_id): label for label in of_source} for of_source in (run.dataset.added, labels)
    )
    removed = [label for key, label in before.items() if key not in now]
    new = [label for key, label in now.items() if key not in before]
    rows = run.known.passage_rows([label.passage_id for label in (*removed, *new)])
    removed, new = ([label for label in of_source if label.passage_id in rows] for of_source in (removed, new))
    stored, numbers = run.labelled.of_run, run.labelled.rows_of([label.query_id for label in (*removed, *new)])
    texts = {label.query_id: label.query for label in new if label.query_id not in numbers}
    numbers |= {query: len(stored) + position for position, query in enumerate(texts)}

    def queries_of(passage: int) -> set[int]:
        return set(stored.by_passage.into(np.array([passage]))[1].tolist())

    queries = {passage: queries_of(passage) for passage in sorted(rows.values())}
    for label in removed:
        queries[rows[label.passage_id]].discard(numbers.get(label.query_id, -1))
    for label in new:
        queries[rows[label.passage_id]].add(numbers[label.query_id])
    changed = {
        passage: sorted(query_numbers)
        for passage, query_numbers in queries.items()
        if query_numbers != queries_of(passage)
    }
    indptr = np.cumsum([0, *map(len, changed.values())], dtype=np.int64)
    query = np.array([number for query_numbers in changed.values() for number in query_numbers], np.int32)
    passages = np.array(list(changed), np.int64)
    return ChangedPairs(list(texts), list(texts.values()), _new_vectors(run, texts), passages, indptr, query)


def _new_vectors(run: LabelledRun, texts: dict[str, str]) -> np.ndarray:
    """Returns the vectors fp32 [a, d] of queries {id: text}; encodes the queries without a vector in the bundle."""
    former = run.bundle.changes.pairs if run.bundle.changes else None
    known = dict(zip(former.ids, former.vectors, strict=True)) if former else {}
    if missing := [query for query in texts if query not in known]:
        known |= dict(zip(missing, encoded(run.bundle, [texts[query] for query in missing]), strict=True))
    vectors = np.empty((len(texts), run.bundle.stored_vectors.shape[1]), np.float32)
    for row, query in enumerate(texts):
        vectors[row] = known[query]
    return vectors


def _vectors(run: LabelledRun, pairs: ChangedPairs) -> np.ndarray:
    """Returns the vector fp32 [e, d] of the query of each pair."""
    stored = run.labelled.of_run.stored
    vectors, is_new = np.empty((len(pairs.query), stored.shape[1]), np.float32), pairs.query >= len(stored)
    vectors[~is_new] = stored[pairs.query[~is_new]]
    vectors[is_new] = pairs.vectors[pairs.query[is_new] - len(stored)]
    return vectors
