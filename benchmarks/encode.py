"""Encoding speed against sentence-transformers: same model, texts, lengths and machine, in one run.

Each side encodes all texts `--rounds` times. The sides take turns, so that a noisy machine affects both. The table has
medians and ratios to sentence-transformers' default. Cosines are to the vectors of the default. The floor is the time
of the model's matrix products alone at the matrix rate measured in the same run.

    python benchmarks/encode.py [--passages 600] [--rounds 3] [--dataset DATASET_ARTIFACT]
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import documentation, in_turns, matmul_rate, show

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import encode_texts, fast_bf16, inference_dtype
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import resolve_backbone
from gnn_encoder.models.dual_encoder import TextEncoder, device

MAX_LENGTH = 256


def passages(path: str | None, count: int) -> list[str]:
    """Texts of a dataset artifact, or of the standard library's documentation."""
    with tempfile.TemporaryDirectory() as folder:
        path = path or str(documentation(Path(folder), count))
        table = Dataset(path).passages
        rows = np.linspace(0, len(table) - 1, min(count, len(table))).astype(int)
        return table.take(rows).full_texts()


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dataset")
    options = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    texts = passages(options.dataset, options.passages)
    folder = resolve_backbone("minilm")
    peer = SentenceTransformer(folder, device=str(device()))
    peer_bf16 = SentenceTransformer(folder, device=str(device()), model_kwargs={"torch_dtype": torch.bfloat16})
    encoder = TextEncoder.from_backbone("minilm", max_length=MAX_LENGTH).eval()
    sides: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers, default": lambda: peer.encode(texts),
        "gnn-encoder, auto": lambda: encode_texts(encoder, texts),
        "gnn-encoder, fp32": lambda: encode_texts(encoder, texts, precision="fp32"),
    }
    if fast_bf16():
        sides["sentence-transformers, bf16"] = lambda: peer_bf16.encode(texts)
    seconds, results = in_turns(sides, options.rounds)
    vectors = {name: np.asarray(found, dtype=np.float32) for name, found in results.items()}
    tokens = int(Tokens.of(encoder.tokenizer, texts, MAX_LENGTH).lengths.sum())
    embeddings = encoder.backbone.embeddings.word_embeddings.weight.numel()
    flops = 2 * tokens * (sum(p.numel() for p in encoder.parameters()) - embeddings)
    default = "sentence-transformers, default"
    rows = []
    for name, taken in seconds.items():
        cosine = (vectors[name] * vectors[default]).sum(1) / np.linalg.norm(vectors[name], axis=1)
        dtype = inference_dtype("auto" if "auto" in name else "bf16" if "bf16" in name else "fp32")
        floor = flops / matmul_rate(4096, 384, 1536, dtype)
        rate, ratio = len(texts) / taken, seconds[default] / taken
        rows.append((name, f"{rate:.1f}", f"{ratio:.2f}", f"{cosine.min():.5f}", f"{floor / taken:.0%}"))
    title = f"MiniLM, {len(texts)} passages, {tokens / len(texts):.0f} tokens on average, {MAX_LENGTH} at most"
    show(title, ("side", "passages/s (median)", "ratio", "least cosine", "of the matrix rate"), rows)


if __name__ == "__main__":
    main()
