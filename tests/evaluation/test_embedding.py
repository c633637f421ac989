"""The vectors of queries that a run's steps share are those that their encoder gives."""

from pathlib import Path

import numpy as np
import pytest
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.graph import BuildGraph


@pytest.fixture(scope="module")
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    build = BuildGraph(neighbors=3, retrieved=5, precision="fp32")
    return write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path_factory.mktemp("given"), build)


def test_they_are_those_of_the_encoder(tiny_dataset: Dataset, inputs: dict[str, Path]) -> None:
    evaluated = evaluated_queries(tiny_dataset)
    rows = np.concatenate([evaluated[::-1], tiny_dataset.query_rows("train")[::2]])
    encoder = DualEncoder.load(inputs["dual_encoder"]).query_encoder
    expected = encode_texts(encoder, tiny_dataset.query_texts(rows), precision="fp32")
    np.testing.assert_array_equal(vectors_of_queries(inputs["passage_vectors"], tiny_dataset, rows), expected)
    assert not np.array_equal(expected, expected[::-1]), "another order would be seen"


def test_another_query_is_an_error(tiny_dataset: Dataset, inputs: dict[str, Path]) -> None:
    known = np.union1d(evaluated_queries(tiny_dataset), tiny_dataset.query_rows("train"))
    row = len(tiny_dataset.queries)
    with pytest.raises(ValueError, match=f"has no vector of query row {row}"):
        vectors_of_queries(inputs["passage_vectors"], tiny_dataset, np.append(known, row))
