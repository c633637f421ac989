"""What readers yield: batches of columns that know the lines they came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from gnn_encoder.data.validation import Problems


@dataclass
class PassageRows:
    """Some passages; `lines[i]` is where row i stands in `file`."""

    ids: list[str] | pa.Array
    titles: list[str] | pa.Array
    texts: list[str] | pa.Array
    file: str
    lines: Sequence[int]
    work: int
    """How much of the source's `work` was done for these rows."""


@dataclass
class QueryRows:
    """Some queries. `split` is None where the qrels decide it."""

    ids: list[str]
    texts: list[str]
    answers: list[list[str]]
    split: str | None
    file: str
    lines: Sequence[int]


@dataclass
class LabelRows:
    """Some relevance labels of one split."""

    query_ids: list[str]
    passage_ids: list[str]
    relevance: list[int]
    split: str
    file: str
    lines: Sequence[int]


class Source(Protocol):
    """A data set in its own format. Bad rows are counted in `problems` and not yielded."""

    name: str
    format: str
    unit: str
    remarks: list[str]
    facts: dict[str, str]

    @property
    def work(self) -> int:
        """Size of the corpus in `unit`, for the progress bar."""
        ...

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The corpus in order; may be called again for a second reading."""
        ...

    def questions(self, problems: Problems) -> Iterator[QueryRows | LabelRows]:
        """Queries and labels, in any order."""
        ...

    def digest(self) -> str:
        """Hex digest of all that decides what is read, fast enough to take before each run."""
        ...
