"""Adapters and recomputed activations: what trains, what is saved, and that both equal peft and the plain model."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_folders import encoders_of, published_vectors, refusal, vectors_of_both, worst_cosine, write_transformer
from safetensors import safe_open
from saved_states import wait_for_each
from small_training import examples_of
from torch import nn

from gnn_encoder.artifacts import Dataset
from gnn_encoder.flow.graph import Node
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.check import check_models
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainCrossEncoder, TrainDpr
from gnn_encoder.settings.shared import LargeModelTraining
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training import checkpoint, contrastive
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.contrastive import train_contrastive
from gnn_encoder.training.embed import embed

KINDS = ("bert", "qwen2", "t5")
SETTINGS = TrainDpr(
    epochs=2, batch_size=8, dev_queries=0, learning_rate=0.01, lora_rank=3, precision="fp32", checkpoint_seconds=1e-9,
    matryoshka=(24,),
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_transformer(tmp_path_factory.mktemp("raw") / kind, kind) for kind in KINDS}


def train(model: DualEncoder, data: Dataset, folder: Path, monkeypatch, settings: TrainDpr = SETTINGS) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(folder))
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        train_contrastive(model, examples_of(data), data, settings, Context("test", run, "key"))


def gradients(model: DualEncoder, data: Dataset, *, cached: bool = False) -> dict[str, torch.Tensor]:
    tokens = Tokens.of(model.query_encoder.tokenizer, data.query_texts(np.arange(9)), 16)
    model.train()
    torch.manual_seed(7)
    vectors = [embed(encoder, tokens, np.arange(9), cached=cached) for encoder in model.children()]
    (vectors[0] @ vectors[1].T).log_softmax(1).diagonal().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_adapters_alone(folders, tiny_dataset: Dataset, kind: str) -> None:
    model = encoders_of(folders[kind], pooling="mean")
    linear = sum(isinstance(module, nn.Linear) for module in model.query_encoder.backbone.modules())
    with large_training([model.query_encoder.backbone, model.passage_encoder.backbone], SETTINGS):
        changed = gradients(model, tiny_dataset)
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        assert changed.keys() == trained and all("lora_" in name for name in trained)
        assert len(trained) == 2 * linear >= 12  # both encoders are one backbone
    # Control: without adapters all weights have gradients.
    assert len(gradients(model, tiny_dataset)) > linear


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_model_equals_the_one_with_adapters_in_peft(
    folders, tiny_dataset: Dataset, tmp_path, monkeypatch, kind: str, precision: str
) -> None:
    import peft

    before = encoders_of(folders[kind], share_encoders=False, pooling="mean")
    model = encoders_of(folders[kind], share_encoders=False, pooling="mean")
    seen: dict[str, torch.Tensor] = {}
    fit = contrastive.fit

    def noted(objective: Any, *arguments: Any) -> Any:
        result = fit(objective, *arguments)
        seen.update({name: p.detach().clone() for name, p in model.named_parameters()})
        return result

    monkeypatch.setattr(contrastive, "fit", noted)
    train(model, tiny_dataset, tmp_path, monkeypatch, SETTINGS.model_copy(update={"precision": precision}))
    for name, weights in seen.items():
        wanted = torch.bfloat16 if precision == "bf16" and "lora_" not in name else torch.float32
        assert weights.dtype is wanted, name

    assert not any("lora" in name for name in model.state_dict())
    assert all(p.dtype is torch.float32 and p.requires_grad for p in model.parameters())
    for encoder, start in zip(model.children(), before.children(), strict=True):
        side = "query_encoder" if encoder is model.query_encoder else "passage_encoder"
        if precision == "bf16":
            start.backbone.bfloat16().float()
        config = peft.LoraConfig(r=3, lora_alpha=6, target_modules="all-linear")
        reference = peft.get_peft_model(start.backbone, config)
        of_side = {
            name.removeprefix(f"{side}.backbone."): weights
            for name, weights in seen.items()
            if name.startswith(side) and "lora_" in name
        }
        lacking, unknown = reference.base_model.model.load_state_dict(of_side, strict=False)
        assert not unknown and not any("lora_" in name for name in lacking)
    assert worst_cosine(*of_passages(model, before)) > 0.99999
    unchanged = encoders_of(folders[kind], share_encoders=False, pooling="mean")
    assert worst_cosine(*of_passages(model, unchanged)) < 0.999  # control: the training changed the vectors

    model.save(tmp_path / "saved")
    passage_encoder = tmp_path / "saved" / "passage_encoder"
    with safe_open(passage_encoder / "model.safetensors", "pt") as file:
        assert not any("lora" in name or "base_layer" in name for name in file.keys())  # noqa: SIM118
    assert not (passage_encoder / "adapter_config.json").exists()
    loaded = DualEncoder.load(tmp_path / "saved")
    assert worst_cosine(*of_passages(model, loaded)) > 0.99999
    assert worst_cosine(vectors_of_both(model)[1], published_vectors(passage_encoder)) > 0.99999


def of_passages(one: DualEncoder, other: DualEncoder) -> list[np.ndarray]:
    return [vectors_of_both(model)[1] for model in (one, other)]


def test_a_checkpoint_holds_the_adapters_and_resuming_equals_an_undisturbed_training(
    folders, tiny_dataset: Dataset, tmp_path, monkeypatch
) -> None:
    wait_for_each(monkeypatch)
    whole, cut = (encoders_of(folders["qwen2"]) for _ in range(2))
    train(whole, tiny_dataset, tmp_path / "whole", monkeypatch)
    (state,) = (tmp_path / "whole").rglob(checkpoint.FILE)
    with safe_open(state, "pt") as file:
        parameters = [name for name in file.keys() if name.startswith(checkpoint.MODEL)]  # noqa: SIM118
    assert parameters and all("lora_" in name for name in parameters)
    assert not (state.parent / checkpoint.FROZEN).exists()

    calls, once = 0, contrastive.contrastive_loss

    def failing(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return once(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(contrastive, "contrastive_loss", failing)
        train(cut, tiny_dataset, tmp_path / "cut", patch)
    assert calls == 4
    resumed = encoders_of(folders["qwen2"])
    train(resumed, tiny_dataset, tmp_path / "cut", monkeypatch)
    expected = whole.state_dict()
    assert all(torch.equal(expected[name], weights) for name, weights in resumed.state_dict().items())
    fresh = encoders_of(folders["qwen2"]).state_dict()  # control: the training changed the weights
    assert not all(torch.equal(expected[name], weights) for name, weights in fresh.items())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_activations_give_the_same_gradients(
    folders, tiny_dataset: Dataset, kind: str, rank: int, cached: bool
) -> None:
    model = encoders_of(folders[kind], pooling="mean")
    layers = next(m for m in model.query_encoder.backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    part = next(module for module in layers[0].modules() if not [*module.children()])
    passes: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    part.register_forward_pre_hook(lambda *_: passes.append(1))

    def gradients_of(on: bool, change: Callable[[nn.Module], None] = lambda _: None) -> dict[str, torch.Tensor]:
        passes.clear()
        trained = copy.deepcopy(model)
        settings = LargeModelTraining(lora_rank=rank, gradient_checkpointing=on, precision="fp32")
        torch.manual_seed(1)
        with large_training([trained.query_encoder.backbone], settings):
            with torch.no_grad():
                for name, parameter in trained.named_parameters():
                    if "lora_B" in name:
                        parameter.normal_(0, 0.1)
            change(trained)
            return gradients(trained, tiny_dataset, cached=cached)

    expected, once = gradients_of(False), len(passes)
    recomputed = gradients_of(True)
    assert once and len(passes) == (1.5 if cached else 2) * once  # the layer runs forward again
    assert expected.keys() == recomputed.keys()
    assert all(torch.allclose(expected[name], recomputed[name], atol=1e-6) for name in expected)

    def altered(trained: nn.Module) -> None:
        with torch.no_grad():
            next(p for p in trained.parameters() if p.requires_grad).mul_(1.01)

    wrong = gradients_of(True, altered)  # control: other weights have other gradients
    assert not all(torch.allclose(expected[name], wrong[name], atol=1e-6) for name in expected)


@pytest.mark.parametrize("settings", [TrainDpr, TrainCrossEncoder])
def test_recomputing_is_refused_before_the_run_for_a_model_that_cannot(tmp_path, settings: Any) -> None:
    folder = write_transformer(tmp_path / "mpnet", "mpnet", pad_token_id=1, bos_token_id=2, eos_token_id=3)
    chosen = settings(backbone=str(folder), gradient_checkpointing=True)
    step = "train_dpr" if settings is TrainDpr else "train_cross_encoder"
    message = refusal(lambda: check_models([Node(step, chosen, {})]))
    assert f"{step}.gradient_checkpointing" in message and "leave it out" in message
    check_models([Node(step, settings(backbone=str(folder)), {})])
