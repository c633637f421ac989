"""Exact search against FAISS called directly, over the same vectors: the cost of reading in chunks and ordering ties,
of fp16 vectors, of vectors in four parts, and of an index `flat_fp16` in one part and in four. The other peers are a
matrix product and `topk` of torch, on a GPU where there is one, and FAISS on the GPU if its package has that. Vectors
are in memory or in a file at the start of each call, and a GPU's time includes their copy; with an index that stays on
the GPU, FAISS is shown, too, but not compared, as our search keeps nothing there.

The floor is the time of the matrix products alone at the matrix rate measured in the same run.

    python benchmarks/search.py [--passages 200000] [--queries 1000] [--k 100] [--width 384] [--rounds 3]
    python benchmarks/search.py --copies 64     # of each vector, on average: most queries have a tie at the cut-off
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import torch
from common import in_turns, matmul_rate, options, ratio, show

from gnn_encoder.artifacts.arrays import JoinedRows
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.index_file import build_index, load_index, search_index
from gnn_encoder.settings.outcome import IndexKind

PARTS = 4
STAYS = "FAISS IndexFlatIP, its vectors on the GPU before"


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio of our search in fp32 to the fastest peer."""
    sizes = {"passages": 200_000, "queries": 1000, "k": 100, "width": 384, "rounds": 3, "copies": 1}
    o = options(__doc__, arguments, **sizes)
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        drawn = generator.standard_normal((o.passages // o.copies, o.width), dtype=np.float32)
        if o.copies > 1:
            drawn = drawn[generator.integers(0, len(drawn), o.passages)]
        asked, flat = generator.standard_normal((o.queries, o.width), dtype=np.float32), faiss.IndexFlatIP(o.width)
        flat.add(drawn)
        sides: dict[str, Callable[[], tuple[np.ndarray, ...]]] = {}
        sides["FAISS IndexFlatIP, in memory"] = lambda: flat.search(asked, o.k)

        def by_torch() -> tuple[np.ndarray, ...]:
            queries, passages = (torch.from_numpy(array).to(device()) for array in (asked, drawn))
            return tuple(part.cpu().numpy() for part in (queries @ passages.T).topk(o.k))

        sides[f"torch, product and topk, on {device().type}"] = by_torch
        if hasattr(faiss, "StandardGpuResources") and device().type == "cuda":
            resources = faiss.StandardGpuResources()
            on_gpu = faiss.index_cpu_to_gpu(resources, 0, flat)
            sides["FAISS knn_gpu"] = lambda: faiss.knn_gpu(
                resources, asked, drawn, o.k, metric=faiss.METRIC_INNER_PRODUCT
            )
            sides[STAYS] = lambda: on_gpu.search(asked, o.k)
        for kind, dtype in (("fp32", np.float32), ("fp16", np.float16)):
            np.save(Path(folder) / f"{kind}.npy", drawn.astype(dtype))
            vectors = np.load(Path(folder) / f"{kind}.npy", mmap_mode="r")
            sides[f"gnn-encoder, {kind}, memory-mapped"] = partial(exact.search, vectors, asked, o.k)
            for number, part in enumerate(np.array_split(drawn.astype(dtype), PARTS)):
                np.save(Path(folder) / f"{kind}.{number}.npy", part)
            parts = [np.load(Path(folder) / f"{kind}.{number}.npy", mmap_mode="r") for number in range(PARTS)]
            sides[f"gnn-encoder, {kind}, in {PARTS} parts"] = partial(exact.search, JoinedRows(parts), asked, o.k)
        for number in (1, PARTS):
            path = Path(folder) / f"{number}.faiss"
            build_index(drawn, path, IndexKind(index="flat_fp16", index_parts=number))
            index = load_index(path, drawn.shape)
            sides[f"gnn-encoder, index flat_fp16, parts: {number}"] = partial(search_index, index, asked, o.k)
        seconds, found = in_turns(sides, o.rounds, o.seconds)
    floor = 2 * o.passages * o.queries * o.width / matmul_rate(o.queries, o.width, 8192)
    peer, slow = next(iter(found.values()))[1], next(iter(seconds.values()))
    rows = []
    for name, taken in seconds.items():
        same = np.mean([len(np.intersect1d(a, b)) / o.k for a, b in zip(peer, found[name][1], strict=True)])
        rows.append((name, f"{taken:.3f}", f"{slow / taken:.2f}", f"{floor / taken:.0%}", f"{same:.4f}"))
    title = f"{o.queries:,} queries over {o.passages:,} × {o.width}, k = {o.k}"
    show(title, ("side", "seconds (median)", "ratio", "of the matrix rate", "hits in common"), rows)
    seconds.pop(STAYS, None)
    fp32 = "gnn-encoder, fp32, memory-mapped"
    return ratio({name: taken for name, taken in seconds.items() if name == fp32 or not name.startswith("gnn-encoder")})


if __name__ == "__main__":
    main()
