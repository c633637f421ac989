"""The folder of `judge`: the first hits of systems for queries, the texts, and what a model and people say of them.

pool.jsonl        one line a query: its text, each system's hits, best first, and these passages' texts
order.jsonl       the queries in the order in which people judge them (`judging.order`)
people.jsonl      grades by people, one line each, in the order in which they were given (`judging.people`)
judgements.jsonl  grades by a model with reason and origin; qrels.gz: these as TREC qrels
labels.jsonl      what people call relevant, in the form that `ingest.labels` and `labels add --file` read
figures.json      settings, agreement and comparison
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.errors import UserError

POOL, ORDER, PEOPLE, LABELS = "pool.jsonl", "order.jsonl", "people.jsonl", "labels.jsonl"
JUDGEMENTS, QRELS, FIGURES, ANSWERS = "judgements.jsonl", "qrels.gz", "figures.json", "answers"

T = TypeVar("T")


@dataclass(frozen=True)
class PooledPassage:
    """A passage that a system has among its first hits."""

    passage_id: str
    title: str
    text: str


@dataclass(frozen=True)
class PooledQuery:
    """A query, {system: ids of its hits, best first}, and the passages of these hits, each once."""

    query_id: str
    query: str
    hits: dict[str, list[str]]
    passages: list[PooledPassage]


class Pool:
    """The pooled hits in a file; the passages' texts stay there until one query's are wanted."""

    def __init__(self, path: Path) -> None:
        """Reads the file; raises UserError if it is no pool."""
        self._path, self._start = path, dict[str, int]()
        self.queries: dict[str, str] = {}
        self.passages: dict[str, list[str]] = {}
        hits: list[dict[str, list[str]]] = []
        for start, record in read_records(path):
            query = _query(path, record)
            self._start[query.query_id], self.queries[query.query_id] = start, query.query
            self.passages[query.query_id] = [passage.passage_id for passage in query.passages]
            hits.append(query.hits)
        systems = list(hits[0]) if hits else []
        if not systems or any(list(of_query) != systems for of_query in hits):
            raise UserError(f"{path} is no pool: run `gnn-encoder judge` again")
        self.hits = {system: [of_query[system] for of_query in hits] for system in systems}
        """System → for each query, in order, the ids of its hits, best first."""

    def __getitem__(self, query_id: str) -> PooledQuery:
        """Returns a query with the texts of its passages."""
        with self._path.open("rb") as file:
            file.seek(self._start[query_id])
            return _query(self._path, json.loads(file.readline()))


def _query(path: Path, record: Any) -> PooledQuery:
    try:
        return PooledQuery(**record | {"passages": [PooledPassage(**passage) for passage in record["passages"]]})
    except (TypeError, KeyError):
        raise UserError(f"{path} is no pool: run `gnn-encoder judge` again") from None


def pooled(
    queries: Mapping[str, str], hits: Mapping[str, Sequence[Sequence[str]]], texts: Mapping[str, PooledPassage]
) -> Iterator[PooledQuery]:
    """Yields the records of pool.jsonl; `hits` as in `Pool`, `texts`: passage id → passage."""
    for number, (query_id, query) in enumerate(queries.items()):
        of_query = {system: list(of_system[number]) for system, of_system in hits.items()}
        passages = [texts[passage] for passage in dict.fromkeys(p for of in of_query.values() for p in of)]
        yield PooledQuery(query_id, query, of_query, passages)


def read_records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (the byte at which it begins, JSON object) of the lines of a file.

    A last line without its end is left out: a killed process may have begun it.

    Raises:
        UserError: the file cannot be read, or a line is no JSON object.
    """
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise UserError(f"{path} line {number} is no JSON object: restore the file")
                    yield start, record
                start += len(line)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name the folder of `gnn-encoder judge`") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} line {number} is no JSON: restore the file") from None


def read_as(path: Path, kind: Callable[..., T]) -> list[T]:
    """Returns the lines of a file as records of a dataclass; raises UserError for another file."""
    try:
        return [kind(**record) for _, record in read_records(path)]
    except TypeError:
        raise UserError(f"{path} holds a line with other fields: restore the file") from None


def as_json(record: Any) -> str:
    """Returns a dataclass's record as a line of JSON."""
    return json.dumps(asdict(record), ensure_ascii=False) + "\n"


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Writes dataclasses' records as JSON lines, so that a crash leaves the old file or the new."""
    replace_content(path, "".join(map(as_json, records)).encode())
