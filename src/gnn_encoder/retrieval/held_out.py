"""Fusions that are learnt from dev queries: each dev query is ranked by one that has not seen it.

Else a run's dev figures, by which it chooses, would be those of queries that were learnt from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Run
from gnn_encoder.artifacts.digests import Finder, text_digests
from gnn_encoder.retrieval.learned_fusion import Fusion, read_fusion
from gnn_encoder.retrieval.learned_search import LearnedSearch
from gnn_encoder.retrieval.parts import FEATURES

HELD = "held"
QUERIES, FOLDS = "queries.npy", "folds.npy"


@dataclass(frozen=True)
class HeldOut:
    """The fusions of folds of dev queries, in a bundle's folder `fusion/held/`.

    fusions  fold → the fusion that is learnt from the other folds
    queries  uint64 [n, 2]: digests of the queries' texts
    folds    int64 [n]
    """

    fusions: Mapping[int, Fusion]
    queries: np.ndarray
    folds: np.ndarray

    def write(self, folder: Path) -> None:
        """Writes what `read` reads into the folder of the main fusion."""
        (folder / HELD).mkdir()
        for fold, fusion in self.fusions.items():
            (folder / HELD / str(fold)).mkdir()
            fusion.write(folder / HELD / str(fold), FEATURES)
        np.save(folder / HELD / QUERIES, self.queries, allow_pickle=False)
        np.save(folder / HELD / FOLDS, self.folds, allow_pickle=False)

    @classmethod
    def read(cls, folder: Path) -> "HeldOut | None":
        """Opens the held-out fusions beside a main fusion, if there are some."""
        held = folder / HELD
        if not held.is_dir():
            return None
        queries, folds = (np.load(held / name) for name in (QUERIES, FOLDS))
        return cls(
            {fold: read_fusion(held / str(fold), FEATURES) for fold in np.unique(folds).tolist()}, queries, folds
        )

    def run(
        self,
        search: LearnedSearch,
        queries: np.ndarray,
        questions: Sequence[str],
        vectors: np.ndarray,
        k: int,
        left_out: np.ndarray | None = None,
    ) -> Run:
        """The ranking of queries, as `LearnedSearch.run`; one whose text no fold has is ranked by the main fusion."""
        if not len(queries):
            return search.run(queries, questions, vectors, k, left_out)
        row = Finder(self.queries)(text_digests(questions))
        fold = np.where(row >= 0, self.folds[row], -1)
        runs = []
        for number in np.unique(fold).tolist():
            some = np.flatnonzero(fold == number)
            one = replace(search, fusion=self.fusions.get(number, search.fusion))
            texts = [questions[i] for i in some.tolist()]
            out = None if left_out is None else left_out[some]
            runs.append(one.run(queries[some], texts, vectors[some], k, out))
        run = Run.concatenate(runs)
        return run.where(np.argsort(run.query, kind="stable"))
