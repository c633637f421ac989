"""The columns of a BEIR corpus that say where passages stand in documents, read by Arrow or checked row by row.

doc_id          text or integer: the document. A corpus without this column has no structure
order           integer: the place in the document's reading order; without it, the order of the rows counts
parent          `_id` of the passage or section that the row is a part of
section         without a parent: the path of the section, a list of texts from the top section
section_titles  titles of the first parts of that path
citations       a list of `_id`s, or of objects with such a `target`; null: a work that is not in the data
"""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.data.lines import Block
from gnn_encoder.data.places import SEPARATOR
from gnn_encoder.data.rows import PLACES

MARK = b'"doc_id"'
FIELDS = {"doc_id" if name == "document" else name: PLACES.field(name).type for name in PLACES.names}
OBJECTS = pa.list_(pa.struct({"target": pa.string()}))
LARGEST_ORDER = 2**62
RESERVED = re.compile(rb"\x1f|\\u001[fF]")


SCHEMAS = (pa.schema(FIELDS), pa.schema({**FIELDS, "citations": OBJECTS}))
"""The types in which Arrow can read the fields: citations are texts or objects."""


def has_places(block: Block) -> bool:
    """Whether rows of a block have places. Looking for the field's name takes a thousandth of the time of parsing."""
    return MARK in block.data


def places_of(columns: dict[str, pa.Array], block: Block) -> pa.Table | None:
    """A table of `PLACES` from the fields of one of `SCHEMAS`; None if the block must be read row by row."""
    lists = [columns[name] for name in ("section", "section_titles")]
    if any(pc.list_flatten(column).null_count for column in lists) or RESERVED.search(block.data):
        return None
    citations = columns["citations"]
    if pa.types.is_struct(citations.type.value_type):
        # A field of an object that is null is null only with the object's own nulls put in (flatten).
        targets = citations.values.flatten()[0]
        citations = pa.ListArray.from_arrays(citations.offsets, targets, mask=citations.is_null())
    return pa.table([citations if name == "citations" else columns[name] for name in FIELDS], schema=PLACES)


def normalize(record: dict[str, Any]) -> str:
    """Gives the fields of a row the types of `PLACES`; returns what is wrong if one of them has another type."""
    for name in ("doc_id", "parent"):
        record[name], wrong = _id(record.get(name), name)
        if wrong:
            return wrong
    order = record.setdefault("order", None)
    if order is not None and (type(order) is not int or abs(order) > LARGEST_ORDER):
        return '"order" is not an integer'
    for name in ("section", "section_titles"):
        parts = record.setdefault(name, None)
        if parts is not None and not (isinstance(parts, list) and all(isinstance(part, str) for part in parts)):
            return f'"{name}" is not a list of texts'
    if any(SEPARATOR in text for text in (record["doc_id"] or "", *(record["section"] or ()))):
        return f'"doc_id" or "section" has the character U+{ord(SEPARATOR):04X}'
    cited = record.get("citations")
    if not isinstance(cited, list | None):
        return '"citations" is not a list'
    targets = [_id(item.get("target") if isinstance(item, dict) else item, "citations") for item in cited or ()]
    record["citations"] = [target for target, _ in targets]
    return next((wrong for _, wrong in targets if wrong), "")


def texts_of(record: dict[str, Any], has_text: bool) -> list[str]:
    """All texts of a row after `normalize`, without id and title where the row `has_text`: `Corpus` checks those."""
    lists = [record[name] or () for name in ("section", "section_titles", "citations")]
    own = () if has_text else (record["_id"], record["title"])
    return [text for text in (*own, record["doc_id"], record["parent"], *(t for texts in lists for t in texts)) if text]


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
