"""Training a dual encoder against sentence-transformers' trainer: same triples, batch, lengths, optimizer and loss.

Both train MiniLM on queries of python-docs for one epoch, with one encoder for queries and passages, in-batch negatives
and one hard negative, dropout 0.1, AdamW and clipped gradients. The peer uses its fastest precision and attention, on a
GPU with and without processes that prepare batches; our side uses `auto`. The sides take turns, and the fastest of
`--rounds` counts: on a GPU the first training of a process starts the libraries. Time ends with the last step, because
our side then writes a checkpoint and the peer writes none. The peer's is the time that its trainer reports, without the
examples that it encodes for its model card, which took 3 s of 5 in a training of 10 steps.
The peer's trainer needs the packages `datasets` and `accelerate` (`make bench` installs both); without them our side
trains alone. `--words 250037` gives the backbone as large a table of words as multilingual encoders have.
`--profile FILE` trains once more and writes where the time of twenty steps goes, the first six left out.

    python benchmarks/train.py [--triples 256] [--batch 64] [--length 192] [--rounds 1] [--backbone minilm]
                               [--words ROWS] [--dataset DATASET_ARTIFACT] [--profile FILE]
"""

import importlib.util
import json
import math
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from common import dataset, machine, options, peer_attention, ratio, set_tokenizer_threads, show

from gnn_encoder.artifacts import Dataset, TrainingSet
from gnn_encoder.inference.encoding import fast_bf16
from gnn_encoder.models.backbone_files import resolve_backbone
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training import loop
from gnn_encoder.training.contrastive import train_contrastive
from gnn_encoder.training.ranks import average_gradients

RATE, SCALE = 2e-5, 20.0
UNPROFILED, PROFILED = 6, 20
"""Steps."""


def peer_seconds(
    backbone: str,
    triples: list[tuple[str, str, str]],
    batch: int,
    length: int,
    folder: str,
    bf16: bool,
    loaders: int = 0,
) -> float:
    """One epoch of SentenceTransformerTrainer; `loaders`: processes that prepare batches."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    attention = peer_attention() if bf16 else "sdpa"
    model = SentenceTransformer(resolve_backbone(backbone), model_kwargs={"attn_implementation": attention})
    model.max_seq_length = length
    columns = dict(zip(("anchor", "positive", "negative"), map(list, zip(*triples, strict=True)), strict=True))
    arguments = SentenceTransformerTrainingArguments(
        folder, num_train_epochs=1, per_device_train_batch_size=batch, learning_rate=RATE, bf16=bf16,
        weight_decay=0.01, warmup_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_num_workers=loaders,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model, arguments, datasets.Dataset.from_dict(columns), loss=MultipleNegativesRankingLoss(model, scale=SCALE)
    )
    return float(trainer.train().metrics["train_runtime"])


def with_words(backbone: str, rows: int, folder: str) -> str:
    """Returns a folder with the backbone, whose table of words has so many rows, more than it had."""
    from transformers import AutoModel, AutoTokenizer

    source = resolve_backbone(backbone)
    model = AutoModel.from_pretrained(source)
    if rows <= model.config.vocab_size:
        raise SystemExit(f"--words {rows}: {backbone} has {model.config.vocab_size} already")
    model.resize_token_embeddings(rows, mean_resizing=False)
    for part in (model, AutoTokenizer.from_pretrained(source)):
        part.save_pretrained(folder)
    return folder


class Clock(StepLog):
    """Knows the time at which the last step ended."""

    ended = math.nan

    def metric(self, name: str, value: float, at: int) -> None:
        """Note the end of the epoch."""
        if name == "batches_per_second":
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ended = time.perf_counter()


def our_seconds(
    backbone: str,
    data: Dataset,
    examples: TrainingSet,
    batch: int,
    length: int,
    after_step: Callable[[], Any] = int,
) -> float:
    """Seconds of one epoch of the steps' loop, tokenization included; each call has a checkpoint of its own."""
    settings = TrainDualEncoder(
        epochs=1, batch_size=batch, learning_rate=RATE, negatives=1, score_scale=SCALE, dev_queries=0,
        share_encoders=True, checkpoint_seconds=1e6, start_from="backbone",
    )  # fmt: skip
    model = DualEncoder.from_backbone(
        backbone, pooling="mean", normalize="yes", query_length=length, passage_length=length, share_encoders=True
    )

    def noted(*gradients: Any) -> Any:  # called once in a step
        after_step()
        return average_gradients(*gradients)

    clock, began = Clock(), time.perf_counter()
    with patch.object(loop, "average_gradients", noted):
        train_contrastive(model, examples, data, settings, Context("train", clock, str(time.time_ns())))
    return clock.ended - began


def profile(train: Callable[[Any], float], file: Path) -> None:
    """Write where the time of the profiled steps of a training goes: each kind of event, largest own time first.

    torch's own table would need minutes for the events of 20 steps.
    """
    from torch.profiler import profile, schedule

    plan = schedule(wait=UNPROFILED - 1, warmup=1, active=PROFILED, repeat=1)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(schedule=plan, on_trace_ready=lambda ready: ready.export_chrome_trace(str(trace))) as profiler:
            train(profiler.step)
        events = [event for event in json.loads(trace.read_bytes())["traceEvents"] if event.get("ph") == "X"]
        events = [event for event in events if event["cat"] != "Trace"]
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: Counter[tuple[str, str]] = Counter()
    around: list[tuple[Any, float, tuple[str, str]]] = []
    for event in sorted(events, key=lambda event: (str(event["tid"]), event["ts"], -event["dur"])):
        key = event["cat"], re.sub(r"#\d+$", "", event["name"])
        while around and (around[-1][0] != event["tid"] or around[-1][1] <= event["ts"]):
            around.pop()
        if around:
            seconds[around[-1][2]] -= event["dur"] / 1e6
        seconds[key] += event["dur"] / 1e6
        calls[key] += 1
        around.append((event["tid"], event["ts"] + event["dur"], key))
    steps = sum(event["dur"] for event in events if event["name"].startswith("ProfilerStep")) / 1e6
    lines = [f"{PROFILED} steps, {steps / PROFILED:.4f} s each with the profiler; {machine()}"]
    for kind in sorted({kind for kind, _ in calls}):
        keys = sorted((key for key in calls if key[0] == kind), key=seconds.__getitem__, reverse=True)
        total, number = sum(map(seconds.__getitem__, keys)), sum(map(calls.__getitem__, keys))
        lines.append(f"\n{kind}: {total / PROFILED * 1e3:.2f} ms and {number / PROFILED:.0f} events a step")
        lines += [f"{seconds[k] / PROFILED * 1e3:9.3f} ms {calls[k] / PROFILED:7.1f} × {k[1][:100]}" for k in keys[:25]]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(line for line in lines if "a step" in line or "steps" in line) + f"\nprofile: {file}")


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio to the peer's fastest side; NaN without the peer."""
    sizes = {"triples": 256, "batch": 64, "length": 192, "rounds": 1, "words": 0}
    o = options(__doc__, arguments, **sizes, backbone="minilm", dataset=None, profile=None)
    ends = time.perf_counter() + o.seconds
    with dataset(o.dataset, 1000) as data, tempfile.TemporaryDirectory() as folder:
        os.environ[CHECKPOINTS] = folder
        labels = data.split_qrels("train")
        query, positive = labels.query[: o.triples], labels.passage[: o.triples]
        negative = np.random.default_rng(0).integers(0, len(data.passages), len(query)).astype(np.int32)
        texts = data.passages.take(np.arange(len(data.passages))).full_texts()
        asked = data.query_texts(query)
        triples = [(q, texts[p], texts[n]) for q, p, n in zip(asked, positive, negative, strict=True)]
        examples = TrainingSet(asked, query, positive, negative[:, None], np.zeros(len(query), np.int8))
        backbone = with_words(o.backbone, o.words, f"{folder}/backbone") if o.words else o.backbone
        ours = partial(our_seconds, backbone, data, examples, o.batch, o.length)
        peer = partial(peer_seconds, backbone, triples, o.batch, o.length, folder)
        sides: dict[str, Callable[[], float]] = {"gnn-encoder, auto": ours}
        if missing := [name for name in ("datasets", "accelerate") if not importlib.util.find_spec(name)]:
            print(f"without sentence-transformers' trainer, which needs the package {missing[0]}")
        else:
            if not torch.cuda.is_available():
                sides["sentence-transformers, fp32"] = partial(peer, False)
            if fast_bf16():
                sides["sentence-transformers, bf16"] = partial(peer, True)
            if torch.cuda.is_available():
                sides["sentence-transformers, bf16, 4 loaders"] = partial(peer, True, 4)
        seconds = dict.fromkeys(sides, math.inf)
        for number in range(o.rounds):
            if number and time.perf_counter() > ends:
                break
            for name, side in sides.items():
                set_tokenizer_threads(name)
                seconds[name] = min(seconds[name], side())
        if o.rounds:
            best = min((taken for name, taken in seconds.items() if name.startswith("sentence")), default=math.nan)
            rows = [(name, f"{len(query) / taken:.1f}", f"{best / taken:.2f}") for name, taken in seconds.items()]
            words = f" with {o.words:,} words" if o.words else ""
            title = f"{o.backbone}{words}, {len(query)} triples, batch {o.batch}, at most {o.length} tokens, one epoch"
            show(
                title,
                ("side", "triples/s", "ratio to the peer's best"),
                rows,
                f"the peer's attention: {peer_attention()}",
            )
        if o.profile:
            set_tokenizer_threads("gnn-encoder")
            profile(ours, Path(o.profile))
    return ratio(seconds)


if __name__ == "__main__":
    main()
