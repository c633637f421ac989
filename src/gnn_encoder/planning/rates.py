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
from gnn_encoder.training.contrastive import new_dual_encoder
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import parameter_groups, set_dropout, trainable_attention

TEXTS, BATCH, SECONDS, WARM_UP = 32, 16, 1.5, 1
"""Texts, at least, of a call that encodes and of a training batch, seconds of each measurement, and calls before it
counts."""
BATCH_TOKENS, MOST_TEXTS = 2048, 64
"""Tokens of a training batch of short texts, and the most texts that it may have: those of 32 queries and two passages
each. A step's own cost, the optimizer's, is the same for few tokens."""
UNLIKELY, TRIES = 12, 3
"""With AMX a model encodes three to four times as many tokens a second as it trains on. A ratio above `UNLIKELY` shows
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
    """Tokens per second without a call's own cost, as of copying the model's weights: passages of 28 tokens would
    otherwise seem to be encoded five times too slowly.

    Each call reads twice as many texts as the one before, until one takes `SECONDS`. What it takes longer than a call
    for one text counts.
    """
    encoder = model.passage_encoder

    def seconds(read: Tokens) -> float:
        out = np.empty((len(read), encoder.width), dtype=np.float32)
        started = time.monotonic()
        encode_tokens(encoder, read, out)
        return time.monotonic() - started

    one = tokens.take(np.arange(1))
    for _ in range(WARM_UP):
        seconds(tokens)
    alone = seconds(one)
    while (spent := seconds(tokens)) < SECONDS:
        tokens = Tokens.join([tokens, tokens])
    return int(tokens.lengths.sum() - one.lengths.sum()) / max(spent - alone, spent / 2)


def _training(model: DualEncoder, tokens: Tokens, settings: TrainDpr) -> float:
    """Tokens per second of batches as `train_dpr` has them: a query, which is a passage here, for two passages."""
    model.to(device()).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-6, 0.01), fused=True)
    done, started = 0, 0.0
    size = int(np.clip(BATCH_TOKENS / tokens.lengths.mean(), BATCH, MOST_TEXTS))
    generator = np.random.default_rng(settings.seed)
    for step in range(1000):
        if step == WARM_UP:
            _wait()
            started = time.monotonic()
        rows = generator.choice(len(tokens), size, replace=size > len(tokens))
        with autocast(settings.precision), trainable_attention(model, settings.precision):
            queries = embed(model.query_encoder, tokens, rows[: size // 3])
            passages = embed(model.passage_encoder, tokens, rows[size // 3 :])
            loss = (queries @ passages.T).logsumexp(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        done += int(tokens.lengths[rows].sum()) if step >= WARM_UP else 0
        if step >= WARM_UP and time.monotonic() - started > SECONDS:
            break
    _wait()
    return done / (time.monotonic() - started)


def _wait() -> None:
    """Waits until a GPU has worked off its queue: a training step ends before its kernels do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
