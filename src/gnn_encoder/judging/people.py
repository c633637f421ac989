"""Grades of pooled passages by people, and what they say so far: agreement, and the systems' corrected gains."""

import fcntl
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.prediction_powered import Corrected, corrected_sample
from gnn_encoder.judging.agreement import Labels, figures_of, gain_of
from gnn_encoder.judging.order import Place, chances, gains_of
from gnn_encoder.judging.pool import Pool, as_json, read_as


@dataclass(frozen=True)
class Act:
    """What a person did: a grade from 0 to 3 of a passage, or None: it is taken back.

    Without a passage the whole query is skipped, or, with `grade` 0, no longer. `added`: the time in UTC.
    """

    query_id: str
    passage_id: str | None
    grade: int | None
    added: str


class People:
    """The grades in force: those of a file of acts, each after the other."""

    def __init__(self, acts: Iterable[Act] = ()) -> None:
        self.grades: dict[tuple[str, str], int] = {}
        self.skipped: set[str] = set()
        for act in acts:
            self.take(act)

    def take(self, act: Act) -> None:
        """Takes one more act."""
        if act.passage_id is None:
            (self.skipped.add if act.grade is None else self.skipped.discard)(act.query_id)
        elif act.grade is None:
            self.grades.pop((act.query_id, act.passage_id), None)
        else:
            self.grades[act.query_id, act.passage_id] = act.grade

    @property
    def began(self) -> bool:
        """Whether a grade or a skipped query is in force."""
        return bool(self.grades or self.skipped)

    @classmethod
    def read(cls, path: Path) -> "People":
        """Reads a file of acts, if there is one; raises UserError for another file."""
        acts = read_as(path, Act) if path.exists() else []
        if any(act.grade not in (None, 0, 1, 2, 3) or not isinstance(act.query_id, str) for act in acts):
            raise UserError(f"{path} holds a line that is no grade: restore the file")
        return cls(acts)


class PeoplesFile:
    """A file of acts that one process extends, line by line."""

    def __init__(self, path: Path) -> None:
        """Opens the file; raises UserError if it is another one, cannot be written, or another process extends it."""
        try:
            self._file = path.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another server takes grades for {path.parent}: stop it, or take another folder") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}): take a folder that can") from None
        self.people = People.read(path)
        # A killed process may have begun a line, whose grade nobody was told to be kept.
        content = path.read_bytes()
        self._file.truncate(content.rfind(b"\n") + 1)

    def add(self, query_id: str, passage_id: str | None, grade: int | None) -> None:
        """Writes an act to the disk, and takes it; raises UserError if it cannot be written."""
        act = Act(query_id, passage_id, grade, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        end, line = self._file.seek(0, os.SEEK_END), as_json(act).encode()
        try:
            if self._file.write(line) < len(line):
                raise OSError(ENOSPC, os.strerror(ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise UserError(f"the grade cannot be kept: {error.strerror}") from None
        self.people.take(act)

    def close(self) -> None:
        """Lets another process extend the file."""
        self._file.close()


def labels_of(people: People, pool: Pool, relevant: int, of_data: bool) -> Iterable[AddedLabel]:
    """Yields the pairs that people call relevant, as added labels.

    of_data: the queries come from a data set and keep their ids. Other queries get new ids, because theirs may be the
        ids of different queries in the data.
    """
    for (query_id, passage_id), grade in people.grades.items():
        if grade >= relevant:
            query = pool.queries[query_id]
            yield AddedLabel(query_id if of_data else new_query_id(query), query, passage_id)


@dataclass(frozen=True)
class Decided:
    """What people's grades say of the systems.

    judged, deciding   number of queries that are judged in full, and of those whose labels make a difference
    gains              {measure: {system: its gain over the first system; a lone system's mean}}
    """

    judged: int
    deciding: int
    gains: dict[str, dict[str, Corrected]]


class Comparison:
    """The systems' gains by the grades of a model and of people, for queries that people judge in an order.

    Skipped queries are taken to be like the others: they leave the order.
    """

    def __init__(
        self, pool: Pool, order: Sequence[Place], grades: Labels, relevant: int, measures: Sequence[str]
    ) -> None:
        self._pool, self._order, self._relevant, self._measures = pool, order, relevant, measures
        self._number = {query_id: number for number, query_id in enumerate(pool.queries)}
        self._judged = gains_of(self._figures(list(pool.queries), grades))

    def _figures(self, queries: Sequence[str], grades: Labels) -> dict[str, np.ndarray]:
        hits = {s: [of_system[self._number[query]] for query in queries] for s, of_system in self._pool.hits.items()}
        labels = {pair: gain_of(grade, self._relevant) for pair, grade in grades.items()}
        return figures_of(hits, queries, labels, self._measures)

    def remaining(self, people: People) -> tuple[list[Place], int]:
        """Returns the order without what is skipped, and how many of its first queries are judged in full."""
        order = [place for place in self._order if place.query_id not in people.skipped]
        for number, place in enumerate(order):
            if any((place.query_id, p) not in people.grades for p in self._pool.passages[place.query_id]):
                return order, number
        return order, len(order)

    def decided(self, people: People) -> Decided:
        """Returns the gains by what people have judged so far."""
        order, count = self.remaining(people)
        drawn = [place.query_id for place in order[:count]]
        rows = [self._number[query] for query in drawn]
        kept = np.array([query not in people.skipped for query in self._pool.queries], bool)
        pairs = {(query, passage) for query in drawn for passage in self._pool.passages[query]}
        grades = {pair: grade for pair, grade in people.grades.items() if pair in pairs}
        human, chance = gains_of(self._figures(drawn, grades)), chances(order, count)
        gains = {
            measure: {
                system: corrected_sample(
                    human[system][:, column], judged[rows, column], chance, judged[kept, column], len(order)
                )
                for system, judged in self._judged.items()
            }
            for column, measure in enumerate(self._measures)
        }
        return Decided(count, len(order), gains)
