"""Edge features as they are written and as the GNN reads them."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Graph, drafting
from gnn_encoder.query_graph.edge_features import EdgeFeatures, EdgeFeatureWriter


def written(folder: Path, vectors: np.ndarray, kind: str) -> Graph:
    n, k, _ = vectors.shape
    edges = np.arange(n * k, dtype=np.int32).reshape(n, k)
    labelled = edges % 3 == 0
    with drafting(folder / kind, "graph") as draft:
        writer = EdgeFeatureWriter(draft, vectors.shape, kind)
        for places in (np.arange(0, n * k, 2), np.arange(1, n * k, 2)):
            writer.put(places, vectors.reshape(n * k, -1)[places])
        writer.flush()
        Graph.write_structure(draft, np.arange(n, dtype=np.int32), edges, labelled, edges, n * k)
    return Graph.read(folder / kind)


def test_eight_bits_with_a_scale_per_edge(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = (generator.standard_normal((6, 4, 16)) * generator.lognormal(0, 3, (6, 4, 1))).astype(np.float16)
    vectors[2, 1] = 0
    half, byte = (EdgeFeatures(written(tmp_path, vectors, kind)) for kind in ("fp16", "int8"))
    assert byte.graph.features is not None and byte.graph.features.dtype == np.int8 and half.graph.scales is None
    assert byte.width == half.width == 17
    exact, decoded = half.of_queries(np.arange(6)), byte.of_queries(slice(0, 6))
    assert exact is not None and decoded is not None
    assert np.array_equal(exact[..., :16], vectors.astype(np.float32)) and np.array_equal(
        exact[..., 16], decoded[..., 16]
    )
    step = np.abs(exact[..., :16]).max(axis=-1, keepdims=True) / 127
    error = np.abs(decoded - exact)[..., :16]
    assert (error <= 0.501 * step).all() and (error > 0.2 * step).any()
    positions = np.array([23, 0, 9])
    assert np.array_equal(byte.of_edges(positions), decoded.reshape(24, 17)[positions])
    # What was once rounded stays as it is: an update copies, and loses nothing by it.
    again = EdgeFeatures(written(tmp_path / "again", decoded[..., :16], "int8"))
    assert np.array_equal(again.graph.features, byte.graph.features)
