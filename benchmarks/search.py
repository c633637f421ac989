"""Exact search against FAISS called directly, over the same vectors: the cost of reading in chunks and ordering ties.

The floor is the time of the matrix products alone at the matrix rate measured in the same run.

    python benchmarks/search.py [--passages 200000] [--queries 1000] [--k 100] [--width 384] [--rounds 3]
"""

import argparse
import tempfile
from pathlib import Path

import faiss
import numpy as np
from common import in_turns, matmul_rate, show

from gnn_encoder.retrieval import exact


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("passages", 200_000), ("queries", 1000), ("k", 100), ("width", 384), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        np.save(path, generator.standard_normal((o.passages, o.width), dtype=np.float32))
        vectors, asked = np.load(path, mmap_mode="r"), generator.standard_normal((o.queries, o.width), dtype=np.float32)
        flat = faiss.IndexFlatIP(o.width)
        flat.add(np.ascontiguousarray(vectors))
        sides = {
            "FAISS IndexFlatIP, in memory": lambda: flat.search(asked, o.k),
            "gnn-encoder, memory-mapped": lambda: exact.search(vectors, asked, o.k),
        }
        seconds, found = in_turns(sides, o.rounds)
    floor = 2 * o.passages * o.queries * o.width / matmul_rate(o.queries, o.width, 8192)
    peer, ours = found.values()
    same = np.mean([len(np.intersect1d(a, b)) / o.k for a, b in zip(peer[1], ours[1], strict=True)])
    slow = seconds["FAISS IndexFlatIP, in memory"]
    rows = [(name, f"{t:.2f}", f"{slow / t:.2f}", f"{floor / t:.0%}") for name, t in seconds.items()]
    title = f"{o.queries:,} queries over {o.passages:,} × {o.width}, k = {o.k}; hits in common {same:.4f}"
    show(title, ("side", "seconds (median)", "ratio", "of the matrix rate"), rows)


if __name__ == "__main__":
    main()
