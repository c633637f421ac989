"""Edge features: fp32 for the GNN; on disk fp16 or, to halve the bytes read, 8-bit integers with a scale per edge."""

import warnings

import numpy as np
import torch

from gnn_encoder.artifacts import Draft, Graph
from gnn_encoder.artifacts.arrays import eight_bits

# The tensors over memory-mapped arrays are only read here, so torch's warning about them does not apply.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class EdgeFeatureWriter:
    """Writes the edge features [n, k, d_e] of a graph draft, some edges at a time."""

    def __init__(self, draft: Draft, shape: tuple[int, int, int], kind: str) -> None:
        self._features = Graph.create_features(draft, "features", shape, np.int8 if kind == "int8" else np.float16)
        self._scales = Graph.create_features(draft, "scales", shape[:2], np.float32) if kind == "int8" else None

    def put(self, positions: np.ndarray, vectors: np.ndarray) -> None:
        """Write the vectors [e, d_e] of the edges at flat places [e] in [n, k]."""
        flat = self._features.reshape(-1, self._features.shape[-1])
        if self._scales is None:
            flat[positions] = vectors
            return
        flat[positions], self._scales.reshape(-1)[positions] = eight_bits(vectors)

    def flush(self) -> None:
        """Write everything to the disk."""
        self._features.flush()
        if self._scales is not None:
            self._scales.flush()


class EdgeFeatures:
    """Edge features fp32: [CLS] vectors and, if some but not all edges are labelled, a last column.

    The column is 1 for labelled edges and 0 for others.

    `width` is 0 with neither vectors (the ablation "without edge features") nor that column; every
    method then returns None.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.marked = graph.marks_labelled
        self.width = (0 if graph.features is None else graph.features.shape[2]) + int(self.marked)

    def of_edges(self, positions: np.ndarray) -> np.ndarray | None:
        """[e, width] of the edges at flat positions [e]."""
        return self._join(self.vectors(positions), self.graph.labelled.reshape(-1)[positions])

    def vectors(self, positions: np.ndarray) -> np.ndarray | None:
        """Only the [CLS] vectors, [e, d_e], of the edges at flat positions [e]."""
        features, scales = self.graph.features, self.graph.scales
        flat = None if features is None else features.reshape(-1, features.shape[-1])
        return _fp32(flat, positions, None if scales is None else scales.reshape(-1))

    def of_queries(self, nodes: np.ndarray | slice) -> np.ndarray | None:
        """[u, k, width] of all edges of the queries `nodes` [u]."""
        return self._join(_fp32(self.graph.features, nodes, self.graph.scales), self.graph.labelled[nodes])

    def query_loops(self, nodes: np.ndarray | slice) -> np.ndarray | None:
        """[u, width] of the queries' self-loops; None if learned."""
        return self._loops(self.graph.query_loops, nodes)

    def passage_loops(self, passages: np.ndarray) -> np.ndarray | None:
        """[t, width] of the passages' self-loops; None if learned."""
        return self._loops(self.graph.passage_loops, passages)

    def _loops(self, loops: np.ndarray | None, rows: np.ndarray | slice) -> np.ndarray | None:
        vectors = _fp32(loops, rows)
        return None if vectors is None else self._join(vectors, np.zeros(len(vectors), dtype=bool))

    def _join(self, vectors: np.ndarray | None, labelled: np.ndarray) -> np.ndarray | None:
        parts = [] if vectors is None else [vectors]
        if self.marked:
            parts.append(labelled[..., None].astype(np.float32))
        return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0] if parts else None


def _fp32(vectors: np.ndarray | None, rows: np.ndarray | slice, scales: np.ndarray | None = None) -> np.ndarray | None:
    """Converts `vectors[rows]` (fp16, or integers with scales) to fp32; torch converts with SIMD, NumPy does not."""
    if vectors is None:
        return None
    wide = torch.from_numpy(vectors[rows]).float()
    if scales is not None:
        wide *= torch.from_numpy(scales[rows])[..., None]
    return wide.numpy()
