"""BM25 with labels: a passage has the texts of its labelled training queries, too.

Where needs recur, the words of an earlier question find its answer, although the passage has other words. The labelled
passages are indexed again, each with its labelled queries, a distinct text once, as if they stood in BM25's index of
all passages: the statistics (idf and the mean length) are that index's. So the passages without a label need no second
index, and labels that are added or left out change the texts of their passages at once, and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Passages, PassageTable
from gnn_encoder.artifacts.labelled_queries import LabelledQueries
from gnn_encoder.retrieval.bm25 import Bm25

PASSAGES = "passages.npy"
PAIRS_READ = 50_000
"""Passages and labels whose texts are in memory at a time; more if one passage has more."""
TextsAt = Callable[[np.ndarray], Sequence[str]]
"""Rows [e] of training queries → their texts."""


@dataclass(frozen=True)
class LabelField:
    """Indexes over the passages [c] of each layer, ascending, with their labelled queries; a later layer counts."""

    layers: tuple[tuple[Bm25, np.ndarray], ...]

    @classmethod
    def build(cls, words: Bm25, passages: PassageTable, labels: LabelledQueries, texts: TextsAt) -> "LabelField":
        """Indexes the labelled passages; `words` is the index of all passages."""
        return cls(()).changed(words, passages, labels, texts, labels.passages)

    @classmethod
    def read(cls, folder: Path) -> "LabelField":
        """Opens what `write` wrote."""
        return cls(((Bm25.load(folder), np.load(folder / PASSAGES, mmap_mode="r")),))

    def write(self, folder: Path) -> None:
        """Writes the first layer into a folder, which must not exist."""
        folder.mkdir()
        index, passages = self.layers[0]
        index.save(folder)
        np.save(folder / PASSAGES, passages, allow_pickle=False)

    def changed(
        self, words: Bm25, passages: PassageTable, labels: LabelledQueries, texts: TextsAt, rows: np.ndarray
    ) -> "LabelField":
        """Returns the field in which the passages at `rows`, ascending, have the labelled queries of `labels`."""

        def batches() -> Iterator[tuple[Passages, list[str]]]:
            starts, stops = labels.by_passage.bounds(rows)
            pairs = np.cumsum(stops - starts + 1)
            for some in np.split(rows, np.flatnonzero(np.diff(pairs // PAIRS_READ)) + 1):
                yield passages.take(some), list(documents(labels, texts, some))

        index = words.beside(batches)
        return LabelField((*self.layers, (index, rows.astype(np.int32))))

    def totals(self, queries: Sequence[str], plain: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields each query's scores fp32 [m] of all passages; `plain`: those by their own words."""
        layers = [(index.totals(queries), rows) for index, rows in self.layers]
        for scores in plain:
            expanded = scores.copy()
            for totals, rows in layers:
                of_layer = next(totals)
                expanded[rows] = 0 if of_layer is None else of_layer
            yield expanded


def documents(labels: LabelledQueries, texts: TextsAt, passages: np.ndarray) -> Iterator[str]:
    """Yields the distinct texts of the labelled queries of each of `passages`, joined."""
    owner, query = labels.by_passage.into(passages)
    of, bounds = texts(query), np.searchsorted(owner, np.arange(len(passages) + 1))
    for first, last in pairwise(bounds.tolist()):
        yield "\n".join(dict.fromkeys(of[first:last]))
