"""BM25 through this package against bm25s called directly with the same stemmer, stop words and parameters.

    python benchmarks/bm25.py [--passages 60000] [--queries 1000] [--k 100] [--rounds 3]

Passages of python-docs are repeated with shuffled words up to the count, so that the vocabulary is real.
"""

import argparse
import tempfile
from pathlib import Path

import bm25s
import numpy as np
import Stemmer
from common import documentation, in_turns, show

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25

K1, B = 1.5, 0.75


def corpus(folder: Path, passages: int) -> tuple[Dataset, list[str], list[str]]:
    """A dataset of that many passages, their texts, and the queries."""
    source = Dataset(documentation(folder, 3000))
    texts = source.passages.take(np.arange(len(source.passages))).full_texts()
    generator = np.random.default_rng(0)
    shuffled = [" ".join(generator.permutation(texts[i % len(texts)].split())) for i in range(passages)]
    path = folder / "large"
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        for start in range(0, passages, BATCH):
            some = shuffled[start : start + BATCH]
            writer.passages([str(start + i) for i in range(len(some))], [""] * len(some), some)
        writer.close()
    return Dataset(path), shuffled, source.query_texts(source.query_rows("train"))


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("passages", 60_000), ("queries", 1000), ("k", 100), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, texts, questions = corpus(Path(folder), o.passages)
        questions = questions[: o.queries]
        stemmer = Stemmer.Stemmer("english")

        def peer_index() -> bm25s.BM25:
            index = bm25s.BM25(method="lucene", k1=K1, b=B)
            index.index(bm25s.tokenize(texts, stemmer=stemmer, show_progress=False), show_progress=False)
            return index

        def our_index() -> Bm25:
            return Bm25.build(data.passages, IndexBm25(k1=K1, b=B))

        building, built = in_turns({"bm25s": peer_index, "gnn-encoder": our_index}, o.rounds)
        index, ours = built.values()

        def peer_search() -> np.ndarray:
            tokens = bm25s.tokenize(questions, stemmer=stemmer, show_progress=False)
            return np.asarray(index.retrieve(tokens, k=o.k, show_progress=False).scores)

        sides = {"bm25s": peer_search, "gnn-encoder": lambda: ours.search(questions, o.k)[0]}
        searching, found = in_turns(sides, o.rounds)
    hits = np.where(np.isfinite(found["gnn-encoder"]), found["gnn-encoder"], 0)
    difference = np.abs(hits - found["bm25s"]).max()
    rows = [
        (name, f"{building[name]:.1f}", f"{building['bm25s'] / building[name]:.2f}",
         f"{len(questions) / searching[name]:.0f}", f"{searching['bm25s'] / searching[name]:.2f}")
        for name in building
    ]  # fmt: skip
    title = (
        f"{o.passages:,} passages, {len(questions):,} queries, k = {o.k}; largest difference in score {difference:.0e}"
    )
    show(title, ("side", "index, seconds", "ratio", "queries/s", "ratio"), rows)


if __name__ == "__main__":
    main()
