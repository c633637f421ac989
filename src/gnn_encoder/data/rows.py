"""What readers yield: batches of columns that know the lines they came from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.validation import Kind, Problems


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


def duplicates(values: pa.ChunkedArray) -> np.ndarray:
    """bool [n]: rows whose value an earlier row has."""
    if not len(values):
        return np.zeros(0, dtype=bool)
    # Codes are given in order of first appearance: a new value has a code above all before it.
    codes = values.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    before = np.maximum.accumulate(np.concatenate([[-1], codes[:-1]]))
    return np.asarray(codes <= before)


def blank(texts: pa.ChunkedArray) -> np.ndarray:
    """bool [n]: texts without a visible character, such as spaces or zero-width spaces alone."""
    visible: np.ndarray = pc.match_substring_regex(texts, r"[^\pZ\p{Cc}\p{Cf}]").to_numpy()
    return ~visible


def encodable(
    columns: Sequence[Sequence[str]], file: str, lines: Sequence[int], problems: Problems
) -> list[int] | None:
    """Rows without half a surrogate pair, which JSON escapes can hold and UTF-8 cannot; None: all rows."""
    try:
        for column in columns:
            "".join(column).encode()
        return None
    except UnicodeEncodeError:
        keep = []
        for row, values in enumerate(zip(*columns, strict=True)):
            try:
                "".join(values).encode()
                keep.append(row)
            except UnicodeEncodeError as error:
                problems.add(
                    Kind.ENCODING, file, lines[row], f"half a surrogate pair, U+{ord(error.object[error.start]):X}"
                )
        return keep
