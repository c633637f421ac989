"""How fast this machine encodes and trains: measured in some seconds with the run's own functions."""

import os
import sys
import time
from dataclasses import dataclass
from itertools import count, cycle, islice

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import autocast, encode_tokens, fast_bf16
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.memory import MALLOCS_OWN, reuse_freed
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder, device, on_device
from gnn_encoder.planning.facts import UNKNOWN_QUERY
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.settings.shared import LargeModelTraining
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.computation import computing_as_trained, set_dropout
from gnn_encoder.training.contrastive import new_dual_encoder
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import parameter_groups
from gnn_encoder.training.losses import contrastive_loss

TEXTS = 32
"""Texts of the first call that encodes."""
STEP_QUERIES, PASSAGES = 32, 2
"""Queries of a real training batch, and passages of each: a positive and a hard negative."""
STEP_TOKENS, LEAST_QUERIES, SLOWER = 2048, 8, 4.0
"""A measured batch has fewer queries, but at least so many, if its passages would have more than these tokens, or more
than are encoded in a fourth of a second: a training is about so many times slower, and texts of many lengths fill the
parts of a small batch badly (with the fewest queries, `obliqa` trained 1.2 times as fast as was measured)."""
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
    queries, passages = _sample(data, model.passage_encoder, seed)
    progress = Progress("auto", "measuring the machine", 2, "rates")
    if training is None:
        return Rates(machine(), _encoding(model, passages), 0.0)
    for attempt in range(1, TRIES + 1):
        encodes = _encoding(model, passages)
        with large_training([model.query_encoder.backbone, model.passage_encoder.backbone], settings):
            trains = _training(model, queries, passages, settings, max(STEP_TOKENS, encodes / SLOWER))
        if encodes <= UNLIKELY * trains or attempt == TRIES:
            break
        print(f"auto: encoding is {encodes / trains:.0f} times as fast as training: measured again", file=sys.stderr)
    progress.advance(2)
    return Rates(machine(), encodes, trains)


def _sample(data: Dataset, encoder: TextEncoder, seed: int) -> tuple[Tokens, Tokens]:
    """`TEXTS` queries at most, and `TEXTS` passages; those of a smaller corpus are repeated.

    If there is no query yet, the beginnings of passages take their place.
    """
    generator, longest = np.random.default_rng(seed), min(LENGTH, encoder.max_length)
    rows = np.sort(generator.permutation(len(data.passages))[:TEXTS])
    passages = list(islice(cycle(data.passages.take(rows).full_texts()), TEXTS))
    queries = data.query_texts(np.sort(generator.permutation(len(data.queries))[:TEXTS]))
    query_tokens = Tokens.of(
        encoder.tokenizer, queries or passages, longest if queries else min(longest, UNKNOWN_QUERY)
    )
    return query_tokens, Tokens.of(encoder.tokenizer, passages, longest)


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


def _training(model: DualEncoder, queries: Tokens, passages: Tokens, settings: TrainDpr, most: float) -> float:
    """Tokens per second of `train_dpr`: steps as the training takes them, on random texts, with about `most` tokens.

    What a step costs whatever its batch (the gradients' norm, the optimizer) counts for a batch of `STEP_QUERIES`.
    """
    model.to(device()).train()
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-6, 0.01), fused=True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reuse_freed(max(parameter.nbytes for parameter in parameters) + MALLOCS_OWN)
    size = int(np.clip(most / (PASSAGES * passages.lengths.mean()), LEAST_QUERIES, STEP_QUERIES))
    positive, excluded = on_device(np.arange(size)), on_device(np.empty((2, 0), dtype=np.int64))
    generator = np.random.default_rng(settings.seed)
    read, propagated, updated, steps = 0, 0.0, 0.0, 0
    for step in count():
        query_rows = generator.integers(len(queries), size=size)
        passage_rows = generator.integers(len(passages), size=PASSAGES * size)
        _wait()
        started = time.monotonic()
        with computing_as_trained(model, settings.precision):
            with autocast(settings.precision):
                vectors = (
                    embed(model.query_encoder, queries, query_rows),
                    embed(model.passage_encoder, passages, passage_rows),
                )
                loss = contrastive_loss(*vectors, positive, excluded, 1.0)
            loss.backward()
        _wait()
        ended = time.monotonic()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait()
        if step < WARM_UP:
            continue
        propagated, updated = propagated + ended - started, updated + time.monotonic() - ended
        read, steps = read + int(queries.lengths[query_rows].sum() + passages.lengths[passage_rows].sum()), steps + 1
        if propagated + updated > SECONDS:
            break
    whole = STEP_QUERIES * (queries.lengths.mean() + PASSAGES * passages.lengths.mean())
    return float(1 / (propagated / read + updated / steps / whole))


def _wait() -> None:
    """Waits until a GPU has worked off its queue: a training step ends before its kernels do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
