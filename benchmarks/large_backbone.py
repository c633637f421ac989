"""Memory of a model of 600 million parameters: eight passages encoded, and one training step with adapters.

The model has random weights in bf16, in the shape of Qwen3-Embedding-0.6B, in several files. Each case is a process of
its own. It reads texts of random words up to the passage length, trains a dual encoder with one backbone, and saves it.
The operating system measures the peak resident memory.

    python benchmarks/large_backbone.py [--passages 8] [--length 128] [--rank 16] [--precision bf16] [--layers 28]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import options, show

from gnn_encoder.inference.encoding import autocast, encode_tokens
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.memory import peak_gib
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.shared import LargeModelTraining
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.computation import computing_as_trained
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import parameter_groups

SHAPE = {
    "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 151_669, "max_position_embeddings": 32_768, "bos_token_id": 1,
    "eos_token_id": 1,
}  # fmt: skip
SHARD = "400MB"
CASES = {
    "encode": "encode the passages",
    "adapters": "training step, adapters",
    "recomputed": "training step, adapters, activations recomputed",
}


def write_model(folder: Path, layers: int) -> None:
    """Random weights and a tokenizer that knows numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1, "0": 2, "1": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "<unk>", "eos_token": "<end>", "pad_token": "<end>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3Model(Qwen3Config(num_hidden_layers=layers, **SHAPE))
    model.save_pretrained(folder, max_shard_size=SHARD)
    count, files = sum(p.numel() for p in model.parameters()), len([*folder.glob("*.safetensors")])
    print(json.dumps({"parameters": count, "files": files}))


def case(name: str, folder: Path, settings: argparse.Namespace) -> None:
    """Peak memory in GiB after loading and at the end of a case, and its seconds without loading."""
    lengths = {"query_length": settings.length, "passage_length": settings.length}
    model = DualEncoder.from_backbone(str(folder), **lengths, share_encoders=True, normalize="yes")
    loaded, began = peak_gib(), time.perf_counter()
    count = settings.passages
    ids = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], count * settings.length, dtype=np.int32)
    tokens = Tokens(ids, np.arange(count + 1, dtype=np.int64) * settings.length)
    if name == "encode":
        vectors = np.empty((count, model.passage_encoder.width), np.float32)
        encode_tokens(model.passage_encoder, tokens, vectors, precision=settings.precision, filled=False)
    else:
        training = LargeModelTraining(
            lora_rank=settings.rank, gradient_checkpointing=name == "recomputed", precision=settings.precision
        )
        model.train()
        with large_training([model.passage_encoder.backbone], training):
            optimizer = torch.optim.AdamW(parameter_groups(model, 1e-4, 0.0), fused=True)
            with computing_as_trained(model, settings.precision):
                with autocast(settings.precision):
                    encoders, rows = (model.passage_encoder, model.query_encoder), np.arange(count)
                    passages, queries = (embed(encoder, tokens, rows) for encoder in encoders)
                    loss = torch.nn.functional.cross_entropy(queries @ passages.T, torch.arange(count))
                loss.backward()
                optimizer.step()
            trained = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
            print(f"{trained:,} parameters trained, loss {loss.item():.3f}", file=sys.stderr)
        model.save(folder / name)
    lasted = time.perf_counter() - began
    print(json.dumps({"loaded": loaded, "peak": peak_gib(), "seconds": lasted}))


def main() -> None:
    """Run the cases, each in a process of its own, and print the table."""
    given = options(__doc__, None, passages=8, length=128, rank=16, precision="bf16", layers=28, case=None, folder=None)
    if given.case == "write":
        write_model(Path(given.folder), given.layers)
        return
    if given.case:
        case(given.case, Path(given.folder), given)
        return

    def process(name: str, folder: str) -> dict[str, float]:
        more = ["--case", name, "--folder", folder]
        done = subprocess.run([sys.executable, *sys.argv, *more], check=True, stdout=subprocess.PIPE, text=True)
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures

    with tempfile.TemporaryDirectory() as folder:
        size = process("write", folder)
        results = {name: process(name, folder) for name in CASES}
    show(
        f"{size['parameters'] / 1e6:.0f} M parameters in {size['files']:.0f} files: {given.passages} texts of "
        f"{given.length} tokens, rank {given.rank}, {given.precision}",
        ["case", "peak after loading GiB", "peak GiB", "seconds"],
        [
            [title, *(f"{results[name][figure]:.2f}" for figure in ("loaded", "peak", "seconds"))]
            for name, title in CASES.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
