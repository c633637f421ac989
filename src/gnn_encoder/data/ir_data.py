"""Reads data sets of the `ir_datasets` catalogue, by id: `ir_datasets:beir/scifact`. The package is an optional extra.

An id without a split means all splits of the data set: `ID/train`, `ID/dev` (or valid, validation; for MS MARCO
`dev/small`, the 6,980 queries that papers report) and `ID/test`. An id with a split means only this split.
"""

import importlib.metadata
from collections.abc import Iterator
from itertools import islice
from typing import Any

from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.data.rows import Label, PassageRows, Query, Source
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

PREFIX = "ir_datasets:"
SPLIT_NAMES = {"train": ("train",), "dev": ("dev/small", "dev", "valid", "validation"), "test": ("test",)}
BATCH = 5000


class IrDatasets(Source):
    """A catalogue entry; `ir_datasets` downloads and caches it."""

    format = "ir_datasets"
    unit = "passages"

    def __init__(self, identity: str) -> None:
        try:
            import ir_datasets
        except ImportError:
            raise UserError(
                f"{identity} needs the package ir_datasets: pip install 'gnn-encoder[ir-datasets]'"
            ) from None
        super().__init__(identity)
        self._id = identity.removeprefix(PREFIX)
        try:
            whole = ir_datasets.load(self._id)
        except KeyError:
            raise UserError(f"{identity}: ir_datasets has no data set {self._id!r}; see ir-datasets.com") from None
        self._splits = {}
        for split, names in SPLIT_NAMES.items():
            for name in names:
                entry = whole if self._id.endswith(f"/{name}") else _load(ir_datasets, f"{self._id}/{name}")
                if entry is not None and entry.has_queries() and entry.has_qrels():
                    self._splits[split] = entry
                    break
        if not whole.has_docs() or not self._splits:
            raise UserError(f"{identity} has no passages or no split with labels: name the data set above its splits")
        self._docs = whole
        self.facts = {"ir_datasets": importlib.metadata.version("ir_datasets")}

    @property
    def work(self) -> int:
        """Number of passages; 0 if the catalogue does not know the number."""
        return int(self._docs.docs_count() or 0)

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """The documents; a document without a field `text` is read by ir_datasets' `default_text`."""
        del problems  # the package checks its downloads
        documents, first = iter(self._docs.docs_iter()), 1
        while docs := list(islice(documents, BATCH)):
            ids = [doc.doc_id for doc in docs]
            titles = [getattr(doc, "title", None) or "" if hasattr(doc, "text") else "" for doc in docs]
            texts = [doc.text or "" if hasattr(doc, "text") else doc.default_text() for doc in docs]
            yield PassageRows(ids, titles, texts, "documents", range(first, first + len(docs)), len(docs))
            first += len(docs)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries and labels of each split."""
        del problems
        for split, entry in self._splits.items():
            for line, query in enumerate(entry.queries_iter(), 1):
                yield Query(query.query_id, query.default_text(), [], None, f"{split} queries", line)
            for line, label in enumerate(entry.qrels_iter(), 1):
                relevance = int(label.relevance)
                if abs(relevance) > HIGHEST_RELEVANCE:
                    raise UserError(f"{self.name}: a label for {split} is above {HIGHEST_RELEVANCE:,}: use other data")
                yield Label(label.query_id, label.doc_id, relevance, split, f"{split} qrels", line)

    def digest(self) -> str:
        """Hex digest of the id; the catalogue pins the contents by digests."""
        return digest_of({"id": self._id, **self.facts})


def _load(package: Any, identity: str) -> Any:
    try:
        return package.load(identity)
    except KeyError:
        return None
