"""The tiny dataset as a BEIR folder, for the climbs of a module."""

from pathlib import Path

import pytest
from trained_root import write_beir

from gnn_encoder.artifacts import Dataset


@pytest.fixture(scope="module")
def data(tiny_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tiny_dataset, tmp_path_factory.mktemp("beir") / "data")
