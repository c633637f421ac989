"""Texts that nothing may be made from any more (`gnn-encoder forget`), and a source without them.

The file of `ingest.forgotten` has digests, salted with a random key of the file, and no text: a digest says neither the
text nor, beside another file, that both are of one text. Whoever has the file can still test a guess.

Texts are equal as `folded`. A passage is its title and text, so a passage with another title is another one.
"""

import json
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from gnn_encoder.artifacts.passages import passage_text
from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.rows import CandidateRows, Label, PassageRows, Query, SectionRows, Source
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

Rows = TypeVar("Rows", PassageRows, CandidateRows)
SETS = ("queries", "passages", "names", "datasets")


@dataclass(frozen=True)
class Forgotten:
    """Salted digests of texts of queries and passages, and of the `names` by which they were named.

    `datasets` are digests of the dataset artifacts that had them.
    """

    salt: str = field(default_factory=lambda: secrets.token_hex(16))
    queries: set[str] = field(default_factory=set)
    passages: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: str | Path) -> "Forgotten":
        """Reads what `write` wrote; raises UserError for another file."""
        try:
            facts = json.loads(Path(path).read_text("utf-8"))
            return cls(facts["salt"], *(set(facts[name]) for name in SETS))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path} has no digests of forgotten texts ({error}): restore the file") from None

    def write(self, path: Path) -> None:
        """Writes the file; a crash leaves the old one or the new one."""
        path.parent.mkdir(exist_ok=True)
        sets = {name: sorted(getattr(self, name)) for name in SETS}
        replace_content(path, json.dumps({"salt": self.salt, **sets}, indent=1).encode())

    def digest(self, text: str) -> str:
        """The salted digest of a query, or of a passage as `passage_text`."""
        content = folded(text).encode("utf-8", "surrogatepass")
        return blake2b(content, digest_size=16, key=bytes.fromhex(self.salt)).hexdigest()

    def has_query(self, text: str) -> bool:
        """Whether a query is forgotten."""
        return self.digest(text) in self.queries

    def has_passage(self, title: str, text: str) -> bool:
        """Whether a passage is forgotten."""
        return self.digest(passage_text(title, text)) in self.passages

    def without(self, rows: Iterable[Query | Label], passages: Container[str] = ()) -> list[Query | Label]:
        """Returns rows without forgotten queries, and without the labels of these and of `passages`, which are ids."""
        rows = list(rows)
        gone = self.queries_in(rows)
        return [row for row in rows if row[0] not in gone and not (isinstance(row, Label) and row[1] in passages)]

    def queries_in(self, rows: Iterable[Query | Label]) -> set[str]:
        """Returns the ids of the forgotten queries."""
        return {row.id for row in rows if isinstance(row, Query) and self.has_query(row.text)}


class Remaining(Source):
    """A source without forgotten passages and queries, and without what names them; it is read once more for that."""

    def __init__(self, source: Source, forgotten: Forgotten) -> None:
        super().__init__(source.name)
        self._source, self._forgotten = source, forgotten
        self.format, self.unit, self.has_queries = source.format, source.unit, source.has_queries
        self.citations_may_fail, self.ids_name_documents = source.citations_may_fail, source.ids_name_documents
        self.untyped_fields = source.untyped_fields

    @property
    def work(self) -> int:
        """As of the source."""
        return self._source.work

    def digest(self) -> str:
        """As of the source: the file of what is forgotten has a digest of its own among those of a call."""
        return self._source.digest()

    @cached_property
    def _gone(self) -> set[str]:
        gone = set()
        for rows in self._source.passages(Problems()):
            columns = (map(str, column) for column in (rows.ids, rows.titles, rows.texts))
            gone |= {name for name, *text in zip(*columns, strict=True) if self._forgotten.has_passage(*text)}
        return gone

    @cached_property
    def _gone_queries(self) -> set[str]:
        return self._forgotten.queries_in(self._source.questions(Problems()))

    def _placed(self, places: pa.Table) -> pa.Table:
        """Places without the parents and citations that are forgotten."""
        parents = [None if parent in self._gone else parent for parent in places["parent"].to_pylist()]
        cited = [
            works and [work for work in works if work not in self._gone] for works in places["citations"].to_pylist()
        ]
        for name, column in (("parent", parents), ("citations", cited)):
            at = places.column_names.index(name)
            places = places.set_column(at, name, pa.array(column, places.schema.field(at).type))
        return places

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus without forgotten passages."""
        for rows in self._source.passages(problems):
            kept = _filtered(rows, [str(name) not in self._gone for name in rows.ids])
            yield replace(kept, places=None if kept.places is None else self._placed(kept.places))

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries and labels without forgotten ones; a fact says what the data still have."""
        yield from self._forgotten.without(self._source.questions(problems), self._gone)
        self.remarks, self.facts = self._source.remarks, self._source.facts
        if self._gone or self._gone_queries:
            count = f"{len(self._gone):,} passages and {len(self._gone_queries):,} queries"
            left = f"{self.name} still has {count} that are left out: delete them there"
            self.facts = {**self.facts, "forgotten": left}

    def candidates(self, problems: Problems) -> Iterator[CandidateRows]:
        """The pool without forgotten passages and queries."""
        for rows in self._source.candidates(problems):
            pairs = zip(rows.query_ids.to_pylist(), rows.passage_ids.to_pylist(), strict=True)
            yield _filtered(rows, [q not in self._gone_queries and p not in self._gone for q, p in pairs])

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """As of the source, without forgotten parents and citations."""
        for rows in self._source.sections(problems):
            yield replace(rows, places=self._placed(rows.places))

    def anchors(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """As of the source, without those of forgotten passages."""
        for names, ids in self._source.anchors():
            stays = pa.array([name not in self._gone for name in ids.to_pylist()], pa.bool_())
            yield names.filter(stays), ids.filter(stays)


def _filtered(rows: Rows, stays: Sequence[bool]) -> Rows:
    """Returns the rows that stay, with all their columns."""

    def column(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: column(part) for name, part in value.items()}
        if isinstance(value, pa.Array | pa.Table):
            return value.filter(pa.array(stays, pa.bool_()))
        return value if value is None or isinstance(value, str | int) else list(compress(value, stays))

    return replace(rows, **{name: column(value) for name, value in vars(rows).items()})
