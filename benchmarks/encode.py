"""Encoding speed against sentence-transformers: same model, texts, lengths and machine, in one run.

Each side encodes all texts `--rounds` times. The sides take turns, so that a noisy machine affects both. The table has
medians and ratios to sentence-transformers' default. Cosines are to the vectors of the default. The floor is the time
of the model's matrix products alone at the matrix rate measured in the same run.

    python benchmarks/encode.py [--passages 600] [--length 256] [--rounds 3] [--backbone minilm]
                                [--dataset DATASET_ARTIFACT]
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from common import dataset, in_turns, matmul_rate, options, peer_attention, ratio, show

from gnn_encoder.inference.encoding import encode_texts, fast_bf16, inference_dtype
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone_files import resolve_backbone
from gnn_encoder.models.dual_encoder import TextEncoder, device


def passages(path: str | None, count: int) -> list[str]:
    """Texts of a dataset artifact, or of the standard library's documentation."""
    with dataset(path, count) as data:
        table = data.passages
        rows = np.linspace(0, len(table) - 1, min(count, len(table))).astype(int)
        texts: list[str] = table.take(rows).full_texts()
    return texts


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the ratio to the peer's fastest side."""
    o = options(__doc__, arguments, passages=600, length=256, rounds=3, backbone="minilm", dataset=None)
    from sentence_transformers import SentenceTransformer

    texts = passages(o.dataset, o.passages)
    folder = resolve_backbone(o.backbone)
    peer = SentenceTransformer(folder, device=str(device()))
    half = {"dtype": torch.bfloat16, "attn_implementation": peer_attention()}
    peer_bf16 = SentenceTransformer(folder, device=str(device()), model_kwargs=half)
    peer.max_seq_length = peer_bf16.max_seq_length = o.length
    encoder = TextEncoder.from_backbone(o.backbone, "mean", "yes", o.length).eval()
    sides: dict[str, Callable[[], np.ndarray]] = {
        "sentence-transformers, default": lambda: peer.encode(texts),
        "gnn-encoder, auto": lambda: encode_texts(encoder, texts),
        "gnn-encoder, fp32": lambda: encode_texts(encoder, texts, precision="fp32"),
    }
    if fast_bf16():
        sides["sentence-transformers, bf16"] = lambda: peer_bf16.encode(texts)
    if torch.cuda.is_available():
        sides["sentence-transformers, bf16, batches of 256"] = lambda: peer_bf16.encode(texts, batch_size=256)
    seconds, results = in_turns(sides, o.rounds, o.seconds)
    vectors = {name: np.asarray(found, dtype=np.float32) for name, found in results.items()}
    tokens = int(Tokens.of(encoder.tokenizer, texts, o.length).lengths.sum())
    embeddings = encoder.backbone.embeddings.word_embeddings.weight.numel()
    flops = 2 * tokens * (sum(p.numel() for p in encoder.parameters()) - embeddings)
    default = "sentence-transformers, default"
    rows = []
    for name, taken in seconds.items():
        lengths = np.linalg.norm(vectors[name], axis=1) * np.linalg.norm(vectors[default], axis=1)
        cosine = (vectors[name] * vectors[default]).sum(1) / lengths
        dtype = inference_dtype("auto" if "auto" in name else "bf16" if "bf16" in name else "fp32")
        floor = flops / matmul_rate(4096, encoder.width, 4 * encoder.width, dtype)
        rate, times = len(texts) / taken, seconds[default] / taken
        rows.append((name, f"{rate:.1f}", f"{times:.2f}", f"{cosine.min():.5f}", f"{floor / taken:.0%}"))
    title = f"{o.backbone}, {len(texts)} passages, {tokens / len(texts):.0f} tokens on average, {o.length} at most"
    show(title, ("side", "passages/s (median)", "ratio", "least cosine", "of the matrix rate"), rows)
    return ratio(seconds)


if __name__ == "__main__":
    main()
