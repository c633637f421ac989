"""MS MARCO passage ranking: collection.tsv, queries.<split>.tsv, qrels.<split>.tsv (plain or .gz).

The collection's third column, if there is one, is a title (as in RocketQA's edition: figures with and
without titles are not comparable). Qrels are `query 0 passage relevance`. There are no labels for the
official test queries, so papers report on dev: `dev.small` (6,980 queries) is read in place of `dev`
where both are there, and becomes the test split; dev is then set apart from train (`canonical`).
"""

from collections.abc import Iterator
from pathlib import Path

from gnn_encoder.data.delimited import read_labels, read_passages, read_queries
from gnn_encoder.data.lines import files_digest, find, find_or_report
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems

SPLIT_NAMES = {"train": ("train",), "dev": ("dev.small", "dev"), "test": ("test",)}


class MsMarco:
    """A folder in MS MARCO's layout."""

    format = "msmarco"
    unit = "bytes"

    def __init__(self, folder: Path) -> None:
        self.name, self.folder = str(folder), folder
        self.facts: dict[str, str] = {}
        self.splits: dict[str, str] = {}
        for split, names in SPLIT_NAMES.items():
            found = [name for name in names if find(folder, f"qrels.{name}.tsv")]
            if found:
                self.splits[split] = found[0]
        read = {find(folder, f"{kind}.{name}.tsv") for kind in ("queries", "qrels") for name in self.splits.values()}
        others = {path for kind in ("queries", "qrels") for path in folder.glob(f"{kind}.*.tsv*")} - read
        self.remarks = [f"{path.name!r} was not read" for path in sorted(others)]
        corpus = find(folder, "collection.tsv")
        self.work = corpus.stat().st_size if corpus else 0

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The collection."""
        if path := find_or_report(self.folder, "collection.tsv", problems):
            yield from read_passages(path, problems)

    def questions(self, problems: Problems) -> Iterator[QueryRows | LabelRows]:
        """Queries and labels, split by split. A query belongs to the split whose qrels name it."""
        if not self.splits:
            problems.add(Kind.MISSING_FILE, str(self.folder / "qrels.train.tsv"), detail="(dev too)")
        for split, name in self.splits.items():
            if path := find_or_report(self.folder, f"queries.{name}.tsv", problems):
                yield from read_queries(path, problems)
            if path := find(self.folder, f"qrels.{name}.tsv"):
                yield from read_labels(path, split, problems, trec=True)

    def digest(self) -> str:
        """Over the contents of the files that are read."""
        names = ["collection", *(f"{kind}.{name}" for name in self.splits.values() for kind in ("queries", "qrels"))]
        return files_digest([path for name in names if (path := find(self.folder, f"{name}.tsv"))])
