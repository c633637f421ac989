"""The columns of a BEIR corpus that say where passages stand in documents, read by Arrow or checked row by row.

doc_id          text or integer: the document. A corpus without this column has no structure
order           integer: the place in the document's reading order; without it, the order of the rows counts
parent          `_id` of the passage or section that the row is a part of
section         without a parent: the path of the section, a list of texts from the top section
section_titles  titles of the first parts of that path
citations       a list of `_id`s, or of objects with such a `target`; null: a work that is not in the data

Data without structure have fields of these names, too: `OtherFields` finds them.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.lines import Block
from gnn_encoder.data.places import SEPARATOR
from gnn_encoder.data.rows import PLACES

MARK = b'"doc_id"'
"""In each block with places: to look for it takes a thousandth of the time of parsing."""
FIELDS = {"doc_id" if name == "document" else name: PLACES.field(name).type for name in PLACES.names}
OBJECTS = pa.list_(pa.struct({"target": pa.string()}))
LARGEST_ORDER = 2**62
RESERVED = re.compile(rb"\x1f|\\u001[fF]")


def schemas(ignored: Collection[str] = ()) -> Iterator[pa.Schema]:
    """The types in which Arrow can read the fields without `ignored`: citations are texts or objects."""
    yield pa.schema({name: kind for name, kind in FIELDS.items() if name not in ignored})
    if "citations" not in ignored:
        yield pa.schema({name: kind for name, kind in {**FIELDS, "citations": OBJECTS}.items() if name not in ignored})


def places_of(columns: dict[str, pa.Array], block: Block) -> pa.Table | None:
    """A table of `PLACES` from the fields of one of `schemas`, null where it has no such field.

    None if the block must be read row by row.
    """
    count = len(next(iter(columns.values())))
    columns = {name: pa.nulls(count, kind) for name, kind in FIELDS.items()} | columns
    lists = [columns[name] for name in ("section", "section_titles")]
    if any(pc.list_flatten(column).null_count for column in lists) or RESERVED.search(block.data):
        return None
    citations = columns["citations"]
    if pa.types.is_struct(citations.type.value_type):
        # A field of an object that is null is null only with the object's own nulls put in (flatten).
        targets = citations.values.flatten()[0]
        citations = pa.ListArray.from_arrays(citations.offsets, targets, mask=citations.is_null())
    return pa.table([citations if name == "citations" else columns[name] for name in FIELDS], schema=PLACES)


def normalize(record: dict[str, Any], ignored: Collection[str] = ()) -> str:
    """Gives the fields of a row the types of `PLACES`; returns what is wrong if one of them has another type.

    Fields in `ignored` become null.
    """
    record.update(dict.fromkeys(ignored))
    for name in FIELDS:
        value, wrong = _converted(name, record.get(name))
        if wrong:
            return wrong
        record[name] = value
    if any(SEPARATOR in text for text in (record["doc_id"] or "", *(record["section"] or ()))):
        return f'"doc_id" or "section" has the character U+{ord(SEPARATOR):04X}'
    return ""


class OtherFields:
    """The fields of a corpus that have a name in `FIELDS` and are of another type wherever they stand.

    They are other people's data, such as a section's heading in "section", or the number of citations. A field that has
    the right type in some passage and another one elsewhere is none of these: that is a mistake.
    """

    def __init__(self, rows: Callable[[], Iterator[tuple[int, dict[str, Any]]]]) -> None:
        self._rows, self._sought = rows, False
        self.first: dict[str, tuple[int, str]] = {}
        """The fields found by `sought`: the first line of each, and what is wrong there."""

    def sought(self) -> Collection[str]:
        """The fields. The first call reads the corpus row by row, so it waits until a row has a wrong type."""
        if not self._sought:
            self._sought, right = True, set[str]()
            for line, record in self._rows():
                if record.get("doc_id") is None:
                    continue
                for name in FIELDS:
                    if (value := record.get(name)) is not None:
                        wrong = _converted(name, value)[1]
                        if wrong:
                            self.first.setdefault(name, (line, wrong))
                        else:
                            right.add(name)
            self.first = {name: problem for name, problem in self.first.items() if name not in right}
        return self.first

    def remarks(self, file: str) -> list[str]:
        """A sentence about each field."""
        return [
            f"{wrong} in any passage of {file} (line {line} on): it was not read, and is no part of the documents"
            for line, wrong in self.first.values()
        ]


def _converted(name: str, value: Any) -> tuple[Any, str]:
    """A field's value in the type of `PLACES`, and what is wrong with it."""
    if value is None:
        return None, ""
    if name in ("doc_id", "parent"):
        return _id(value, name)
    if name == "order":
        return value, "" if type(value) is int and abs(value) <= LARGEST_ORDER else '"order" is not an integer'
    if name != "citations":
        right = isinstance(value, list) and all(isinstance(part, str) for part in value)
        return value, "" if right else f'"{name}" is not a list of texts'
    if not isinstance(value, list):
        return value, '"citations" is not a list'
    targets = [_id(item.get("target") if isinstance(item, dict) else item, name) for item in value]
    return [target for target, _ in targets], next((wrong for _, wrong in targets if wrong), "")


def texts_of(record: dict[str, Any], has_text: bool) -> list[str]:
    """All texts of a row after `normalize`, without id and title where the row `has_text`: `Corpus` checks those."""
    lists = [record[name] or () for name in ("section", "section_titles", "citations")]
    id_and_title = () if has_text else (record["_id"], record["title"])
    return [
        text
        for text in (*id_and_title, record["doc_id"], record["parent"], *(t for texts in lists for t in texts))
        if text
    ]


def table_of(records: list[dict[str, Any]]) -> pa.Table:
    """The columns of `PLACES` of rows, after `normalize`."""
    return pa.table([pa.array([r[name] for r in records], kind) for name, kind in FIELDS.items()], schema=PLACES)


def _id(value: Any, name: str) -> tuple[str | None, str]:
    """The id as text, and what is wrong with it."""
    if type(value) is int:
        return str(value), ""
    if value is None or isinstance(value, str):
        return value, ""
    return None, f'"{name}" is not a text' if name != "citations" else '"citations" holds something other than ids'
