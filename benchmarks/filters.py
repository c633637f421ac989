"""A question with a filter beside the same question without one: each kind of index, BM25, and the sum of both.

Synthetic vectors, texts of random words, and fields of three types: 1 % of the passages have a product, a tenth are of
some days, and each passage is for two of a thousand groups. The time of a question is without its encoding, which a
filter does not change; the time of a filter that was not asked before is in rows of its own.

    python benchmarks/filters.py [--passages 1000000] [--width 384] [--kinds flat,flat_fp16,sq8,ivf] [--rounds 15]
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import in_turns, options, show

from gnn_encoder.artifacts import DatasetWriter, PassageTable, drafting
from gnn_encoder.artifacts.fields import read_fields, write_fields
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.data.fields import FieldColumns
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.filters import Filters, Selection
from gnn_encoder.retrieval.index_file import build_index, load_index
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import ASKED, ranking
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.outcome import IndexKind

K, BATCH, WORDS = 10, 100_000, 20_000
FILTERS: dict[str, dict[str, Any]] = {
    "1 %": {"product": "product 7"},
    "10 %": {"day": {">=": "2026-01-10", "<": "2026-01-13"}},
    "0.02 %, of lists": {
        "product": "product 7",
        "groups": ["group 1", "group 2", *(f"group {i}" for i in range(50, 58))],
    },
}


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the tables, and return the largest ratio of a question with the filter of 1 % to one without."""
    kinds = "flat,flat_fp16,sq8,ivf"
    o = options(__doc__, arguments, passages=1_000_000, width=384, kinds=kinds, rounds=15, lists=1000)
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stored = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float16, (o.passages, o.width))
        for start in range(0, o.passages, BATCH):
            drawn = generator.standard_normal((min(BATCH, o.passages - start), o.width), dtype=np.float32)
            stored[start : start + BATCH] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        stored.flush()
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        filters, bm25 = _filters(generator, folder, o.passages), _bm25(generator, folder, o.passages)
        selections: dict[str, Selection | None] = {"all": None, **{n: filters.select(w) for n, w in FILTERS.items()}}
        indexes = {}
        for kind in o.kinds.split(","):
            how = IndexKind(index=kind, ivf_lists=o.lists)
            build_index(vectors, folder / f"{kind}.faiss", how)
            index = vectors if kind == "flat" else load_index(folder / f"{kind}.faiss", vectors.shape)
            indexes[kind] = PassageIndex(index, vectors)
        sides: dict[str, Callable[[], Any]] = {}
        for part in (*indexes, "BM25", f"BM25 + {next(iter(indexes))}"):
            index, weight = indexes.get(part, next(iter(indexes.values()))), 0.0 if part == "BM25" else 0.5
            for passages, only in selections.items():
                questions = _questions(generator, o.width)
                sides[f"{part}: {passages}"] = partial(
                    _answer, index, bm25, questions, None if part in indexes else weight, only
                )
        seconds, _ = in_turns(sides, o.rounds, o.seconds)
        new = {n: partial(Filters(read_fields(folder, o.passages), o.passages)._mask, w) for n, w in FILTERS.items()}
        of_filters, _ = in_turns(new, o.rounds, o.seconds)
    rows, ratios = [], []
    for side, taken in seconds.items():
        part, passages = side.split(": ")
        ratio = taken / seconds[f"{part}: all"]
        ratios += [ratio] if passages == "1 %" else []
        rows.append((part, passages, f"{1000 * taken:.2f}", f"{ratio:.2f}"))
    show(f"a question over {o.passages:,} × {o.width}, k = {K}", ("part", "passages", "ms (median)", "ratio"), rows)
    rows_of_filters = [(n, f"{len(s.rows):,}", f"{1000 * of_filters[n]:.2f}") for n, s in selections.items() if s]
    show("a filter that was not asked before", ("filter", "passages", "ms (median)"), rows_of_filters)
    return max(ratios)


def _filters(generator: np.random.Generator, folder: Path, passages: int) -> Filters:
    taken = FieldColumns()
    for start in range(0, passages, BATCH):
        count = min(BATCH, passages - start)
        products = [f"product {i}" for i in generator.integers(100, size=count)]
        days = [f"2026-01-{i + 1:02d}" for i in generator.integers(30, size=count)]
        groups = [[f"group {i}", f"group {j}"] for i, j in generator.integers(1000, size=(count, 2))]
        taken.add({"product": pa.array(products), "day": pa.array(days), "groups": pa.array(groups)}, count)
    columns = taken.columns()
    assert columns is not None
    write_fields(folder, columns)
    return Filters(read_fields(folder, passages), passages)


def _bm25(generator: np.random.Generator, folder: Path, passages: int) -> Bm25:
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        for start in range(0, passages, BATCH):
            count = min(BATCH, passages - start)
            texts = [" ".join(words) for words in _words(generator, (count, 12))]
            writer.passages([f"p{start + i}" for i in range(count)], [""] * count, texts)
        writer.close()
    return Bm25.build(PassageTable(draft.target / CORPUS), IndexBm25(stemmer="none", stopwords="none", language="en"))


def _words(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Words by Zipf's law, as in texts."""
    return np.char.add("w", (generator.zipf(1.3, shape) % WORDS).astype(str)).tolist()


def _questions(generator: np.random.Generator, width: int) -> Iterator[tuple[str, np.ndarray]]:
    while True:
        vector = generator.standard_normal((1, width), dtype=np.float32)
        yield " ".join(_words(generator, (6,))), vector / np.linalg.norm(vector)


def _answer(
    index: PassageIndex,
    bm25: Bm25,
    questions: Iterator[tuple[str, np.ndarray]],
    weight: float | None,
    only: Selection | None,
) -> Any:
    question, vector = next(questions)
    return ranking(index, bm25, ASKED, [question], vector, K, weight, only=only)


if __name__ == "__main__":
    main()
