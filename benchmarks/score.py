"""Scoring pairs with a cross-encoder against sentence-transformers' CrossEncoder: same backbone, pairs and lengths.

Our side also returns each pair's [CLS] vector, in the same pass. The heads differ (a linear layer on [CLS] here, BERT's
pooler there), so only speed is compared. The tests check that batching changes no score. The floor is the time of the
model's matrix products alone at the matrix rate measured in the same run.

    python benchmarks/score.py [--queries 40] [--candidates 20] [--rounds 3]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import documentation, in_turns, matmul_rate, show

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.encoding import fast_bf16, inference_dtype
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import resolve_backbone
from gnn_encoder.models.cross_encoder import CrossEncoder

LENGTH = 160


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import sentence_transformers

    n, k = options.queries, options.candidates
    with tempfile.TemporaryDirectory() as folder:
        data = Dataset(documentation(Path(folder), 2000))
        questions = data.query_texts(data.query_rows("train")[:n])
        drawn, second = np.unique(np.random.default_rng(0).integers(0, len(data.passages), n * k), return_inverse=True)
        passages = data.passages.take(drawn).full_texts()
    first = np.repeat(np.arange(n), k)
    texts = [(questions[q], passages[p]) for q, p in zip(first, second, strict=True)]
    model = CrossEncoder.from_backbone("minilm", LENGTH)

    def ours(precision: str) -> np.ndarray:
        asked, read = (Tokens.of(model.tokenizer, side, LENGTH) for side in (questions, passages))
        pairs = PairTokens(model.tokenizer, asked, read, LENGTH)
        scores, cls = np.empty(n * k, np.float32), np.empty((n * k, model.width), np.float16)
        score_pairs(model, pairs, first, second, scores, cls, precision=precision)
        return scores

    def peer(**model_arguments: Any) -> Any:
        return sentence_transformers.CrossEncoder(
            resolve_backbone("minilm"), num_labels=1, max_length=LENGTH, model_kwargs=model_arguments
        )

    default = "sentence-transformers, default"
    plain, half = peer(), peer(dtype=torch.bfloat16)
    sides = {
        default: lambda: plain.predict(texts),
        "sentence-transformers, bf16": lambda: half.predict(texts),
        "gnn-encoder, auto": lambda: ours("auto"),
        "gnn-encoder, fp32": lambda: ours("fp32"),
    }
    seconds, _ = in_turns(sides, options.rounds)
    tokens = int(sum(map(len, model.tokenizer(texts, truncation="only_second", max_length=LENGTH)["input_ids"])))
    embeddings = model.backbone.embeddings.word_embeddings.weight.numel()
    flops = 2 * tokens * (sum(p.numel() for p in model.parameters()) - embeddings)
    rows = []
    for name, taken in seconds.items():
        bf16 = "bf16" in name or ("auto" in name and inference_dtype("auto") is torch.bfloat16)
        floor = flops / matmul_rate(4096, 384, 1536, torch.bfloat16 if bf16 else torch.float32)
        rows.append((name, f"{n * k / taken:.1f}", f"{seconds[default] / taken:.2f}", f"{floor / taken:.0%}"))
    title = f"MiniLM, {n * k:,} pairs, {tokens / n / k:.0f} tokens on average, {LENGTH} at most"
    show(title, ("side", "pairs/s (median)", "ratio", "of the matrix rate"), rows, f"fast bf16: {fast_bf16()}")


if __name__ == "__main__":
    main()
