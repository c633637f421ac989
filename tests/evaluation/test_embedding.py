"""The vectors of queries that a run's steps share are those that their encoder gives, and what their first components
are worth."""

from pathlib import Path

import numpy as np
import pytest
from published_folders import publish, write_transformer
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.embedding import figures_by_dimension, vectors_of_queries
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.steps.encode import encode


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


@pytest.mark.parametrize("normalize", [True, False])
def test_first_components_as_sentence_transformers_cuts_them(
    tiny_dataset: Dataset, tmp_path: Path, normalize: bool
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize

    function, other, more = ("cosine", "dot", [Normalize()]) if normalize else ("dot", "cosine", [])
    raw = write_transformer(tmp_path / "raw")
    folder = publish(raw, tmp_path / "published", "mean", more=more, similarity_fn_name=function)
    lengths = {"query_length": 24, "passage_length": 24, "precision": "fp32", "vector_type": "fp32"}
    outputs = {name: tmp_path / name for name in ("dual_encoder", "passage_vectors")}
    encode(Encode.model_validate({"encoder": str(folder), **lengths}), dataset=tiny_dataset.path, **outputs)
    table = figures_by_dimension(outputs["passage_vectors"], tiny_dataset, (4, 32, 12), "RR@10")
    assert [(row["dimension"], row["megabytes"]) for row in table] == [(d, 100 * 4 * d / 1e6) for d in (32, 12, 4)]

    texts = tiny_dataset.passages.take(np.arange(100)).full_texts()

    def mean(split: str, dimension: int, function: str) -> float:
        model = SentenceTransformer(str(folder), device="cpu", truncate_dim=dimension, similarity_fn_name=function)
        labels = tiny_dataset.judged(split)
        queries = model.encode(tiny_dataset.query_texts(labels.query), show_progress_bar=False)
        scores = model.similarity(queries, model.encode(texts, show_progress_bar=False)).numpy()
        ranks = 1 + (scores > scores[np.arange(len(scores)), labels.passage][:, None]).sum(1)
        return float(np.where(ranks <= 10, 1 / ranks, 0).mean())

    for row in table:
        expected = {split: mean(split, row["dimension"], function) for split in ("dev", "test")}
        assert row["means"] == pytest.approx(expected)
    assert table[2]["means"]["test"] != pytest.approx(mean("test", 4, other)), "another similarity would be seen"
