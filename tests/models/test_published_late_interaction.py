"""Published late interaction scores as sentence-transformers' MultiVectorEncoder does, or is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import write_first_run
from published_rerankers import LATE_LAYOUTS, change, write_late_interaction
from safetensors.torch import load_file, save_file

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.check import check_models
from gnn_encoder.models.published_late_interaction import published_late_interaction
from gnn_encoder.retrieval.scorers import LateInteractionScorer, load_scorer, save_scorer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS

QUERY = np.repeat(np.arange(60, 64), 5)
PASSAGE = np.random.default_rng(0).integers(0, 100, len(QUERY))


def by_library(folder: Path, data: Dataset) -> np.ndarray:
    from sentence_transformers import MultiVectorEncoder

    model, scores = MultiVectorEncoder(str(folder), device="cpu"), []
    texts = data.passages.take(PASSAGE).full_texts()
    for query, passage in zip(data.query_texts(QUERY), texts, strict=True):
        vectors = model.encode_query([query]), model.encode_document([passage])
        scores.append(float(model.similarity(*vectors)))
    return np.array(scores)


@pytest.mark.parametrize("layout", LATE_LAYOUTS)
def test_scores_are_the_librarys_also_after_saving(layout: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    folder = write_late_interaction(tmp_path / "published", layout)
    model, expected = published_late_interaction(str(folder)), by_library(folder, tiny_dataset)
    assert (model.layout.query_length, model.layout.passage_length, model.width) == (20, 40, 16)
    save_scorer("colbert", model, tmp_path / "saved")
    again = load_scorer(tmp_path / "saved")
    assert isinstance(again, LateInteractionScorer) and again.model.layout == model.layout
    for scorer in (LateInteractionScorer(model), again):
        scores = scorer.score(tiny_dataset, QUERY, PASSAGE, precision="fp32")
        # Passages' vectors are stored in fp16.
        np.testing.assert_allclose(scores, expected, atol=20 * 2**-11)
    assert expected.std() > 0.05
    other = model.layout.markers or (0, 0)
    model.markers = other[::-1]  # control
    swapped = LateInteractionScorer(model).score(tiny_dataset, QUERY, PASSAGE, precision="fp32")
    assert np.abs(swapped - expected).max() > 0.05


def test_without_expansion_queries_are_scored_by_their_own_tokens(tiny_dataset: Dataset, tmp_path: Path) -> None:
    folder = write_late_interaction(tmp_path, "pylate", do_query_expansion=False)
    model = published_late_interaction(str(folder))
    assert not model.layout.expand_queries
    scores = LateInteractionScorer(model).score(tiny_dataset, QUERY, PASSAGE, precision="fp32")
    np.testing.assert_allclose(scores, by_library(folder, tiny_dataset), atol=20 * 2**-11)


def test_a_step_takes_it_as_it_is_or_trains_it_further(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = write_late_interaction(tmp_path / "published", "stanford")
    inputs = {"dataset": tiny_dataset.path, "first_run": write_first_run(tiny_dataset, tmp_path / "run")}
    values = {"kind": "colbert", "published": str(folder), "precision": "fp32", "dev_queries": 20}
    train_reranker(TrainReranker.model_validate(values), **inputs, reranker=tmp_path / "plain")
    assert 0 < read_manifest(tmp_path / "plain").metrics["dev/reranked_AP"] < 1
    more = {"train_published": True, "epochs": 1, "learning_rate": 1e-3, "batch_size": 24}
    train_reranker(TrainReranker.model_validate(values | more), **inputs, reranker=tmp_path / "further")
    published = load_file(folder / "model.safetensors")["linear.weight"]
    moved = {
        name: (load_file(tmp_path / name / "projection.safetensors")["weight"] - published).abs().max()
        for name in ("plain", "further")
    }
    assert moved["plain"] == 0 < moved["further"] < 0.05


def _another_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"context.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})


def _bias(folder: Path) -> None:
    change(folder / "1_Dense" / "config.json", bias=True)
    weights = load_file(folder / "1_Dense" / "model.safetensors")
    save_file(weights | {"linear.bias": torch.ones(16)}, folder / "1_Dense" / "model.safetensors")


def _two_maps(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules, {**modules[1], "idx": 2, "name": "2"}]))


def _pickled_map(folder: Path) -> None:
    map_folder = folder / "1_Dense"
    torch.save(load_file(map_folder / "model.safetensors"), map_folder / "pytorch_model.bin")
    (map_folder / "model.safetensors").unlink()


SETTINGS = "config_sentence_transformers.json"
REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "filled up on the left": (
        "stanford",
        lambda f: change(f / "tokenizer_config.json", padding_side="left"),
        "are not those of sentence-transformers",
    ),
    "other weights": ("stanford", _another_weight, "does not read its weights context.weight"),
    "an encoder of texts": ("stanford", lambda f: change(f / "config.json", architectures=["BertModel"]), "no modules"),
    "bias": ("pylate", _bias, "has a bias or an activation"),
    "two maps": ("pylate", _two_maps, "has Transformer, Dense, Dense, and not"),
    "pickled map": ("pylate", _pickled_map, "its 1_Dense has no model.safetensors"),
    "prompt": ("pylate", lambda f: change(f / SETTINGS, query_prefix="what is "), "is not one token"),
    "unknown key": ("pylate", lambda f: change(f / SETTINGS, pool_factor=2), "sets pool_factor to '2'"),
    "similarity": ("pylate", lambda f: change(f / SETTINGS, similarity_fn_name="meanmaxsim"), "compares by meanmaxsim"),
    "own code": ("pylate", lambda f: change(f / "config.json", auto_map={"AutoModel": "x.Y"}), "auto_map"),
}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    models = tmp_path_factory.mktemp("accepted")
    folders = {layout: write_late_interaction(models / layout, layout) for layout in ("pylate", "stanford")}
    check_models(_node(folder) for folder in folders.values())
    return folders


def _node(folder: Path) -> Node:
    return Node("train_reranker", TrainReranker(kind="colbert", published=str(folder)), {}, "x")


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_read_otherwise_is_refused_before_a_run(
    case: str, accepted: dict[str, Path], tmp_path: Path
) -> None:
    layout, spoil, words = REFUSED[case]
    folder = shutil.copytree(accepted[layout], tmp_path / "model")
    node = _node(folder)
    spoil(folder)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        check_models([node])
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
