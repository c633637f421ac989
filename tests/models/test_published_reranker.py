"""A published re-ranker scores as sentence-transformers' CrossEncoder does, or is refused by what is not understood."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from published_rerankers import CAUSAL, KINDS, LATE_LAYOUTS, change, write_late_interaction, write_reranker
from safetensors.torch import load_file, save_file

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.check import check_models
from gnn_encoder.models.published_reranker import PublishedReranker
from gnn_encoder.retrieval.scorers import CrossEncoderScorer, PublishedScorer, load_scorer, save_scorer
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.written import SelectQueries

QUERY = np.repeat(np.arange(60, 66), 5)
PASSAGE = np.random.default_rng(0).integers(0, 100, len(QUERY))
IDENTITY = torch.nn.Identity()


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("published") / request.param, request.param)


def pairs(data: Dataset) -> list[tuple[str, str]]:
    return list(zip(data.query_texts(QUERY), data.passages.take(PASSAGE).full_texts(), strict=True))


def by_library(folder: Path, data: Dataset, activation: torch.nn.Module | None = IDENTITY) -> np.ndarray:
    """One pair at a time, so without padding."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu")
    scores: np.ndarray = model.predict(pairs(data), activation_fn=activation, batch_size=1, show_progress_bar=False)
    return scores


def score(scorer: CrossEncoderScorer, data: Dataset, tokens: int = 4096, precision: str = "fp32") -> np.ndarray:
    return scorer.score(data, QUERY, PASSAGE, precision=precision, tokens_per_batch=tokens)


def test_scores_are_the_librarys_in_every_batch_and_after_saving(
    folder: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    scorer, expected = PublishedScorer(PublishedReranker.published(str(folder))), by_library(folder, tiny_dataset)
    assert expected.std() > 0.05
    for tokens in (4096, 100, 1):
        np.testing.assert_allclose(score(scorer, tiny_dataset, tokens), expected, atol=1e-5)
    # Published without a word about an activation, so their logistic function is.
    probabilities = scorer.probability(score(scorer, tiny_dataset))
    np.testing.assert_allclose(probabilities, by_library(folder, tiny_dataset, None), atol=1e-5)
    save_scorer("published", scorer.model, tmp_path / "saved")
    again = load_scorer(tmp_path / "saved")
    assert isinstance(again, PublishedScorer)
    np.testing.assert_array_equal(score(again, tiny_dataset), score(scorer, tiny_dataset))
    np.testing.assert_allclose(by_library(tmp_path / "saved", tiny_dataset), expected, atol=1e-6)
    half = score(again, tiny_dataset, precision="bf16")
    assert np.corrcoef(half, expected)[0, 1] > 0.98 and len(np.unique(half)) == len(np.unique(expected))


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("config.json", {"_attn_implementation": "someone/kernel"}),
        ("config.json", {"auto_map": {"AutoModel": "own.M"}}),
        ("sentence_bert_config.json", {"model_args": {"attn_implementation": "someone/kernel"}}),
    ],
)
def test_a_saved_one_is_checked_as_a_published_one(
    file: str, changed: dict[str, object], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    save_scorer("published", PublishedReranker.published(str(write_reranker(tmp_path))), tmp_path / "saved")
    load_scorer(tmp_path / "saved")
    path = tmp_path / "saved" / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changed))
    with pytest.raises(UserError, match=r"refused|cannot load"):
        load_scorer(tmp_path / "saved")


def test_an_altered_head_has_other_scores(tiny_dataset: Dataset, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path)
    before = by_library(folder, tiny_dataset)
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"classifier.bias": weights["classifier.bias"] + 0.01}, folder / "model.safetensors")
    altered = score(PublishedScorer(PublishedReranker.published(str(folder))), tiny_dataset)
    assert np.abs(altered - before).max() > 5e-3
    np.testing.assert_allclose(altered, before + 0.01, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "yes-no"])
def test_the_tokenizers_padding_side_does_not_matter(kind: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path, kind)
    side = "left" if kind == "bert" else "right"
    change(folder / "tokenizer_config.json", padding_side=side)
    expected = by_library(folder, tiny_dataset)
    np.testing.assert_allclose(
        score(PublishedScorer(PublishedReranker.published(str(folder))), tiny_dataset), expected, atol=1e-5
    )


def test_vectors_are_those_that_the_head_reads(folder: Path, tiny_dataset: Dataset) -> None:
    """The last layer's first token, or the last one of a causal model, of each pair alone."""
    model = PublishedReranker.published(str(folder)).eval()
    with torch.inference_mode():
        _, vectors = model(*map(torch.from_numpy, model.arrays(pairs(tiny_dataset))))
        for pair, vector in zip(pairs(tiny_dataset)[:6], vectors, strict=False):
            ids = torch.from_numpy(model.arrays([pair])[0])
            hidden = model.backbone.transformers_model.base_model(input_ids=ids, **_types(model, pair))[0][0]
            torch.testing.assert_close(vector, hidden[-1 if folder.name in CAUSAL else 0], atol=1e-5, rtol=0)
    assert vectors.shape == (len(QUERY), model.width) and vectors.std(0).max() > 0.01


def _types(model: PublishedReranker, pair: tuple[str, str]) -> dict[str, torch.Tensor]:
    model_input = dict(zip(model._names, map(torch.from_numpy, model.arrays([pair])), strict=True))
    return (
        {name: value for name, value in model_input.items() if name == "token_type_ids"} if len(model_input) > 2 else {}
    )


def test_a_published_logit_is_ranked_and_its_probability_is_the_logistic_function(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    folder = write_reranker(tmp_path, activation="torch.nn.modules.linear.Identity")
    scorer = PublishedScorer(PublishedReranker.published(str(folder)))
    scores = score(scorer, tiny_dataset)
    np.testing.assert_allclose(scores, by_library(folder, tiny_dataset, None), atol=1e-5)
    np.testing.assert_allclose(scorer.probability(scores), 1 / (1 + np.exp(-scores)), atol=1e-6)


def test_long_pairs_are_cut_as_published(tiny_dataset: Dataset, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path)
    change(folder / "tokenizer_config.json", model_max_length=12)
    model = PublishedReranker.published(str(folder))
    assert model.max_length == 12 and model.arrays(pairs(tiny_dataset))[0].shape[1] == 12
    np.testing.assert_allclose(score(PublishedScorer(model), tiny_dataset), by_library(folder, tiny_dataset), atol=1e-5)
    change(folder / "tokenizer_config.json", model_max_length=1000)  # more than it has positions
    assert PublishedReranker.published(str(folder)).max_length == 64


def _modules(*kinds: str, package: str = "sentence_transformers.models.") -> list[dict[str, object]]:
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{k}" if i else "", "type": package + k} for i, k in enumerate(kinds)
    ]


def _write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def _without_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({n: w for n, w in weights.items() if not n.startswith("classifier")}, folder / "model.safetensors")


def _more_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"classifier.dense.weight": torch.ones(2, 2)}, folder / "model.safetensors")


def _pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _generic_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'user' %}x{% endif %}{% endfor %}"
    )


SETTINGS = "config_sentence_transformers.json"
REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "labels": ("bert", lambda f: write_reranker(f, num_labels=3), "its head has 3 labels"),
    "no head": ("bert", _without_head, "its files lack the weights classifier.bias and 1 more"),
    "other weights": ("bert", _more_weights, "does not read its weights classifier.dense.weight"),
    "pickled weights": ("bert", _pickled, "model.safetensors"),
    "own code": ("bert", lambda f: change(f / "config.json", auto_map={"AutoModel": "x.Y"}), "auto_map"),
    "own tokenizer": ("bert", lambda f: change(f / "tokenizer_config.json", auto_map={"A": "x.Y"}), "auto_map"),
    "activation": (
        "bert",
        lambda f: change(f / "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh"}),
        "its activation is torch.nn.Tanh, and not Sigmoid or Identity",
    ),
    "own activation": (
        "yes-no", lambda f: change(f / SETTINGS, activation_fn="mine.Sigmoid"), "its activation is mine.Sigmoid",
    ),
    "modules": (
        "bert", lambda f: _write(f, "modules.json", _modules("Transformer", "Pooling")), "has Transformer, Pooling",
    ),
    "own modules": (
        "bert", lambda f: _write(f, "modules.json", _modules("Transformer", package="mine.")), "of another package",
    ),
    "an encoder of texts": (
        "bert", lambda f: _write(f, "modules.json", _modules("Transformer")), "does not name the model_type",
    ),
    "arguments": (
        "yes-no",
        lambda f: change(f / "sentence_bert_config.json", model_args={"attn_implementation": "hub/kernel"}),
        "sets model_args",
    ),
    "no answers": (
        "yes-no",
        lambda f: [(f / name).unlink() for name in ("modules.json", "sentence_bert_config.json", SETTINGS)],
        "no tokens yes and no",
    ),
    "generic template": ("yes-no", _generic_template, "cannot carry a 'query'/'document' pair"),
    "damaged": ("bert", lambda f: (f / "modules.json").write_text("{"), "modules.json"),
}  # fmt: skip


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: write_reranker(tmp_path_factory.mktemp("accepted") / kind, kind) for kind in ("bert", "yes-no")}
    for folder in folders.values():
        PublishedReranker.published(str(folder))
    return folders


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_read_otherwise_is_refused_before_a_run(
    case: str, accepted: dict[str, Path], tmp_path: Path
) -> None:
    kind, spoil, words = REFUSED[case]
    folder = shutil.copytree(accepted[kind], tmp_path / "model")
    spoil(folder)
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        check_models([Node("train_reranker", TrainReranker(published=str(folder)), {}, "x")])
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_a_run_names_it_and_not_the_backbone(tmp_path: Path) -> None:
    folder = str(write_reranker(tmp_path / "model"))
    nodes = [
        Node("train_cross_encoder", TrainCrossEncoder(published=folder), {}),
        Node("train_reranker", TrainReranker(published=folder), {}, "x"),
    ]
    assert check_models(nodes) == [folder]
    with pytest.raises(UserError, match="no such folder"):
        check_models([Node("train_reranker", TrainReranker(published=str(tmp_path / "none")), {}, "x")])


def test_one_that_has_to_agree_with_written_queries_is_read_before_they_are_written(tmp_path: Path) -> None:
    folder, trained = str(write_reranker(tmp_path / "model")), tmp_path / "trained"
    save_scorer("published", PublishedReranker.published(folder), trained)

    def checked(name: str) -> list[str]:
        return check_models([Node("select_queries", SelectQueries(agreeing_reranker=name), {})])

    assert [checked(name) for name in (folder, str(trained), "")] == [[folder], [str(trained)], []]
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty"):
        with pytest.raises(UserError, match=f"{tmp_path / name}"):
            checked(str(tmp_path / name))


@pytest.mark.parametrize("layout", LATE_LAYOUTS)
def test_late_interaction_is_named_as_what_it_is(layout: str, tmp_path: Path) -> None:
    folder = write_late_interaction(tmp_path / "late", layout)
    with pytest.raises(UserError, match="it is late interaction, which the system colbert:FOLDER reads"):
        PublishedReranker.published(str(folder))
