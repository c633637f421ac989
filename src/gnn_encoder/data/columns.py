"""Text columns: exact duplicates without a dict, texts with nothing to read, and text that cannot be stored."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.validation import Kind, Problems


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
