"""Propagation through the GNN: against PyG's GATConv on a graph that fits, and at MS MARCO's size.

    python benchmarks/propagate.py [--rounds 3] [--passages 20000] [--queries 6000]  # against PyG, both sides in turns
    python benchmarks/propagate.py --scale 0.1 --folder F  # a tenth of MS MARCO, synthetic fp16 arrays written to F

MS MARCO (`--scale 1`): 8,841,823 passages, 502,939 queries, k = 25, widths 768, 4 heads. F then holds 34 GB of vectors
and edge features and 14 GB of results. One array serves as M_de's and E_P's vectors. Neighbours are drawn uniformly,
the worst case for caches. The table has two floors: the bytes that a pass must move, divided by the disk's rate for an
uncached file, and the operations of the pass's matrix products, divided by the matrix rate measured here.
"""

import math
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import PeakMemory, in_turns, matmul_rate, options, ratio, show

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.machine.threads import give_back
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn import GNN, GATLayer, GnnConfig
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.settings.outcome import EncodeCorpus

MS_MARCO = {"passages": 8_841_823, "queries": 502_939}
BLOCK = 2**15
"""Rows written at a time."""


def model(width: int, heads: int) -> GNN:
    """A GNN with random weights and gate, on the GPU if there is one."""
    torch.manual_seed(0)
    return GNN(GnnConfig(width=width, edge_width=width, heads=heads)).eval().to(device())


class PygTwin(torch.nn.Module):
    """The same GNN made of PyG's layers, applied to the whole graph, as a user of PyG would write it."""

    def __init__(self, gnn: GNN) -> None:
        super().__init__()
        self.gnn = gnn
        self.query_layer, self.passage_layer = (
            self._twin(layer) for layer in (gnn.query_attention, gnn.passage_attention)
        )

    @staticmethod
    def _twin(layer: GATLayer) -> Any:
        from torch_geometric.nn import GATConv

        d = layer.source.in_features
        assert layer.edge is not None
        twin: Any = GATConv(
            (d, d), d // layer.heads, layer.heads, edge_dim=layer.edge.in_features, add_self_loops=False, bias=False
        )
        with torch.no_grad():
            twin.lin_src.weight.copy_(layer.source.weight)
            twin.lin_dst.weight.copy_(layer.target.weight)
            twin.lin_edge.weight.copy_(layer.edge.weight)
            for part, name in enumerate(("att_dst", "att_src", "att_edge")):
                getattr(twin, name).copy_(layer.attention[part][None])
        return twin

    def forward(self, graph: Graph, h_q: torch.Tensor, h_p: torch.Tensor) -> torch.Tensor:
        """h'_p [m, d] on the device of h_q and h_p; self-loops are edges from extra source nodes."""
        n, k = graph.edges.shape
        m, gnn, where = len(h_p), self.gnn, h_p.device
        every_query, every_passage = torch.arange(n, device=where), torch.arange(m, device=where)
        query = every_query.repeat_interleave(k)
        passage = torch.from_numpy(graph.edges).to(where).long().flatten()
        features = torch.from_numpy(np.asarray(graph.features)).to(where).float().flatten(0, 1)
        to_queries = torch.stack([torch.cat([passage, m + every_query]), torch.cat([query, every_query])])
        loops = torch.cat([features, gnn.query_loop.expand(n, -1)])
        context = self.query_layer((torch.cat([h_p, h_q]), h_q), to_queries, loops)
        queries = gnn.query_merge(torch.cat([context, h_q], dim=1))
        to_passages = torch.stack([torch.cat([query, n + every_passage]), torch.cat([passage, every_passage])])
        loops = torch.cat([features, gnn.passage_loop.expand(m, -1)])
        return gnn.gated(self.passage_layer((torch.cat([queries, h_p]), h_p), to_passages, loops), h_p)


def propagate(gnn: GNN, graph: Graph, h_q: np.ndarray, h_p: np.ndarray, out: np.ndarray) -> tuple[float, float]:
    """Run our side, a million passages at a time into `out`; returns the seconds of the two passes."""
    began = time.perf_counter()
    full = Propagation(gnn, graph, h_q, h_p)
    middle = time.perf_counter()
    for start in range(0, len(out), 10**6):
        full.write(out, np.arange(start, min(start + 10**6, len(out))), h_p, chunk=EncodeCorpus().chunk)
    return middle - began, time.perf_counter() - middle


def against_pyg(n: int, m: int, rounds: int, limit: float) -> float:
    """n queries, m passages, k = 25, width 384, 4 heads; returns the ratio of the speeds."""
    generator = np.random.default_rng(0)
    k, d = 25, 384
    edges = generator.integers(0, m, (n, k), dtype=np.int32)
    features = generator.standard_normal((n, k, d), dtype=np.float32).astype(np.float16)
    graph = Graph(np.arange(n), edges, edges < 0, features, *reverse_csr(edges, m))
    h_q, h_p = (generator.standard_normal((rows, d), dtype=np.float32) for rows in (n, m))
    gnn, out = model(d, 4), np.empty((m, d), np.float32)
    twin = PygTwin(gnn).to(device())
    sides = {
        "PyG GATConv": lambda: twin(graph, *(torch.from_numpy(h).to(device()) for h in (h_q, h_p))).cpu().numpy(),
        "gnn-encoder": lambda: propagate(gnn, graph, h_q, h_p, out),
    }
    with torch.inference_mode():
        seconds, results = in_turns(sides, rounds, limit)
    # Products that no arrangement spares: self projection, gate, queries' attention and merge.
    floor = (2 * d * d * (3 * m + 4 * n) + 2 * 2 * n * k * d * 4 * 2) / matmul_rate(8192, d, d)
    rows = [
        (name, f"{taken:.2f}", f"{seconds['PyG GATConv'] / taken:.1f}", f"{floor / taken:.0%}")
        for name, taken in seconds.items()
    ]
    difference = np.abs(out - results["PyG GATConv"]).max()
    title = f"{m:,} passages, {n * k:,} edges, width {d}, 4 heads; results differ by {difference:.1e} at most"
    show(title, ("side", "seconds (median)", "ratio", "of the matrix rate"), rows)
    return ratio(seconds)


def synthetic(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A memory-mapped fp16 array of random rows, written once. Blocks repeat, which changes no measurement."""
    if not path.is_file():
        partial = path.with_suffix(".partial")
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float16, shape=shape)
        rows = max(1, BLOCK // int(np.prod(shape[1:-1])))
        block = np.random.default_rng(0).standard_normal((rows, *shape[1:]), dtype=np.float32).astype(np.float16)
        for start in range(0, shape[0], rows):
            part = array[start : start + rows]
            part[:] = block[: len(part)]
        array.flush()
        partial.rename(path)
    loaded: np.ndarray = np.load(path, mmap_mode="r")
    return loaded


def read_rate(path: Path) -> float:
    """Bytes/s of reading the first 4 GiB of a file after removing the file from the cache."""
    buffer = bytearray(2**24)
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read, began = 0, time.perf_counter()
        while read < 2**32 and (count := file.readinto(buffer)):
            read += count
    return read / (time.perf_counter() - began)


def at_scale(scale: float, folder: Path) -> None:
    """Both passes over synthetic arrays on disk."""
    m, n, k, d, heads = int(MS_MARCO["passages"] * scale), int(MS_MARCO["queries"] * scale), 25, 768, 4
    folder.mkdir(parents=True, exist_ok=True)
    # 2 bytes a number; the queries' side of the propagation in 4, and the edges' scalars. A full disk ends a process
    # that writes to memory-mapped files without a word.
    needed = 2 * d * (2 * m + n + n * k) + 4 * n * (d + k * (heads + 4))
    written = sum(file.stat().st_size for file in folder.iterdir())
    if needed > written + shutil.disk_usage(folder).free:
        raise SystemExit(f"propagate.py: {folder}: {needed / 1e9:.0f} GB are needed there; free some, or give another")
    h_p = synthetic(folder / f"passages-{m}.npy", (m, d))
    h_q = synthetic(folder / f"queries-{n}.npy", (n, d))
    features = synthetic(folder / f"features-{n}.npy", (n, k, d))
    names = {name: folder / f"{name}-{n}.npy" for name in ("edges", "indptr", "reverse")}
    if not names["reverse"].is_file():
        drawn = np.random.default_rng(1).integers(0, m, (n, k), dtype=np.int32)
        for name, array in zip(names, (drawn, *reverse_csr(drawn, m)), strict=True):
            np.save(names[name], array)
        del drawn, array
    edges, indptr, reverse = (np.load(path, mmap_mode="r") for path in names.values())
    labelled = np.lib.format.open_memmap(folder / f"labelled-{n}.npy", mode="w+", dtype=bool, shape=(n, k))
    graph = Graph(np.arange(n), edges, labelled, features, indptr, reverse)
    out = np.lib.format.open_memmap(folder / f"results-{m}.npy", mode="w+", dtype=np.float16, shape=(m, d))
    rate, disk = matmul_rate(8192, d, d), read_rate(folder / f"features-{n}.npy")
    tempfile.tempdir = str(folder)
    give_back()  # the memory freed after making the arrays
    with PeakMemory() as memory:
        seconds = propagate(model(d, heads), graph, h_q, h_p, out)
    facts = {
        "queries": (seconds[0], features.nbytes + h_p.nbytes + h_q.nbytes, 2 * n * (d * d * 4 + 4 * k * d * heads)),
        "passages": (seconds[1], h_p.nbytes + out.nbytes, 2 * m * d * d * 3),
    }
    rows = [
        (name, f"{taken:.0f}", f"{volume / 1e9:.1f}", f"{volume / disk:.0f} s", f"{flops / rate:.0f} s")
        for name, (taken, volume, flops) in facts.items()
    ]
    title = f"{m:,} passages, {n:,} queries, {n * k:,} edges, width {d}, {heads} heads"
    caption = f"{sum(seconds):.0f} s in all; anonymous memory at most {memory.peak / 2**30:.2f} GiB"
    show(title, ("pass", "seconds", "GB to move", "floor: disk", "floor: products"), rows, caption)


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio to PyG; NaN at scale."""
    folder = Path("propagation-arrays")
    o = options(__doc__, arguments, rounds=3, passages=20_000, queries=6_000, scale=0.0, folder=folder)
    if not o.scale:
        return against_pyg(o.queries, o.passages, o.rounds, o.seconds)
    at_scale(o.scale, o.folder)
    return math.nan


if __name__ == "__main__":
    main()
