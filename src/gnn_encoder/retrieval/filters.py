"""Filters: the passages that a search may return, by their further fields (`artifacts.fields`).

    {"product": ["a", "b"], "date": {">=": "2026-01-01", "<": "2026-02-01"}, "team": {"!=": "x"}, "year": null}

A passage fits if it fits the condition on each field: a value, one of several values, comparisons, or null for no
value. `!=` is the opposite of `=`; a passage without a value fits no other condition. Of a list, one value must fit. A
date without a time is its first moment, in UTC.

Scores of the parts stay those of the whole corpus: BM25's statistics, the nearness of training queries and the shares
of a memory do not depend on the filter. The first k of each part of a ranking are taken among the passages that fit; a
fusion scales and ranks them among these.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property, lru_cache, partial
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.fields import kind_of
from gnn_encoder.errors import UserError

COMPARED: dict[str, Callable[..., pa.Array]] = {
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
KEPT_BYTES, MOST_KEPT = 2**28, 256
"""Memory for the selections of recent filters, about, and most of them."""
VALUES = 20
"""Values of a field in `Filters.facets`."""
PYTHON = {"text": (str,), "number": (int, float), "truth": (bool,), "date": (str,)}
"""Types of a value in JSON."""


@final
@dataclass(frozen=True, eq=False)
class Selection:
    """The passages that a search may return, bool [m]; `seen` bool [m]: those that explanations may name; None: all."""

    mask: np.ndarray
    seen: np.ndarray | None = None

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows int32, ascending."""
        return np.flatnonzero(self.mask).astype(np.int32)

    @cached_property
    def bits(self) -> np.ndarray:
        """The mask as FAISS's `IDSelectorBitmap` reads it."""
        return np.packbits(self.mask, bitorder="little")

    def at(self, places: np.ndarray | slice) -> "Selection":
        """The same of the passages of some vectors, or of some consecutive passages."""
        return Selection(self.mask[places])

    def names(self, query: np.ndarray, passage: np.ndarray, count: int) -> np.ndarray:
        """Returns which of `count` training queries an explanation may name, bool: those without a label that is not in
        `seen`, by the pairs [e] of a query's place and a passage."""
        named = np.ones(count, bool)
        if self.seen is not None:
            named[query[~self.seen[passage]]] = False
        return named


def most_kept(rows: int) -> int:
    """Returns how many selections of so many rows are kept."""
    return max(2, min(MOST_KEPT, KEPT_BYTES // (6 * rows + 1)))


class Filters:
    """The fields of a corpus [m], None without any, and the selections of recent filters. Threads may share it."""

    def __init__(self, fields: pa.RecordBatch | None, passages: int) -> None:
        self._fields = {} if fields is None else dict(zip(fields.schema.names, fields.columns, strict=True))
        self._passages = passages
        self._selected = lru_cache(most_kept(passages))(self._select)

    def select(self, wanted: Mapping[str, Any] | None, rights: Mapping[str, Any] | None = None) -> Selection | None:
        """Returns the passages that fit a filter, among those that fit `rights`, which alone may be named.

        None: neither is given. Raises UserError for a filter that does not fit the fields.
        """
        if wanted is None and rights is None:
            return None
        try:
            return self._selected(*(json.dumps(part, sort_keys=True, default=_iso) for part in (wanted, rights)))
        except TypeError as error:
            raise UserError(f"filter: {error}") from None

    def count(self, selection: Selection | None) -> int:
        """Returns the number of selected passages."""
        return self._passages if selection is None else len(selection.rows)

    def facets(self, selection: Selection | None, without: str | None = None) -> dict[str, list[dict[str, Any]]]:
        """Returns {field: [{value, passages}]}: the `VALUES` most frequent values of texts and truth values, with the
        number of selected passages that have each; none of the field `without`."""
        return {
            name: counts
            for name, column in self._fields.items()
            if name != without and (counts := self._counts(column, selection))
        }

    def require(self, field: str) -> None:
        """Raises UserError unless a field has the groups that may see each passage: texts, or lists of texts."""
        if field not in self._fields or not kind_of(self._fields[field].type).endswith("text"):
            raise UserError(f"rights: the passages have no field {field!r} with texts or lists of texts, {self._known}")

    @property
    def _known(self) -> str:
        names = [f"{name} ({kind_of(column.type)})" for name, column in self._fields.items()]
        return f"but {', '.join(names)}" if names else "nor any other field"

    def _select(self, wanted: str, rights: str) -> Selection:
        seen, mask = self._mask(json.loads(rights)), self._mask(json.loads(wanted))
        return Selection(mask & seen, None if rights == "null" else seen)

    def _mask(self, wanted: Any) -> np.ndarray:
        """The passages that fit, bool [m]; all if nothing is wanted."""
        if wanted is None:
            wanted = {}
        if not isinstance(wanted, dict):
            raise UserError('filter: give an object with a condition for each field, such as {"product": ["a", "b"]}')
        mask = np.ones(self._passages, bool)
        for name, condition in wanted.items():
            if name not in self._fields:
                raise UserError(f"filter: the passages have no field {name!r}, {self._known}")
            mask &= _fits(name, self._fields[name], condition if isinstance(condition, dict) else {"=": condition})
        return mask

    @staticmethod
    def _counts(column: pa.Array, selection: Selection | None) -> list[dict[str, Any]]:
        row, several = np.arange(len(column)), pa.types.is_list(column.type)
        if several:
            row, column = np.repeat(row, np.diff(column.offsets.to_numpy())), column.values
        if pa.types.is_boolean(column.type):
            column = column.dictionary_encode()
        if not pa.types.is_dictionary(column.type) or len(column.dictionary) > max(VALUES, len(row) // 2):
            return []  # of values that hardly two passages share, nobody chooses one
        code = column.indices.fill_null(-1).to_numpy()
        kept = code >= 0 if selection is None else (code >= 0) & selection.mask[row]
        row, code = row[kept], code[kept]
        if several and len(code):  # a list may name a value twice; `np.unique` takes seconds for a million values
            pairs = np.sort(row * len(column.dictionary) + code, kind="stable")
            code = pairs[np.append(True, pairs[1:] != pairs[:-1])] % len(column.dictionary)
        counts = np.bincount(code, minlength=len(column.dictionary))
        best = [i for i in np.argsort(-counts, kind="stable")[:VALUES].tolist() if counts[i]]
        return [{"value": column.dictionary[i].as_py(), "passages": int(counts[i])} for i in best]


def filter_of(text: str | None) -> Any:
    """Returns the filter in a text of JSON; None for none. Raises UserError for other texts."""
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise UserError(f"filter: {text[:80] if text else ''!r} is no JSON ({error})") from None


def _fits(name: str, column: pa.Array, condition: Mapping[str, Any]) -> np.ndarray:
    """The rows bool [m] of a column that fit all comparisons of a condition."""
    if unknown := [operator for operator in condition if operator not in (*COMPARED, "=", "!=")]:
        raise UserError(f"filter: {name}: unknown operator {unknown[0]!r}: use =, !=, {', '.join(COMPARED)}")
    mask = np.ones(len(column), bool)
    compared = {operator: value for operator, value in condition.items() if operator in COMPARED}
    if compared:
        mask &= _any(column, lambda leaf: _compared(leaf, [(o, _scalar(name, leaf, v)) for o, v in compared.items()]))
    for operator in ("=", "!="):
        if operator in condition:
            values = condition[operator] if isinstance(condition[operator], list) else [condition[operator]]
            some = [value for value in values if value is not None]
            equal = _any(column, partial(_equal, name, some))
            if len(some) < len(values):
                equal |= ~_any(column, lambda leaf: leaf.is_valid().to_numpy(zero_copy_only=False))
            mask &= equal if operator == "=" else ~equal
    return mask


def _any(column: pa.Array, fits: Callable[[pa.Array], np.ndarray]) -> np.ndarray:
    """The rows bool [m] of which one value fits; a function is asked once for each different text."""
    if pa.types.is_list(column.type):
        before = np.append(0, np.cumsum(_any(column.values, fits)))
        starts = before[column.offsets.to_numpy()]
        return np.asarray(starts[1:] > starts[:-1])
    if pa.types.is_dictionary(column.type):
        of_values = np.append(_any(column.dictionary, fits), False)
        return np.asarray(of_values[column.indices.fill_null(-1).to_numpy()])
    return fits(column)


def _compared(leaf: pa.Array, comparisons: list[tuple[str, pa.Scalar]]) -> np.ndarray:
    mask = np.ones(len(leaf), bool)
    for operator, bound in comparisons:
        # Numbers of two types are compared as fp64; Arrow would refuse integers that these round.
        one_type = (
            (leaf, bound) if bound.type == leaf.type else (pc.cast(s, pa.float64(), False) for s in (leaf, bound))
        )
        mask &= pc.fill_null(COMPARED[operator](*one_type), False).to_numpy(zero_copy_only=False)
    return mask


def _equal(name: str, values: list[Any], leaf: pa.Array) -> np.ndarray:
    wanted = []
    for value in values:
        with suppress(pa.ArrowInvalid):  # 2.5 is equal to no integer
            wanted.append(_scalar(name, leaf, value).cast(leaf.type).as_py())
    # A scalar's values: `pa.array` would import pandas, in half a second.
    value_set = pa.scalar(wanted, pa.list_(leaf.type)).values
    return np.asarray(pc.is_in(leaf, value_set=value_set).to_numpy(zero_copy_only=False))


def _scalar(name: str, leaf: pa.Array, value: Any) -> pa.Scalar:
    kind = "text" if leaf.type == pa.large_string() else kind_of(leaf.type)
    try:
        if not isinstance(value, PYTHON[kind]) or (kind == "number" and isinstance(value, bool)):
            raise ValueError
        if kind == "date":
            moment = datetime.fromisoformat(str(value))
            return pa.scalar(moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment, leaf.type)
        return pa.scalar(value, pa.int64() if type(value) is int else None if kind == "number" else leaf.type)
    except (ValueError, OverflowError):
        shown = json.dumps(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise UserError(f"filter: {name} has values of the type {kind}, and {shown} is none") from None


def _iso(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no text, number, truth value or date")
