"""The gradient cache: memory of a large and a small batch, and speed with and without the cache on a batch that fits.

Each case is a process that takes a step of contrastive training with MiniLM (forward, backward, AdamW) on random
tokens, 12 per query and 48 per passage. The operating system measures the peak resident memory.

    python benchmarks/gradient_cache.py [--large 4096] [--small 512] [--fits 128] [--rounds 4]
"""

import argparse
import json
import subprocess
import sys
import time

import numpy as np
import torch
from common import show

from gnn_encoder.artifacts import KnownPositives
from gnn_encoder.inference.encoding import autocast
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.memory import peak_gib
from gnn_encoder.models.dual_encoder import DualEncoder, device
from gnn_encoder.training.embed import embed
from gnn_encoder.training.losses import contrastive_loss

QUERY_TOKENS, PASSAGE_TOKENS = 12, 48


def random_tokens(count: int, length: int) -> Tokens:
    """`count` texts of `length` random word pieces."""
    ids = np.random.default_rng(0).integers(1000, 30000, count * length, dtype=np.int32)
    return Tokens(ids, np.arange(0, count * length + 1, length, dtype=np.int64))


def case(batch: int, cached: bool, rounds: int) -> dict[str, float]:
    """Seconds of the fastest step and peak memory in GiB, in this process."""
    model = DualEncoder.from_backbone(
        "minilm", pooling="auto", normalize="auto", query_length=32, passage_length=64, share_encoders=False
    )
    model.to(device()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    queries, passages = random_tokens(batch, QUERY_TOKENS), random_tokens(2 * batch, PASSAGE_TOKENS)
    known = KnownPositives(np.arange(batch), np.arange(batch))
    # A first step allocates AdamW's state, so that its memory counts for any number of rounds.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        excluded = torch.from_numpy(known.excluded(np.arange(batch), np.arange(2 * batch), np.arange(batch)))
        with autocast("auto"):
            loss = contrastive_loss(
                embed(model.query_encoder, queries, np.arange(batch), cached=cached),
                embed(model.passage_encoder, passages, np.arange(2 * batch), cached=cached),
                torch.arange(batch, device=device()), excluded.to(device()), 20.0, cached=cached,
            )  # fmt: skip
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        best = min(best, time.perf_counter() - began)
    return {"seconds": best, "gib": peak_gib()}


def main() -> None:
    """Run the cases, each in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", type=int, default=4096)
    parser.add_argument("--small", type=int, default=512)
    parser.add_argument("--fits", type=int, default=128, help="a batch that fits without the cache")
    parser.add_argument("--rounds", type=int, default=4, help="steps where it fits, the fastest counts")
    parser.add_argument("--case", nargs=2, metavar=("BATCH", "CACHED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(int(options.case[0]), options.case[1] == "yes", options.rounds)))
        return
    pairs = ((options.fits, "no"), (options.fits, "yes"), (options.small, "yes"), (options.large, "yes"))
    found = []
    for batch, cached in pairs:
        rounds = options.rounds if batch == options.fits else 1
        command = [sys.executable, __file__, "--case", str(batch), cached, "--rounds", str(rounds)]
        found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    rows = [
        (
            f"{batch:,}",
            cached,
            f"{result['gib']:.2f} GiB",
            f"{result['gib'] / found[2]['gib']:.2f}",
            f"{batch / result['seconds']:.1f}",
            f"{batch / result['seconds'] / (options.fits / found[0]['seconds']):.2f}",
        )
        for (batch, cached), result in zip(pairs, found, strict=True)
    ]
    show(
        f"MiniLM, queries of {QUERY_TOKENS} tokens, two passages of {PASSAGE_TOKENS} each",
        ("batch", "cache", "peak memory", f"of batch {options.small}'s", "queries/s", "of the uncached rate"),
        rows,
    )


if __name__ == "__main__":
    main()
