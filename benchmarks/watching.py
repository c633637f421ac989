"""How soon a shifted log of questions is noticed, how often an unchanged one alarms, and what a stated risk is worth.

Reads the vectors of finished runs of several data sets by one encoder; nothing is encoded. The questions of a data set
are its dev and test queries (`--held SET=dev` where the test queries are of another kind). They are cut by chance,
again and again, into queries that calibrate and queries that stand for questions to come.

    python benchmarks/watching.py scifact=ROOT obliqa=ROOT medquad=ROOT --held medquad=dev [--times 1000]

Watching, as `watch` does it: logs of 200 later queries, and of 100 and 100 queries of another set. No answer, as
`min_confidence` does it: the share of wrong first hits at a stated risk of 10 %, by the vectors and by BM25.
"""

import argparse
from pathlib import Path

import numpy as np
from common import show

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.artifacts.arrays import QUERIES, read_rows, read_scored
from gnn_encoder.artifacts.calibration import TRAINING, FirstHits
from gnn_encoder.evaluation.collected import SPLITS
from gnn_encoder.evaluation.confidence import answered, threshold
from gnn_encoder.evaluation.drift import ONE_IN, capital, p_values
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.evaluation.shift import nearest
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.serving.watching import DEV

LOG, FOREIGN, FIRST, RISK = 200, 500, 100, 0.1
"""Questions of a log; another set's questions; dev queries of the smallest calibration; the stated risk."""


class Held:
    """A data set's training queries, and its later queries with their first hits by vectors and by BM25."""

    def __init__(self, root: Path, splits: tuple[str, ...]) -> None:
        data, self.folder = Dataset(root / "latest/dataset"), root / "latest/passage_vectors"
        self.training = np.array(read_rows(self.folder, QUERIES), np.float32)
        self.scored = read_scored(self.folder)
        parts = {split: labelled_queries(data.judged(split)) for split in splits}
        self.dev = len(parts.get("dev", ()))
        rows = np.concatenate(list(parts.values()))
        self.vectors = vectors_of_queries(self.folder, data, rows)
        self.score, passages = self.first(self.vectors)
        ones = np.ones(len(rows), np.int32)
        self.hits = {}
        bm25 = Bm25.load(root / "latest/bundle/bm25")
        scores, words = bm25.search(data.query_texts(rows), 1)
        for name, score, passage in (("vectors", self.score, passages), ("BM25", scores[:, 0], words[:, 0])):
            run, by_split = Run(rows.astype(np.int32), passage.astype(np.int32), ones, score.astype(np.float32)), []
            for split, of in parts.items():
                by_split.append(FirstHits.of(run.where(np.isin(run.query, of)), of, data.judged(split)))
            self.hits[name] = FirstHits(
                *(np.concatenate([getattr(one, f) for one in by_split]) for f in ("score", "wrong"))
            )

    def first(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first hits' scores [n] and passages [n]."""
        scores, passages = best_vectors.search(*self.scored, vectors, 1)
        return scores[:, 0], passages[:, 0]


def moments_of(dev: list[list[np.ndarray]], logs: list[list[np.ndarray]]) -> np.ndarray:
    """Returns the question [logs] at which each log alarms by one of its figures, from 1; infinity: never."""
    p = [
        [p_values(d, x, seed) for d, x in zip(*pair, strict=True)]
        for seed, pair in enumerate(zip(dev, logs, strict=True))
    ]
    reached = np.any(capital(np.array(p)) >= ONE_IN * len(logs[0]), axis=1)
    return np.where(np.any(reached, axis=1), reached.argmax(axis=1) + 1.0, np.inf)


def watching(sets: dict[str, Held], times: int) -> None:
    """Prints the share of logs that alarm, and when."""
    generator, table = np.random.default_rng(0), []
    for name, held in sets.items():
        support = held.training[generator.permutation(len(held.training))[:TRAINING]]
        near = nearest(support, held.vectors)
        for other in (name, *(one for one in sets if one != name)):
            foreign = sets[other].vectors
            foreign = foreign[generator.permutation(len(foreign))[:FOREIGN]]
            of_foreign, dev, logs = (nearest(support, foreign), held.first(foreign)[0]), [], []
            for _ in range(times):
                order = generator.permutation(len(held.vectors))
                size = min(DEV, len(order) - LOG)
                before, later = order[:size], order[size : size + LOG]
                numbers = [near[later], held.score[later]]
                if other != name:
                    mixed, chosen = generator.permutation(LOG) < LOG // 2, generator.integers(len(foreign), size=LOG)
                    pairs = zip(of_foreign, numbers, strict=True)
                    numbers = [np.where(mixed, values[chosen], known) for values, known in pairs]
                dev.append([near[before], held.score[before]])
                logs.append(numbers)
            moments = moments_of(dev, logs)
            alarms = np.isfinite(moments).mean()
            when = [f"{np.quantile(moments, q):.0f}" if alarms >= q else "-" for q in (0.5, 0.99)]
            table.append([name, "unchanged" if other == name else f"half of {other}", f"{alarms:.1%}", *when])
    show(f"Alarms of {times:,} logs of {LOG} questions", ["set", "log", "alarm", "median question", "99 %"], table)


def no_answer(sets: dict[str, Held], times: int) -> None:
    """Prints the share of wrong answers of later queries at the stated risk, and the coverage."""
    generator, table = np.random.default_rng(0), []
    for name, held in sets.items():
        for system, hits in held.hits.items():
            for size in sorted({FIRST, held.dev if 0 < held.dev < len(hits.score) else FIRST, len(hits.score) // 2}):
                shares = []
                for _ in range(times):
                    order = generator.permutation(len(hits.score))
                    dev, later = (
                        FirstHits(hits.score[rows], hits.wrong[rows]) for rows in (order[:size], order[size:])
                    )
                    shares.append(answered(later, threshold(dev, RISK)))
                coverage, wrong, of_answered = np.mean(shares, axis=0)
                low, high = np.quantile([share.wrong for share in shares], [0.05, 0.95])
                row = [f"{wrong:.1%}", f"{low:.1%} to {high:.1%}", f"{coverage:.1%}", f"{of_answered:.1%}"]
                table.append([name, system, f"{size:,}", *row, f"{hits.wrong.mean():.1%}"])
    title = f"Wrong answers at a stated risk of {RISK:.0%}, {times:,} cuts"
    headings = ["set", "by", "dev queries", "wrong of all", "90 % of cuts", "answered", "wrong of these", "all shown"]
    show(title, headings, table)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET=ROOT")
    parser.add_argument("--held", nargs="*", default=[], metavar="SET=SPLIT", help="split of the later queries")
    parser.add_argument("--times", type=int, default=1000)
    o = parser.parse_args()
    splits = {name: (split,) for name, _, split in (text.partition("=") for text in o.held)}
    roots = {name: Path(root) for name, _, root in (text.partition("=") for text in o.sets)}
    sets = {name: Held(root, splits.get(name, SPLITS)) for name, root in roots.items()}
    no_answer(sets, o.times)
    watching(sets, o.times)


if __name__ == "__main__":
    main()
