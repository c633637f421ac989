"""Bundles to open and to serve."""

from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import Lexical


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> dict[str, Path]:
    """The bundle of one run, as the run recommends it: by vectors, by both, by words; and one without BM25."""
    folder = tmp_path_factory.mktemp("retriever")
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling="mean", max_length=32)
    vectors = np.empty((len(tiny_dataset.passages), encoder.width), np.float32)
    encode_passages(encoder, tiny_dataset.passages, vectors, precision="fp32")
    for name, bm25 in (("vectors", Bm25.build(tiny_dataset.passages, Lexical())), ("without", None)):
        with drafting(folder / name, "bundle") as draft:
            fill_bundle(draft, vectors, tiny_dataset, encoder.save, bm25=bm25)
    for name, weight in (("both", 0.3), ("words", 0.0)):
        with drafting(folder / name, "bundle") as draft:
            Bundle.read(folder / "vectors").serve(draft, Serving(f"BM25 + {name}", weight, "dev"))
    return {path.name: path for path in folder.iterdir()}
