"""Encoding speed against sentence-transformers: same model, texts, lengths and CPU, in one run.

Each side encodes all texts `--rounds` times, taking turns, so that a noisy machine disturbs both; the table
shows medians and their ratio to sentence-transformers' default. Cosines are to the default's vectors. The
floor is the time that the model's matrix products alone would take at the rate measured beside it.

    python benchmarks/encode.py [--passages 600] [--rounds 3] [--dataset DATASET_ARTIFACT]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from gnn_encoder.artifacts import Dataset
from gnn_encoder.encoding import Tokens, encode_texts, inference_dtype, native_bf16
from gnn_encoder.models.backbone import resolve_backbone
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings import Ingest

MAX_LENGTH = 256


def passages(path: str | None, count: int) -> list[str]:
    """Texts of a dataset artifact, or of the standard library's documentation."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            from gnn_encoder.steps.ingest import ingest

            path = str(Path(folder) / "dataset")
            ingest(Ingest(dataset="python-docs", max_passages=count), dataset=path)
        table = Dataset(path).passages
        rows = np.linspace(0, len(table) - 1, min(count, len(table))).astype(int)
        return table.take(rows).full_texts()


def matmul_rate(dtype: torch.dtype) -> float:
    """FLOP/s of a [4096, 384] × [384, 1536] product, the model's commonest, best of some."""
    a, b = torch.randn(4096, 384).to(dtype), torch.randn(384, 1536).to(dtype)
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - began)
    return 2 * 4096 * 384 * 1536 / best


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dataset")
    options = parser.parse_args()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import __version__ as peer_version

    texts = passages(options.dataset, options.passages)
    folder = resolve_backbone("minilm")
    peer = SentenceTransformer(folder, device="cpu")
    peer_bf16 = SentenceTransformer(folder, device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
    encoder = TextEncoder.from_backbone("minilm", max_length=MAX_LENGTH).eval()
    sides: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers, default": lambda: peer.encode(texts),
        "gnn-encoder, auto": lambda: encode_texts(encoder, texts),
        "gnn-encoder, fp32": lambda: encode_texts(encoder, texts, precision="fp32"),
    }
    if native_bf16():
        sides["sentence-transformers, bf16"] = lambda: peer_bf16.encode(texts)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    vectors: dict[str, np.ndarray] = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            vectors[name] = np.asarray(side(), dtype=np.float32)
            seconds[name].append(time.perf_counter() - began)

    tokens = int(Tokens.of(encoder.tokenizer, texts, MAX_LENGTH).lengths.sum())
    embeddings = encoder.backbone.embeddings.word_embeddings.weight.numel()
    flops = 2 * tokens * (sum(p.numel() for p in encoder.parameters()) - embeddings)
    default = "sentence-transformers, default"
    table = Table(
        title=f"MiniLM, {len(texts)} passages, {tokens / len(texts):.0f} tokens on average, {MAX_LENGTH} at most"
    )
    for heading in ("side", "passages/s (median)", "ratio", "least cosine", "of the matrix rate"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for name in sides:
        median = statistics.median(seconds[name])
        cosine = (vectors[name] * vectors[default]).sum(1) / np.linalg.norm(vectors[name], axis=1)
        floor = flops / matmul_rate(inference_dtype("auto" if "auto" in name else "bf16" if "bf16" in name else "fp32"))
        ratio = statistics.median(seconds[default]) / median
        table.add_row(
            name, f"{len(texts) / median:.1f}", f"{ratio:.2f}", f"{cosine.min():.5f}", f"{floor / median:.0%}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"{torch.get_num_threads()} threads, native bf16: {native_bf16()}, torch {torch.__version__}, "
        f"sentence-transformers {peer_version}, {torch.cpu.get_capabilities().get('architecture', '')} CPU"
        if hasattr(torch.cpu, "get_capabilities")
        else f"{torch.get_num_threads()} threads, native bf16: {native_bf16()}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
