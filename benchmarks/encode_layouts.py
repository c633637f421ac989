"""Encoding speed of several architectures against sentence-transformers: same weights, texts, lengths and machine.

The models have random weights in the shape of published ones with 6 layers of width 384 (`SHAPES`), MiniLM's tokenizer,
and the files that sentence-transformers writes. The sides take turns. Packed models are read without padding, the
others with it. The ratio is to the peer's faster side, in fp32 or bf16; its texts are sorted by length, too.

    python benchmarks/encode_layouts.py [--passages 300] [--length 256] [--rounds 3] [--models mpnet,t5,qwen3]
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import in_turns, options, ratio, show
from encode import passages
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from gnn_encoder.inference.encoding import encode_texts, fast_bf16
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.models.dual_encoder import TextEncoder, device

ROPE = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mpnet": ("MPNetConfig", "mean", ROPE),
    "t5": ("T5Config", "mean", {"num_layers": 6, "d_model": 384, "num_heads": 12, "d_kv": 32, "d_ff": 1536}),
    "modernbert": ("ModernBertConfig", "mean", {**ROPE, "intermediate_size": 1024, "global_attn_every_n_layers": 3}),
    "qwen3": ("Qwen3Config", "lasttoken", {**ROPE, "num_key_value_heads": 6, "head_dim": 32}),
}
"""Name → configuration of transformers, pooling, and its numbers."""


def write_model(name: str, folder: Path) -> None:
    """Random weights, MiniLM's tokenizer, and the list of modules."""
    import transformers

    config_class, pooling, numbers = SHAPES[name]
    tokenizer = load_tokenizer("minilm")
    numbers = {**numbers, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    numbers |= {"eos_token_id": tokenizer.sep_token_id, "bos_token_id": tokenizer.cls_token_id}
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**numbers)
    model = transformers.T5EncoderModel(config) if name == "t5" else transformers.AutoModel.from_config(config)
    model.save_pretrained(folder / "raw")
    tokenizer.save_pretrained(folder / "raw")
    module = Transformer(str(folder / "raw"))
    width = module.get_embedding_dimension()
    SentenceTransformer(modules=[module, Pooling(width, pooling), Normalize()], device="cpu").save(str(folder / "made"))


def main(arguments: Sequence[str] | None = None) -> float:
    """Run, print the table, and return the lowest ratio."""
    o = options(__doc__, arguments, passages=300, length=256, rounds=3, models=",".join(SHAPES))
    texts, rows, ratios = passages(None, o.passages), [], []
    for name in o.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            write_model(name, Path(folder))
            made = str(Path(folder, "made"))
            encoder = TextEncoder.from_backbone(made, max_length=o.length).eval()
            peers = {"fp32": SentenceTransformer(made, device=str(device()))}
            if fast_bf16():
                half = {"dtype": torch.bfloat16}  # with the attention that transformers takes for this architecture
                peers["bf16"] = SentenceTransformer(made, device=str(device()), model_kwargs=half)
            for peer in peers.values():
                peer.max_seq_length = o.length
            sides = {f"sentence-transformers, {of}": lambda peer=peer: peer.encode(texts) for of, peer in peers.items()}
            sides["gnn-encoder"] = lambda encoder=encoder: encode_texts(encoder, texts)
            seconds, results = in_turns(sides, o.rounds, o.seconds)
        ours, theirs = (np.asarray(results[of], np.float32) for of in ("gnn-encoder", "sentence-transformers, fp32"))
        cosine = float((ours * theirs).sum(1).min())
        ratios.append(ratio(seconds))
        speeds = [f"{len(texts) / seconds[of]:.1f}" if of in seconds else "" for of in sides]
        rows.append([name, *speeds, f"{ratios[-1]:.2f}", f"{cosine:.5f}"])
    headings = ["passages/s", *sides, "ratio", "least cosine"]
    show(f"{len(texts)} passages of at most {o.length} tokens", headings, rows, "ratio: to the faster peer")
    return min(ratios)


if __name__ == "__main__":
    main()
