"""Training of large backbones: low-rank adapters in the place of their weights, and activations computed again.

An adapter adds B · A to a weight matrix W [m, n], with A [r, n] and B [m, r] (LoRA: Hu et al., 2021, section 4.1). W is
not trained, so it needs neither a gradient nor AdamW's two moments, and it can stay in bf16: of 16 bytes a parameter
two remain.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnn_encoder.inference.encoding import inference_dtype
from gnn_encoder.settings.shared import LargeModelTraining

SCALE = 2
"""Factor of B · A (α / r in the paper), the same for each rank, so that the learning rate need not follow the rank."""


@contextmanager
def large_training(backbones: Iterable[Any], settings: LargeModelTraining) -> Iterator[None]:
    """In the block, backbones train as the settings say; after it they are plain models again, in fp32.

    With `lora_rank` each linear layer has an adapter in fp32 (peft), which is added to its weights after the block. The
    other weights are frozen, and in bf16 if the training computes in it: the adapters learn beside these, so the
    plain model has them rounded, too.

    If the block raises, the adapters stay.
    """
    backbones, adapted = list(dict.fromkeys(backbones)), []
    torch.manual_seed(settings.seed)  # A starts at random, alike in all processes
    for backbone in backbones:
        if settings.lora_rank:
            from peft import LoraConfig
            from peft.tuners.lora import LoraModel

            rank, frozen = settings.lora_rank, inference_dtype(settings.precision)
            config = LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules="all-linear")
            adapted.append(LoraModel(backbone, config, "default"))
            for parameter in backbone.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(frozen)
        if settings.gradient_checkpointing:
            backbone.activation_checkpointing_enable({"use_reentrant": False})  # frozen inputs have no gradient
    yield
    for backbone in backbones if settings.gradient_checkpointing else ():
        backbone.activation_checkpointing_disable()
    for adapters in adapted:
        plain = adapters.model.float()
        adapters.merge_and_unload()
        plain.requires_grad_(True)
