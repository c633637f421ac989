"""How fast this machine encodes and trains: measured in some seconds with the run's own functions."""

import os
import sys
import time
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import autocast, encode_tokens, fast_bf16
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import DualEncoder, device
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.settings.shared import LargeModelTraining
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.computation import computing_as_trained, set_dropout
from gnn_encoder.training.contrastive import new_dual_encoder
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import parameter_groups

TEXTS = 32
"""Texts of the first call that encodes."""
BATCH, BATCH_TOKENS, STEP_TEXTS = 16, 2048, 96
"""Least texts of a measured training batch, its tokens if its texts are short, and the texts of a real training batch:
32 queries, each with two passages. A measured batch has at most as many."""
REACHED = 0.8
"""Share of the measured speed that whole trainings reach. With 28 tokens a passage: 0.81 to 0.86 by three measurements,
0.76 by one, 0.67 in a run with tests beside it; with 128 tokens about 0.82, with 64 tokens 0.9 to 1.1. Their batches
differ in shape and have short queries for an encoder of their own, and gradients are clipped."""
SECONDS, WARM_UP = 1.5, 1
"""Seconds of the measured training, and at least of the last call that encodes; calls before either counts."""
UNLIKELY, TRIES = 12, 3
"""A model encodes three to six times as many tokens a second as a whole training reads. A ratio above `UNLIKELY` shows
that another program had the machine meanwhile. Then both are measured again, at most `TRIES` times."""
DROPOUT = 0.0
"""Dropout rate of the planned trainings and of the measured one. With AMX a rate of 0.1 takes two fifths of the time
of a training, because one core draws what is dropped."""
ALL_WEIGHTS = LargeModelTraining()
LENGTH = 128
"""Tokens to which the measured passages are cut, or fewer if the model reads fewer."""


@dataclass(frozen=True)
class Rates:
    """The machine, and its speed with one backbone, in tokens per second."""

    machine: str
    encoding: float
    training: float
    """Forward, backward and the optimizer's step, over the batch's queries and passages; 0: not measured."""


def machine() -> str:
    """Returns the machine in words, as in `2 cores with bf16, 23 GiB`."""
    if torch.cuda.is_available():
        return f"one GPU ({torch.cuda.get_device_name()}) of {torch.cuda.device_count()}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    threads = torch.get_num_threads()
    cores = f"{threads} core{'s' if threads > 1 else ''}"
    return f"{cores} {'with' if fast_bf16() else 'without'} fast bf16, {memory:.0f} GiB of memory"


def measure_rates(data: Dataset, backbone: str, seed: int, training: LargeModelTraining | None = ALL_WEIGHTS) -> Rates:
    """Encodes and, unless `training` is None, trains on some of the data's passages; the model is thrown away.

    The training has the adapters and the checkpointing of `training`.
    """
    large = training.model_dump(include={"lora_rank", "gradient_checkpointing"}) if training else {}
    settings = TrainDpr(backbone=backbone, passage_length=LENGTH, **large)
    model = new_dual_encoder(settings)
    set_dropout(model, DROPOUT)
    encoder = model.passage_encoder
    tokens = Tokens.of(encoder.tokenizer, _sample(data, seed), min(LENGTH, encoder.max_length))
    progress = Progress("auto", "measuring the machine", 2, "rates")
    if training is None:
        return Rates(machine(), _encoding(model, tokens), 0.0)
    for attempt in range(1, TRIES + 1):
        encodes = _encoding(model, tokens)
        with large_training([encoder.backbone], settings):
            trains = _training(model, tokens, settings)
        if encodes <= UNLIKELY * trains or attempt == TRIES:
            break
        print(f"auto: encoding is {encodes / trains:.0f} times as fast as training: measured again", file=sys.stderr)
    progress.advance(2)
    return Rates(machine(), encodes, trains)


def _sample(data: Dataset, seed: int) -> list[str]:
    """`TEXTS` passages. Those of a smaller corpus are repeated."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(data.passages))[:TEXTS])
    return list(islice(cycle(data.passages.take(rows).full_texts()), TEXTS))


def _encoding(model: DualEncoder, tokens: Tokens) -> float:
    """Tokens per second of the last of some calls, each with twice as many texts as the one before.

    A call's own cost, as of copying the weights, would otherwise hide the speed; so would the filling of a batch.
    """
    encoder, done = model.passage_encoder, 0
    while True:
        out = np.empty((len(tokens), encoder.width), dtype=np.float32)
        started = time.monotonic()
        encode_tokens(encoder, tokens, out, filled=False)
        spent = time.monotonic() - started
        if spent >= SECONDS and done >= WARM_UP:
            return float(tokens.lengths.sum()) / spent
        done += 1
        tokens = Tokens.join([tokens, tokens]) if spent < SECONDS else tokens


def _training(model: DualEncoder, tokens: Tokens, settings: TrainDpr) -> float:
    """Tokens per second of `train_dpr`, from batches of one encoder with passages in the place of queries.

    The optimizer's step has the same cost for any batch. It counts for a batch of `STEP_TEXTS`, and for both encoders.
    """
    model.to(device()).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-6, 0.01), fused=True)
    mean = float(tokens.lengths.mean())
    size = int(np.clip(BATCH_TOKENS / mean, BATCH, STEP_TEXTS))
    done, read, updated, steps = 0, 0.0, 0.0, 0
    generator = np.random.default_rng(settings.seed)
    for step in range(1000):
        rows = generator.choice(len(tokens), size, replace=size > len(tokens))
        _wait()
        started = time.monotonic()
        with computing_as_trained(model, settings.precision):
            with autocast(settings.precision):
                vectors = embed(model.passage_encoder, tokens, rows)
                loss = (vectors @ vectors.T).logsumexp(1).mean()
            loss.backward()
        _wait()
        propagated = time.monotonic()
        optimizer.step()
        optimizer.zero_grad()
        _wait()
        if step < WARM_UP:
            continue
        read, updated = read + propagated - started, updated + time.monotonic() - propagated
        done, steps = done + int(tokens.lengths[rows].sum()), steps + 1
        if read + updated > SECONDS:
            break
    return REACHED / (read / done + 2 * updated / steps / (STEP_TEXTS * mean))


def _wait() -> None:
    """Waits until a GPU has worked off its queue: a training step ends before its kernels do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
