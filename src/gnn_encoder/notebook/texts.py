"""Passages, queries and labels in memory, written as a folder in BEIR's layout."""

import csv
import hashlib
import io
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnn_encoder.errors import UserError

Id = str | int
Passages = Mapping[Id, str | Mapping[str, str]] | Sequence[str]
"""{id: text}, {id: {"title": …, "text": …}}, or texts; the ids of texts are their positions, from 0."""
Queries = Mapping[Id, str] | Sequence[str]
"""{id: text}, or texts, as of `Passages`."""
Labels = Mapping[Id, Mapping[Id, int] | Iterable[Id] | Id]
"""{query: {passage: relevance}}; in the place of the inner mapping relevant passages, or a single one."""


def have_ids(texts: Passages | Queries) -> bool:
    """Returns whether texts have ids of their own. A pandas Series has, unless its index are the positions from 0."""
    return hasattr(texts, "items") and any(key != position for position, (key, _) in enumerate(texts.items()))


def with_ids(texts: Passages | Queries) -> list[tuple[str, Any]]:
    """Returns (id, text) of each text."""
    pairs: Iterable[tuple[Any, Any]] = texts.items() if hasattr(texts, "items") else enumerate(texts)
    return [(str(key), text) for key, text in pairs]


def triples(labels: Labels) -> list[tuple[str, str, Any]]:
    """Returns (query, passage, relevance) of each label; raises UserError for labels without queries."""
    if not hasattr(labels, "items"):
        raise UserError(f"labels are a {type(labels).__name__}: give {{query: {{passage: relevance}}}}")
    rows: list[tuple[str, str, Any]] = []
    for query, passages in labels.items():
        if isinstance(passages, str) or not isinstance(passages, Iterable):  # NumPy's numbers are no `int`
            passages = [passages]
        graded = passages if isinstance(passages, Mapping) else dict.fromkeys(passages, 1)
        rows += [(str(query), str(passage), relevance) for passage, relevance in graded.items()]
    return rows


def write_texts(parent: Path, corpus: Passages, queries: Queries | None, labels: Mapping[str, Labels | None]) -> Path:
    """Writes texts and the labels of each split into a folder that is named by its content; returns the folder.

    The same texts have the same folder, so a later run reuses what an earlier one computed. Raises UserError for what
    no file can have.
    """
    files = {"corpus.jsonl": _lines([{**_fields(text), "_id": key} for key, text in with_ids(corpus)])}
    if queries is not None:
        files["queries.jsonl"] = _lines([{"_id": key, "text": text} for key, text in with_ids(queries)])
    for split, of_split in labels.items():
        if of_split is not None:
            table = io.StringIO()
            rows = csv.writer(table, delimiter="\t", lineterminator="\n")
            rows.writerows([("query-id", "corpus-id", "score"), *triples(of_split)])
            files[f"qrels/{split}.tsv"] = table.getvalue()
    folder = parent / hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12]
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=".partial-") as fresh:
            for name, content in files.items():
                path = Path(fresh, folder.name, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8", errors="surrogatepass")  # readers refuse it
            Path(fresh, folder.name).rename(folder)
    return folder


def _fields(text: Any) -> Mapping[str, Any]:
    return text if isinstance(text, Mapping) else {"text": text}


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(map(_line, records))


def _line(record: Mapping[str, Any]) -> str:
    try:
        return f"{json.dumps(record)}\n"
    except TypeError:
        kinds = [type(value).__name__ for value in record.values() if not isinstance(value, str)]
        raise UserError(f"the text with the id {record['_id']!r} is a {kinds[0]}: give a str") from None
