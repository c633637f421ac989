"""Which passage vectors flow into the queries when the corpus is encoded (eq. 6)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_graph import ROUNDED, encode, write_models

from gnn_encoder.artifacts import Bundle, Dataset, Encoding, Graph, drafting, read_vectors
from gnn_encoder.explanation.passages import NEEDED, Sources
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.query_graph.propagation import Propagation


@pytest.mark.parametrize("cached", [True, False])
def test_mde_vectors_or_the_trained_encoders(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, cached: bool
) -> None:
    models = write_models(tmp_path / "models", tiny_backbone)
    joint = GnnEncoder.load(models["gnn_encoder"]).eval()
    joint.gnn.config = joint.gnn.config.model_copy(update={"cached_passages": cached})
    with torch.no_grad():  # as if training had moved it
        for parameter in joint.dual_encoder.passage_encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    with drafting(tmp_path / "trained", "model") as draft:
        joint.save(draft.path)
    out = encode(tiny_dataset.path, {**models, "gnn_encoder": tmp_path / "trained"}, tmp_path / "out")
    encoding, graph = Encoding.read(out / "encoding"), Graph.read(out / "graph")
    stored = {True: read_vectors(out / "passage_vectors"), False: encoding.passages}
    every = np.arange(len(encoding.passages))
    expected = {
        which: Propagation(joint.gnn, graph, encoding.queries, vectors).passages(every, encoding.passages)
        for which, vectors in stored.items()
    }
    of_bundle = Bundle.read(out / "bundle").vectors
    np.testing.assert_allclose(of_bundle, expected[cached], rtol=ROUNDED, atol=1e-5)
    assert np.abs(of_bundle - expected[not cached]).max() > 1e-3
    folders = {"dataset": tiny_dataset.path, "gnn_encoder": tmp_path / "trained"}
    sources = Sources.read({name: folders.get(name, out / name) for name in NEEDED})
    np.testing.assert_array_equal(sources.cached_passages, stored[cached])
