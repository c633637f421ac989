"""The further fields of a corpus, from rows of JSON or CSV to the columns of `artifacts.fields`.

A field is a column of a CSV file besides id, title and text; in JSON lines a field of the object, or of its `metadata`.
JSON says the types. A field with texts and other values holds texts, one with lists and other values holds lists; of a
CSV file, a field whose values are all numbers holds numbers. Texts that are all dates of ISO 8601 are dates. What a
number would not give back stays text: a code such as 0123, and a whole number that is too large. Objects are no values,
and a field with a long text is none to filter by. Columns are held until the end, as Arrow's.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_list

LONGEST, MOST = 256, 64
"""Characters of a value, and fields of a corpus."""
FP64_WHOLE = 2**53
"""From here on, fp64 does not hold all whole numbers."""
DATE = re.compile(r"\d{4}-\d\d-\d\d")
METADATA = "metadata"
TEXT = pa.large_string()


class FieldColumns:
    """Takes the fields of a corpus batch by batch. `untyped`: all values come as texts, as in CSV."""

    def __init__(self, untyped: bool = False) -> None:
        self._untyped, self._batches = untyped, list[tuple[int, dict[str, pa.Array]]]()
        self._left_out: dict[str, str] = {}

    def add(self, fields: Mapping[str, pa.Array], rows: int) -> None:
        """Takes the fields of the next rows; `fields` may lack some, or be of other types than before."""
        kept = {}
        for name, column in fields.items():
            leaf = column.flatten() if is_list(column.type) else column
            if not (pa.types.is_null(leaf.type) or leaf.type in (pa.bool_(), pa.int64(), pa.float64(), pa.string())):
                self._left_out.setdefault(name, "has objects")
            elif leaf.type == pa.string() and (pc.max(pc.utf8_length(leaf)).as_py() or 0) > LONGEST:
                self._left_out[name] = f"has texts of more than {LONGEST} characters"
            elif name not in self._left_out and not pa.types.is_null(leaf.type):
                kept[name] = column
        self._batches.append((rows, kept))

    def columns(self) -> pa.Table | None:
        """Returns the columns of all rows; None without any."""
        names = list(dict.fromkeys(name for _, kept in self._batches for name in kept if name not in self._left_out))
        self._left_out |= dict.fromkeys(names[MOST:], f"is not among the first {MOST}")
        columns = {
            name: _joined([kept.get(name, pa.nulls(rows)) for rows, kept in self._batches], self._untyped)
            for name in names[:MOST]
        }
        return pa.table(columns) if columns else None

    @property
    def remarks(self) -> list[str]:
        """A sentence about each field that is left out."""
        return [f"field {name!r} {why}: no search filters by it" for name, why in self._left_out.items()]


def in_metadata(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Returns columns with the fields of the object `metadata` beside them; a value of the row itself comes first.

    Raises pa.ArrowInvalid if the two have values of different types, or if fp64 may have rounded whole numbers.
    """
    if any(_largest(values) >= FP64_WHOLE for column in columns.values() for values in _fractions(column)):
        raise pa.ArrowInvalid(f"whole numbers from {FP64_WHOLE} on may be rounded")
    inner = columns.get(METADATA)
    if inner is None or not pa.types.is_struct(inner.type):
        return dict(columns)
    names = [inner.type.field(i).name for i in range(inner.type.num_fields)]
    joined = dict(zip(names, inner.flatten(), strict=True))
    for name, column in columns.items():
        if name in joined and column.type != joined[name].type:
            raise pa.ArrowInvalid(f"{name}: {column.type} and {joined[name].type}")
        if name != METADATA:
            joined[name] = pc.coalesce(column, joined[name]) if name in joined else column
    return joined


def of_records(records: list[dict[str, Any]], without: Iterable[str]) -> dict[str, pa.Array]:
    """As `in_metadata`, of parsed rows whose values may have any types; fields in `without` are none."""
    flat = []
    for record in records:
        inner = record.get(METADATA)
        of_row = {n: v for n, v in record.items() if n not in without and v is not None}
        flat.append({**inner, **{n: of_row[n] for n in of_row if n != METADATA}} if isinstance(inner, dict) else of_row)
    names = dict.fromkeys(name for fields in flat for name in fields)
    return {_storable(name): _column([fields.get(name) for fields in flat]) for name in names}


def _fractions(column: pa.Array) -> Iterator[pa.Array]:
    """Yields the fp64 values of a column, and of the lists and objects in it."""
    if pa.types.is_struct(column.type) or is_list(column.type):
        inside = column.flatten()
        for part in inside if isinstance(inside, list) else [inside]:
            yield from _fractions(part)
    elif column.type == pa.float64():
        yield column


def _largest(numbers: pa.Array) -> float:
    """Returns the largest absolute value, 0 without any."""
    least, most = pc.min_max(numbers).as_py().values()
    return 0 if least is None else max(-least, most)


def _column(values: list[Any]) -> pa.Array:
    """The values as one column: as they are if they have one type, else as texts, or lists of texts."""
    values = [None if isinstance(value, dict) else value for value in values]
    try:
        column = pa.array(values)
        if column.type in (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string()) or is_list(column.type):
            return column
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        pass  # values of several types, below
    if any(isinstance(value, list) for value in values):
        lists = [value if value is None or isinstance(value, list) else [value] for value in values]
        return pa.array([None if v is None else [_text(one) for one in v] for v in lists], pa.list_(pa.string()))
    return pa.array([_text(value) for value in values], pa.string())


def _text(value: Any) -> str | None:
    text = value if isinstance(value, str) else None if value is None else json.dumps(value)
    return None if text is None else _storable(text)


def _storable(text: str) -> str:
    """The text with ? for half a surrogate pair, which JSON escapes can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def _joined(parts: list[pa.Array], untyped: bool) -> pa.Array:
    """Joins the columns of batches in the type that fits all of them."""
    several = any(is_list(part.type) for part in parts)
    kinds = {part.type.value_type if is_list(part.type) else part.type for part in parts} - {pa.null()}
    numbers = kinds == {pa.int64(), pa.float64()} and not any(map(_is_rounded_by_fp64, parts))
    kind = kinds.pop() if len(kinds) == 1 else pa.float64() if numbers else TEXT
    kind = TEXT if kind == pa.string() else kind
    if not several:
        return _typed(pa.concat_arrays([part.cast(kind, safe=False) for part in parts]), untyped)
    whole = pa.concat_arrays([_as_list(part, kind) for part in parts])
    return pa.ListArray.from_arrays(whole.offsets, _typed(whole.values, untyped), mask=whole.is_null())


def _is_rounded_by_fp64(part: pa.Array) -> bool:
    """Whether a column of integers, or of lists of them, may hold some that fp64 does not."""
    values = part.flatten() if is_list(part.type) else part
    return values.type == pa.int64() and _largest(values) >= FP64_WHOLE


def _as_list(part: pa.Array, kind: pa.DataType) -> pa.Array:
    if is_list(part.type):
        return part.cast(pa.list_(kind), safe=False)
    offsets = pa.array(np.arange(len(part) + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, part.cast(kind, safe=False), mask=part.is_null())


def _typed(values: pa.Array, untyped: bool) -> pa.Array:
    """Texts as dates or, if `untyped`, as numbers, where all of them are; others as a dictionary."""
    if values.type != TEXT:
        return values
    if untyped:
        values = pc.if_else(pc.equal(values, ""), None, values)
    first = values.drop_null()[:1].to_pylist()
    dated = bool(first) and DATE.match(first[0])
    in_utc = pa.timestamp("us", "UTC")
    kinds = (pa.timestamp("us"), in_utc) if dated else (pa.int64(), pa.float64()) if untyped and first else ()
    for kind in kinds:
        try:
            typed = values.cast(kind)
        except pa.ArrowInvalid:
            continue
        if dated or _gives_back(typed, values):
            return typed.cast(pa.timestamp("us")) if kind == in_utc else typed
    return values.dictionary_encode()


def _gives_back(numbers: pa.Array, texts: pa.Array) -> bool:
    """Whether numbers say all that their texts say: no zero before a digit, and no whole number that fp64 rounds."""
    if numbers.type == pa.int64():
        return bool(pc.all(pc.equal(numbers.cast(texts.type), texts), min_count=0).as_py())
    rounded = pc.and_(pc.match_substring_regex(texts, r"^[+-]?\d+$"), pc.greater_equal(pc.abs(numbers), FP64_WHOLE))
    lost = pc.or_(rounded, pc.match_substring_regex(texts, r"^[+-]?0\d"))
    return not pc.any(lost, min_count=0).as_py()
