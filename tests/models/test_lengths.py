"""No text is longer than a model's positions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from published_folders import edit, refusal, write_transformer

from gnn_encoder.flow.graph import Node
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.check import check_models
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.foundation import TrainCrossEncoder, TrainDpr
from gnn_encoder.settings.reranking import TrainReranker


@pytest.mark.parametrize(("kind", "most"), [("bert", 64), ("roberta", 62), ("mpnet", 62)])
def test_no_text_is_longer_than_the_positions(tmp_path: Path, kind: str, most: int) -> None:
    padding = {"pad_token_id": 1} if kind != "bert" else {}
    name = str(write_transformer(tmp_path / kind, kind, **padding))
    long = ["river " * 100]
    encoder = TextEncoder.from_backbone(name, max_length=64)
    assert encoder.max_length == CrossEncoder.from_backbone(name, 64).max_length == most
    assert encode_texts(encoder, long).shape == (1, 32)
    if kind != "mpnet":  # no decoder
        assert QueryGenerator.from_pretrained(name, 64, 64).passage_length == most
    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):  # control: one more token crashes
        encoder.backbone(input_ids=torch.full((1, most + 1), 9), attention_mask=torch.ones(1, most + 1))


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        ("train_dpr", lambda name, most: TrainDpr(backbone=name, passage_length=most)),
        ("train_cross_encoder", lambda name, most: TrainCrossEncoder(backbone=name, pair_length=most)),
        ("train_reranker", lambda name, most: TrainReranker(kind="colbert", backbone=name, passage_length=most)),
    ],
)
def test_a_length_beyond_the_positions_is_refused_before_the_run(tmp_path: Path, step: str, settings: Any) -> None:
    name = str(write_transformer(tmp_path / "roberta", "roberta", pad_token_id=1))
    check_models([Node(step, settings(name, 62), {})])
    message = refusal(lambda: check_models([Node(step, settings(name, 63), {})]))
    assert f"{step}.pa" in message and "= 63" in message and "reads at most 62 tokens" in message


def test_a_length_of_a_hub_s_model_is_checked_by_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--encoder"
    snapshot = repository / "snapshots" / ("0" * 40)
    write_transformer(snapshot, "roberta", pad_token_id=1)
    (snapshot / "model.safetensors").unlink()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    call = Node("train_dpr", TrainDpr(backbone="some/encoder", passage_length=64), {})
    assert "reads at most 62 tokens" in refusal(lambda: check_models([call]))
    edit("config.json", auto_map={"AutoModel": "modeling.Own"})(snapshot)
    assert "auto_map" in refusal(lambda: check_models([call]))
    # Control: a model that cannot be reached is checked by the step that loads it.
    assert check_models([Node("train_dpr", TrainDpr(backbone="some/other"), {})]) == ["some/other"]
