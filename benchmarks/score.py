"""Scoring pairs with a cross-encoder against sentence-transformers' CrossEncoder: same backbone, pairs and lengths.

Our side also returns each pair's [CLS] vector, in the same pass. The heads differ (a linear layer on [CLS] here, BERT's
pooler there), so only speed is compared. The tests check that batching changes no score. The floor is the time of the
model's matrix products alone at the matrix rate measured in the same run.

    python benchmarks/score.py [--queries 40] [--candidates 20] [--length 160] [--rounds 3] [--backbone minilm]
                               [--dataset DATASET_ARTIFACT]
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from common import dataset, in_turns, matmul_rate, options, peer_attention, ratio, show

from gnn_encoder.inference.encoding import fast_bf16, inference_dtype
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone_files import resolve_backbone
from gnn_encoder.models.cross_encoder import CrossEncoder


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio to the peer's fastest side."""
    o = options(__doc__, arguments, queries=40, candidates=20, length=160, rounds=3, backbone="minilm", dataset=None)
    import sentence_transformers

    k = o.candidates
    with dataset(o.dataset, 2000) as data:
        questions = data.query_texts(data.query_rows("train")[: o.queries])
        n = len(questions)
        drawn, second = np.unique(np.random.default_rng(0).integers(0, len(data.passages), n * k), return_inverse=True)
        passages = data.passages.take(drawn).full_texts()
    first = np.repeat(np.arange(n), k)
    texts = [(questions[q], passages[p]) for q, p in zip(first, second, strict=True)]
    model = CrossEncoder.from_backbone(o.backbone, o.length)

    def ours(precision: str) -> np.ndarray:
        asked, read = (Tokens.of(model.tokenizer, side, o.length) for side in (questions, passages))
        pairs = PairTokens(model.tokenizer, asked, read, o.length)
        scores, cls = np.empty(n * k, np.float32), np.empty((n * k, model.width), np.float16)
        score_pairs(model, pairs, first, second, scores, cls, precision=precision)
        return scores

    def peer(**model_arguments: Any) -> Any:
        return sentence_transformers.CrossEncoder(
            resolve_backbone(o.backbone), num_labels=1, max_length=o.length, model_kwargs=model_arguments
        )

    default = "sentence-transformers, default"
    plain, half = peer(), peer(dtype=torch.bfloat16, attn_implementation=peer_attention())
    sides: dict[str, Callable[[], Any]] = {
        default: lambda: plain.predict(texts),
        "sentence-transformers, bf16": lambda: half.predict(texts),
        "gnn-encoder, auto": lambda: ours("auto"),
        "gnn-encoder, fp32": lambda: ours("fp32"),
    }
    if torch.cuda.is_available():
        sides["sentence-transformers, bf16, batches of 256"] = lambda: half.predict(texts, batch_size=256)
    seconds, _ = in_turns(sides, o.rounds, o.seconds)
    tokens = int(sum(map(len, model.tokenizer(texts, truncation="only_second", max_length=o.length)["input_ids"])))
    embeddings = model.backbone.embeddings.word_embeddings.weight.numel()
    flops = 2 * tokens * (sum(p.numel() for p in model.parameters()) - embeddings)
    rows = []
    for name, taken in seconds.items():
        bf16 = "bf16" in name or ("auto" in name and inference_dtype("auto") is torch.bfloat16)
        floor = flops / matmul_rate(4096, model.width, 4 * model.width, torch.bfloat16 if bf16 else torch.float32)
        rows.append((name, f"{n * k / taken:.1f}", f"{seconds[default] / taken:.2f}", f"{floor / taken:.0%}"))
    title = f"{o.backbone}, {n * k:,} pairs, {tokens / n / k:.0f} tokens on average, {o.length} at most"
    show(title, ("side", "pairs/s (median)", "ratio", "of the matrix rate"), rows, f"fast bf16: {fast_bf16()}")
    return ratio(seconds)


if __name__ == "__main__":
    main()
