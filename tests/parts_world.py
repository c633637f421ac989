"""Random passages and labelled training queries, with the parts that score them."""

from functools import partial
from pathlib import Path

import numpy as np
from labelled import unit

from gnn_encoder.artifacts import DatasetWriter, PassageTable, drafting
from gnn_encoder.artifacts.labelled_queries import LabelledQueries
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.adapter import Moments
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.label_field import LabelField
from gnn_encoder.retrieval.parts import Parts
from gnn_encoder.settings.bm25 import IndexBm25

M, N, D, SOME = 300, 120, 12, 9
KIND = IndexBm25(stemmer="none", stopwords="none")
WORDS = [f"w{number}" for number in range(80)]


class World:
    """Random passages and training queries; each query is labelled with one or two random passages."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.passages, self.queries = unit(generator.normal(size=(M, D))), unit(generator.normal(size=(N, D)))
        self.passage_texts, self.texts = random_texts(generator, M), random_texts(generator, N)
        self.query = np.concatenate([np.arange(N), np.arange(0, N, 3)])
        self.passage = generator.integers(M, size=len(self.query))
        self.labels = LabelledQueries.grouped(self.query, self.passage, M, self.queries)
        self.pulls = 0.2 * unit(generator.normal(size=(N, D)))
        self.moments = self.moments_of(np.ones(len(self.query), bool))
        with drafting(folder / f"dataset{len(list(folder.iterdir()))}", "dataset") as draft:
            writer = DatasetWriter(draft)
            writer.passages([f"p{i}" for i in range(M)], [""] * M, self.passage_texts)
            writer.close()
        self.table = PassageTable(draft.target / CORPUS)

    def moments_of(self, pairs: np.ndarray) -> Moments:
        query, passage = self.query[pairs], self.passage[pairs]
        return Moments.of_pairs(self.queries, query, self.passages, passage, pulls=self.pulls)

    def texts_at(self, rows: np.ndarray) -> list[str]:
        return [self.texts[row] for row in rows.tolist()]

    def parts(self) -> Parts:
        words = Bm25.build(self.table, KIND)
        return Parts(
            vectors=self.passages.astype(np.float16),
            search=partial(exact.search, self.passages.astype(np.float16)),
            words=words,
            passages=self.table,
            labels=self.labels,
            texts=self.texts_at,
            field=LabelField.build(words, self.table, self.labels, self.texts_at),
            adapter=self.moments.adapter(1.0),
            lengths=np.log1p([len(text) for text in self.passage_texts]).astype(np.float32),
            pulls=self.pulls,
        )


def random_texts(generator: np.random.Generator, count: int) -> list[str]:
    return [" ".join(generator.choice(WORDS, size=generator.integers(2, 9))) for _ in range(count)]
