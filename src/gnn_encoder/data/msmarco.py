"""Reads MS MARCO passage ranking: collection.tsv, queries.<split>.tsv, qrels.<split>.tsv (plain or .gz).

A tab ends a field and quotes mean nothing, as in MS MARCO's own readers, so a text with a tab is refused. A collection
with titles (as of RocketQA's edition; figures with and without titles are not comparable) needs a header line that
names its columns, such as `id title text`: without one, the second column is a title to some and a text to others.
Qrels are `query 0 passage relevance`. The official test queries have no labels, so papers report on dev.
If `dev` and `dev.small` (6,980 queries) both exist, `dev.small` is read. Dev becomes the test split, and a part of
train becomes dev (`splits.complete`).
"""

from collections.abc import Iterator
from pathlib import Path

from gnn_encoder.data.delimited import (
    LABEL_COLUMNS,
    NO_HEADER,
    Header,
    read_fields,
    read_passages,
    read_trec_labels,
)
from gnn_encoder.data.lines import find, find_or_report, read_lines
from gnn_encoder.data.rows import FolderSource, Label, PassageRows, Query
from gnn_encoder.data.validation import Kind, Problems

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "dev.small"), "test": ("test",)}
"""Our split → names of the split in files; the last existing name is read."""


class MsMarco(FolderSource):
    """A folder in MS MARCO's layout. A query belongs to the split whose qrels name it."""

    format = "msmarco"
    untyped_fields = True

    def __init__(self, folder: Path) -> None:
        self.splits = {
            split: name for split, names in SPLIT_NAMES.items() for name in names if find(folder, f"qrels.{name}.tsv")
        }
        read = {find(folder, f"{kind}.{name}.tsv") for kind in ("queries", "qrels") for name in self.splits.values()}
        super().__init__(folder, [find(folder, "collection.tsv")], read)
        others = {path for kind in ("queries", "qrels") for path in folder.glob(f"{kind}.*.tsv*")} - read
        self.remarks = [f"{path.name!r} was not read" for path in sorted(others)]

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The collection."""
        if path := find_or_report(self.folder, "collection.tsv", problems):
            yield from read_passages(path, problems)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries and labels, split by split."""
        if not self.splits:
            problems.add(Kind.MISSING_FILE, str(self.folder / "qrels.train.tsv"), detail="(dev too)")
        for split, name in self.splits.items():
            if path := find_or_report(self.folder, f"queries.{name}.tsv", problems):
                header = Header.of(path, False)
                is_header = header.names[:1] and header.names[0] in LABEL_COLUMNS["query"] | {"id", "_id"}
                lines = read_fields(read_lines(path, problems), range(2, 3), problems, path.name)
                for number, (identity, text) in lines:
                    if identity and not (is_header and number == header.line):
                        yield Query(identity, text, [], None, path.name, number)
                    else:
                        problems.add(Kind.BAD_ROW, path.name, number, NO_HEADER if identity else "an empty id")
            if path := find(self.folder, f"qrels.{name}.tsv"):
                yield from read_trec_labels(path, split, problems)
