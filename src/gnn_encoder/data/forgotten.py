"""Texts that nothing may be made from any more (`gnn-encoder forget`), and a source without them.

The file of `ingest.forgotten` has digests, salted with a random key of the file, and no text: a digest says neither the
text nor, beside another file, that both are of one text. Whoever has the file can still test a guess.

Texts are equal as `folded`. A passage is its title and text, so a passage with another title is another one.
"""

import json
import secrets
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.passages import passage_text
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.rows import CandidateRows, Label, PassageRows, Query, SectionRows, Source
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

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
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps({"salt": self.salt, **sets}, indent=1), encoding="utf-8")
        partial.replace(path)

    def digest(self, text: str) -> str:
        """The salted digest of a query, or of a passage as `passage_text`."""
        return blake2b(
            folded(text).encode("utf-8", "surrogatepass"), digest_size=16, key=bytes.fromhex(self.salt)
        ).hexdigest()

    def has_query(self, text: str) -> bool:
        """Whether a query is forgotten."""
        return self.digest(text) in self.queries

    def has_passage(self, title: str, text: str) -> bool:
        """Whether a passage is forgotten."""
        return self.digest(passage_text(title, text)) in self.passages

    def without(self, rows: Iterable[Query | Label], passages: Container[str] = ()) -> list[Query | Label]:
        """Returns rows without forgotten queries, and without the labels of these and of `passages`, which are ids."""
        rows = list(rows)
        queries = {row.id for row in rows if isinstance(row, Query) and self.has_query(row.text)}
        return [
            row
            for row in rows
            if (row.id if isinstance(row, Query) else row.query_id) not in queries
            and (isinstance(row, Query) or row.passage_id not in passages)
        ]


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
        """The ids of the forgotten passages in the source."""
        gone = set()
        for rows in self._source.passages(Problems()):
            columns = (map(str, column) for column in (rows.ids, rows.titles, rows.texts))
            gone |= {name for name, *text in zip(*columns, strict=True) if self._forgotten.has_passage(*text)}
        return gone

    @cached_property
    def _gone_queries(self) -> set[str]:
        """The ids of the forgotten queries in the source."""
        rows = self._source.questions(Problems())
        return {row.id for row in rows if isinstance(row, Query) and self._forgotten.has_query(row.text)}

    def _stays(self, ids: Iterable[Any], gone: set[str]) -> pa.Array:
        return pa.array([str(name) not in gone for name in ids], pa.bool_())

    def _placed(self, places: pa.Table) -> pa.Table:
        """Places without the parents and citations that are forgotten."""
        parents = [None if parent in self._gone else parent for parent in places["parent"].to_pylist()]
        works = [
            cited and [work for work in cited if work not in self._gone] for cited in places["citations"].to_pylist()
        ]
        for name, column in (("parent", parents), ("citations", works)):
            at = places.column_names.index(name)
            places = places.set_column(at, name, pa.array(column, places.schema.field(at).type))
        return places

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus without forgotten passages."""
        for rows in self._source.passages(problems):
            stays = self._stays(rows.ids, self._gone)
            mask = stays.to_pylist()
            ids, titles, texts = (
                list(compress(column, mask)) if isinstance(column, list) else column.filter(stays)
                for column in (rows.ids, rows.titles, rows.texts)
            )
            places = None if rows.places is None else self._placed(rows.places.filter(stays))
            lines, fields = (
                list(compress(rows.lines, mask)),
                {name: of.filter(stays) for name, of in rows.fields.items()},
            )
            yield PassageRows(ids, titles, texts, rows.file, lines, rows.work, places, fields)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries and labels without forgotten ones; a fact says what the data still have."""
        yield from self._forgotten.without(self._source.questions(problems), self._gone)
        self.remarks, self.facts = self._source.remarks, self._source.facts
        if self._gone or self._gone_queries:
            count = f"{len(self._gone):,} passages and {len(self._gone_queries):,} queries"
            self.facts = {
                **self.facts,
                "forgotten": f"{self.name} still has {count} that are left out: delete them there",
            }

    def candidates(self, problems: Problems) -> Iterator[CandidateRows]:
        """The pool without forgotten passages and queries."""
        for rows in self._source.candidates(problems):
            kept = self._stays(rows.query_ids, self._gone_queries), self._stays(rows.passage_ids, self._gone)
            stays = pc.and_(*kept)
            lines = list(compress(rows.lines, stays.to_pylist()))
            yield CandidateRows(rows.query_ids.filter(stays), rows.passage_ids.filter(stays), rows.file, lines)

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """As of the source, without forgotten parents and citations."""
        for rows in self._source.sections(problems):
            yield replace(rows, places=self._placed(rows.places))

    def anchors(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """As of the source, without those of forgotten passages."""
        for names, ids in self._source.anchors():
            stays = self._stays(ids, self._gone)
            yield names.filter(stays), ids.filter(stays)
