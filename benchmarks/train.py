"""Training a dual encoder against sentence-transformers' trainer: same triples, batch, lengths, optimizer and loss.

Both train MiniLM on queries of python-docs for one epoch, with one encoder for queries and passages, in-batch negatives
and one hard negative, dropout 0.1, AdamW and clipped gradients. The peer uses its fastest precision, our side `auto`.
The fastest of `--rounds` counts: on a GPU the first training of a process starts the libraries.
The peer's trainer needs the packages `datasets` and `accelerate` (`make bench` installs both).

    python benchmarks/train.py [--triples 256] [--batch 64] [--length 192] [--rounds 1]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import documentation, show

from gnn_encoder.artifacts import Dataset, TrainingSet
from gnn_encoder.inference.encoding import fast_bf16
from gnn_encoder.models.backbone import resolve_backbone
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training.contrastive import train_contrastive

RATE, SCALE = 2e-5, 20.0


def peer_seconds(triples: list[tuple[str, str, str]], batch: int, length: int, bf16: bool, folder: str) -> float:
    """One epoch of SentenceTransformerTrainer."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(resolve_backbone("minilm"))
    model.max_seq_length = length
    columns = dict(zip(("anchor", "positive", "negative"), map(list, zip(*triples, strict=True)), strict=True))
    arguments = SentenceTransformerTrainingArguments(
        folder, num_train_epochs=1, per_device_train_batch_size=batch, learning_rate=RATE, bf16=bf16,
        weight_decay=0.01, warmup_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model, arguments, datasets.Dataset.from_dict(columns), loss=MultipleNegativesRankingLoss(model, scale=SCALE)
    )
    began = time.perf_counter()
    trainer.train()
    return time.perf_counter() - began


def our_seconds(data: Dataset, examples: TrainingSet, batch: int, length: int) -> float:
    """Seconds of one epoch of the steps' loop, tokenization included; each call has a checkpoint of its own."""
    settings = TrainDualEncoder(
        epochs=1, batch_size=batch, learning_rate=RATE, negatives=1, score_scale=SCALE, dev_queries=0,
        share_encoders=True, checkpoint_seconds=1e6, start_from="backbone",
    )  # fmt: skip
    model = DualEncoder.from_backbone(
        "minilm", pooling="auto", normalize="auto", query_length=length, passage_length=length, share_encoders=True
    )
    began = time.perf_counter()
    train_contrastive(model, examples, data, settings, Context("train", StepLog(), str(time.time_ns())))
    return time.perf_counter() - began


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("triples", 256), ("batch", 64), ("length", 192), ("rounds", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CHECKPOINTS] = folder
        data = Dataset(documentation(Path(folder), 1000))
        labels = data.split_qrels("train")
        query, positive = labels.query[: o.triples], labels.passage[: o.triples]
        negative = np.random.default_rng(0).integers(0, len(data.passages), len(query)).astype(np.int32)
        texts = data.passages.take(np.arange(len(data.passages))).full_texts()
        asked = data.query_texts(query)
        triples = [(q, texts[p], texts[n]) for q, p, n in zip(asked, positive, negative, strict=True)]
        examples = TrainingSet(asked, query, positive, negative[:, None], np.zeros(len(query), np.int8))
        sides: dict[str, Callable[[], float]] = {
            "sentence-transformers, fp32": lambda: peer_seconds(triples, o.batch, o.length, False, folder),
            "gnn-encoder, auto": lambda: our_seconds(data, examples, o.batch, o.length),
        }
        if fast_bf16():
            sides["sentence-transformers, bf16"] = lambda: peer_seconds(triples, o.batch, o.length, True, folder)
        seconds = {name: min(side() for _ in range(o.rounds)) for name, side in sides.items()}
    best = min(taken for name, taken in seconds.items() if name.startswith("sentence"))
    rows = [(name, f"{len(query) / taken:.1f}", f"{best / taken:.2f}") for name, taken in seconds.items()]
    title = f"MiniLM, {len(query)} triples, batch {o.batch}, at most {o.length} tokens, one epoch"
    show(title, ("side", "triples/s", "ratio to the peer's best"), rows)


if __name__ == "__main__":
    main()
