"""MaxSim re-ranking against sentence-transformers' MultiVectorEncoder: same token vectors and candidates, in one run.

By default both sides read random vectors in ObliQA's shape: 2,786 test queries with 1,000 candidates each, of 13,012
passages with 67 tokens on average. With `--dataset`, a folder of data in any layout, they read its test queries, BM25's
first hits and MiniLM's token outputs behind a random linear map.

gnn-encoder scores all pairs. The peer needs the same time for each query, so it scores every `--every`th query, or, a
passage at a time, every `--every`th passage; the table has pairs per second. The floor is the time of the matrix
products alone at the matrix rate measured in the same run.

    python benchmarks/max_similarity.py [--every 20] [--rounds 3] [--queries 2786] [--passages 13012] [--depth 1000]
                                        [--dataset FOLDER]
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_turns, matmul_rate, options, show

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.inference.late_interaction import TokenVectors, encode_passages, encode_queries, max_similarities
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout

QUERY_LENGTH, WIDTH = 32, 128
Inputs = tuple[np.ndarray, TokenVectors, np.ndarray, np.ndarray]
"""Query vectors [n, l, d], passage vectors, and the query and passage [r] of each pair, ascending by query."""


def random_inputs(queries: int, passages: int, depth: int) -> Inputs:
    """Random unit vectors, and `depth` candidates of each query by chance."""
    generator = np.random.default_rng(0)

    def unit(*shape: int) -> np.ndarray:
        vectors = generator.standard_normal(shape, np.float32)
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors

    lengths = np.clip(generator.gamma(2.4, 28.0, passages), 4, 180).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    passage = np.stack([generator.permutation(passages)[:depth] for _ in range(queries)])
    values = unit(int(offsets[-1]), WIDTH).astype(np.float16)
    asked = unit(queries, QUERY_LENGTH, WIDTH)
    return asked, TokenVectors(values, offsets), np.repeat(np.arange(queries), passage.shape[1]), passage.ravel()


def inputs_of(source: str) -> Inputs:
    """Test queries, passages and BM25's first hits of a folder of data."""
    from gnn_encoder.settings.bm25 import IndexBm25
    from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
    from gnn_encoder.steps.bm25_retrieve import bm25_retrieve
    from gnn_encoder.steps.index_bm25 import index_bm25
    from gnn_encoder.steps.ingest import ingest

    with tempfile.TemporaryDirectory() as folder:
        dataset, index, hits = (Path(folder) / name for name in ("dataset", "bm25_index", "run"))
        ingest(Ingest(dataset=source), dataset=dataset)
        index_bm25(IndexBm25(), dataset=dataset, bm25_index=index)
        bm25_retrieve(Bm25Retrieve(), dataset=dataset, bm25_index=index, bm25_run=hits)
        data = Dataset(dataset)
        rows = data.query_rows("test")
        run = Run.read(hits).of(rows)
        torch.manual_seed(0)
        model = LateInteraction.from_backbone("minilm", LateInteractionLayout())
        queries = encode_queries(model, data.query_texts(rows), "auto")
        passages = encode_passages(model, data.passages, np.arange(len(data.passages)))
        return queries, passages, np.searchsorted(rows, run.query), run.passage.astype(np.int64)


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio to the peer's fastest side."""
    o = options(__doc__, arguments, every=20, rounds=3, queries=2786, passages=13_012, depth=1000, dataset=None)
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize

    inputs = inputs_of(o.dataset) if o.dataset else random_inputs(o.queries, o.passages, o.depth)
    queries, passages, query, passage = inputs
    lengths = np.diff(passages.offsets)
    where = device()
    peer = MultiVectorEncoder(modules=[Normalize()], device=str(where))  # only its scoring is used
    asked, answering = (torch.from_numpy(np.asarray(x)).to(where).float() for x in (queries, passages.values))
    documents = [answering[a:b] for a, b in zip(passages.offsets[:-1], passages.offsets[1:], strict=True)]
    rows = np.arange(0, len(queries), o.every)
    pairs_of = [np.flatnonzero(query == row) for row in rows]
    shorter_first = [pairs[np.argsort(lengths[passage[pairs]], kind="stable")] for pairs in pairs_of]
    some = np.arange(0, len(lengths), o.every)
    asking = [np.flatnonzero(passage == row) for row in some]

    def by_query(lists: list[np.ndarray], **settings: Any) -> np.ndarray:
        """Scores [r]; 0 for the pairs that are not in `lists`."""
        scores = np.zeros(len(query), np.float32)
        for row, pairs in zip(rows, lists, strict=True):
            candidates = [documents[number] for number in passage[pairs]]
            scores[pairs] = peer.similarity(asked[row, None], candidates, **settings)[0].cpu().numpy()
        return scores

    def by_passage() -> None:
        for row, pairs in zip(some, asking, strict=True):
            peer.similarity(asked[torch.from_numpy(query[pairs])], documents[row][None], chunk_elements=1_000_000).cpu()

    default, ours = "sentence-transformers, default", "gnn-encoder"
    sides: dict[str, tuple[Callable[[], Any], int]] = {
        default: (lambda: by_query(pairs_of), sum(map(len, pairs_of))),
        "sentence-transformers, shorter passages first, chunks of 300,000": (
            lambda: by_query(shorter_first, chunk_elements=300_000),
            sum(map(len, pairs_of)),
        ),
        "sentence-transformers, called with all queries of a passage": (by_passage, sum(map(len, asking))),
        ours: (lambda: max_similarities(*inputs), len(query)),
    }
    with torch.inference_mode():
        seconds, results = in_turns({name: side for name, (side, _) in sides.items()}, o.rounds, o.seconds)
    flops = 2 * queries.shape[1] * queries.shape[2] * lengths[passage].mean()
    floor = flops / matmul_rate(84, queries.shape[2], 64 * queries.shape[1])
    rates = {name: count / seconds[name] for name, (_, count) in sides.items()}
    table = [(name, f"{r:,.0f}", f"{r / rates[default]:.2f}", f"{floor * r:.0%}") for name, r in rates.items()]
    found = [(results[ours][pairs], results[default][pairs]) for pairs in pairs_of]
    orders = [(np.argsort(-own, kind="stable"), np.argsort(-other, kind="stable")) for own, other in found]
    same = np.mean([np.array_equal(*each) for each in orders])
    swapped = max(float(np.diff(other[own]).max()) for (own, _), (_, other) in zip(orders, found, strict=True))
    title = (
        f"{len(query):,} pairs of {len(queries):,} queries and {len(lengths):,} passages, "
        f"{lengths[passage].mean():.0f} tokens a candidate"
    )
    caption = (
        f"Same order in {same:.1%} of {len(rows)} queries; passages in another order differ by at most {swapped:.0e}."
    )
    show(title, ("side", "pairs/s (median)", "ratio", "of the matrix rate"), table, caption)
    return rates.pop(ours) / max(rates.values())


if __name__ == "__main__":
    main()
