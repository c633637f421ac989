"""The rows that readers yield, each with a line number, and checks of text columns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gnn_encoder.data.lines import files_digest
from gnn_encoder.data.validation import Kind, Problems

PLACES = pa.schema(
    {
        "document": pa.string(),
        "order": pa.int64(),
        "parent": pa.string(),
        "section": pa.list_(pa.string()),
        "section_titles": pa.list_(pa.string()),
        "citations": pa.list_(pa.string()),
    }
)
"""Where nodes stand in their documents; null or empty where the data do not say it.

document   id of the document; without one, the node is in the document that has the node's id
order      place in the reading order of the document
parent     id of the node that the node is a part of
section    without a parent: the path of the node's section in its document
section_titles   titles of the parts of that path, from the first
citations  ids of cited nodes; null: a work that is not in the data
"""


@dataclass
class PassageRows:
    """Some passages; `lines[i]` is the line of row i in `file`."""

    ids: list[str] | pa.Array
    titles: list[str] | pa.Array
    texts: list[str] | pa.Array
    file: str
    lines: Sequence[int]
    work: int
    """The share of these rows in the source's `work`, in its unit."""
    places: pa.Table | None = None
    """Columns of `PLACES`; None: the rows have no structure."""
    fields: Mapping[str, pa.Array] = field(default_factory=dict)
    """Further fields of the rows, as `FieldColumns` takes them."""


@dataclass
class SectionRows:
    """Some nodes without text: columns of ids and titles [n], `PLACES`; `lines[i]` is the line of row i in `file`."""

    ids: pa.Array
    titles: pa.Array
    places: pa.Table
    file: str
    lines: Sequence[int] | np.ndarray


class Query(NamedTuple):
    """A query. `split` is None if the qrels decide the split."""

    id: str
    text: str
    answers: list[str]
    split: str | None
    file: str
    line: int
    value: str = ""
    """Of `ingest.query_field`."""


class Label(NamedTuple):
    """A relevance label of a split."""

    query_id: str
    passage_id: str
    relevance: int
    split: str
    file: str
    line: int


@dataclass
class CandidateRows:
    """Some candidates of a pool: text ids of query and passage [n]; `lines[i]` is the line of row i in `file`."""

    query_ids: pa.Array
    passage_ids: pa.Array
    file: str
    lines: Sequence[int]


class Source(ABC):
    """A data set in its own format. Readers count bad rows in `problems` and do not yield them."""

    format: str
    unit: str
    """The unit of `work`."""
    citations_may_fail = False
    """Whether a citation of an unknown id is counted in a remark; if not, it is a problem."""
    ids_name_documents = False
    """Whether a node's id names its document."""
    has_queries = True
    """Whether the data have queries and labels. Nothing can be trained on data that have none."""
    untyped_fields = False
    """Whether further fields of the passages come as texts, whatever they hold."""
    query_field = ""
    """`ingest.query_field`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.remarks: list[str] = []
        self.facts: dict[str, str] = {}

    @property
    @abstractmethod
    def work(self) -> int:
        """Size of the corpus, for the progress bar."""

    @abstractmethod
    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """Yields the corpus in order; may be called again for a second reading."""

    @abstractmethod
    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries and labels, in any order."""

    def candidates(self, problems: Problems) -> Iterator[CandidateRows]:
        """The pool that is given with the data; by default none."""
        yield from ()

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """Nodes that have no passage; called after `passages`, for data with documents. Ids of passages are ignored."""
        yield from ()

    def anchors(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Further ids (strings [n]) that citations may name, and the ids of their nodes; called after `passages`."""
        yield from ()

    @abstractmethod
    def digest(self) -> str:
        """Hex digest of everything that determines the rows, fast enough to compute before each run."""


class FolderSource(Source):
    """A data set in the files of a folder."""

    unit = "bytes"

    def __init__(self, folder: Path, corpora: Iterable[Path | None], others: Iterable[Path | None]) -> None:
        super().__init__(str(folder))
        self.folder = folder
        self.corpora = [path for path in corpora if path]
        self._others = [path for path in others if path]

    @property
    def work(self) -> int:
        """Bytes of the corpus files."""
        return sum(path.stat().st_size for path in self.corpora)

    def digest(self) -> str:
        """Hex digest of the contents of the files that are read."""
        return files_digest([*self.corpora, *self._others])


def duplicates(values: pa.Array) -> np.ndarray:
    """bool [n]: rows with the value of an earlier row."""
    if not len(values):
        return np.zeros(0, dtype=bool)
    # Codes are assigned in order of first appearance, so a new value has a higher code than all earlier rows.
    codes = values.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    before = np.maximum.accumulate(np.concatenate([[-1], codes[:-1]]))
    return np.asarray(codes <= before)


def storable(texts: Iterable[str], file: str, line: int, problems: Problems) -> bool:
    """Whether UTF-8 can hold a row's texts: JSON escapes can hold half a surrogate pair, but UTF-8 cannot."""
    try:
        "".join(texts).encode()
        return True
    except UnicodeEncodeError as error:
        problems.add(Kind.ENCODING, file, line, f"half a surrogate pair, U+{ord(error.object[error.start]):X}")
        return False
