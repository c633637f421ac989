"""Random models of many kinds in the layout of sentence-transformers, and what it gives for their texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_tokenizer

from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder

LENGTH = 24
TEXTS = ["the old river", "A Violin of copper", "what is heavy about the garden in winter", "z", "letter " * 40]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BOOLEANS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
Change = Callable[[Path], None]


def write_transformer(folder: Path, kind: str = "bert", **config: Any) -> Path:
    """A random model of some kind with the tests' tokenizer; its weights are so large that vectors depend on texts."""
    import transformers

    write_tokenizer(folder)
    words = len((folder / "vocab.txt").read_text().splitlines())
    sizes = {**SIZE, "vocab_size": words, "max_position_embeddings": 64, "pad_token_id": 0, **config}
    configs = {
        "bert": transformers.BertConfig,
        "roberta": transformers.RobertaConfig,
        "mpnet": transformers.MPNetConfig,
        "modernbert": transformers.ModernBertConfig,
        "qwen2": transformers.Qwen2Config,
        "t5": transformers.T5Config,
        "llama": transformers.LlamaConfig,
        "gemma": transformers.Gemma3TextConfig,
    }
    if kind in ("qwen2", "llama", "gemma", "modernbert"):
        sizes |= {"bos_token_id": 2, "eos_token_id": 3, "num_key_value_heads": 2}
    if kind == "modernbert":
        sizes |= {"cls_token_id": 2, "sep_token_id": 3}
    if kind == "gemma":
        sizes |= {"head_dim": 8}
    if kind == "t5":
        sizes = {"vocab_size": words, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    loader = transformers.AutoModelForTextEncoding if kind == "t5" else transformers.AutoModel
    model = loader.from_config(configs[kind](**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


def publish(raw: Path, folder: Path, pooling: Any, *, legacy: bool = False, more: Any = (), **settings: Any) -> Path:
    """A folder that sentence-transformers writes of a plain one; `legacy`: with the keys of versions before 5.4."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer = Transformer(str(raw), max_seq_length=LENGTH)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode=pooling), *more]
    model = SentenceTransformer(modules=modules, device="cpu", **settings)
    model.save_pretrained(str(folder), create_model_card=False)
    if legacy:
        booleans = {key: mode == pooling for mode, key in BOOLEANS.items()}
        write(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, **booleans, "include_prompt": True})
        entries = json.loads((folder / "modules.json").read_text())
        for entry in entries:
            entry["type"] = "sentence_transformers.models." + entry["type"].rsplit(".", 1)[-1]
        write(folder / "modules.json", entries)
    return folder


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def edit(file: str, **changes: Any) -> Change:
    """Returns a function that changes keys of a JSON file in a folder."""

    def change(folder: Path) -> None:
        path = folder / file
        write(path, (json.loads(path.read_text()) if path.exists() else {}) | changes)

    return change


def vectors_of(folder: Path, **options: Any) -> np.ndarray:
    encoder = TextEncoder.from_backbone(str(folder), max_length=LENGTH, **options)
    return encode_texts(encoder, TEXTS, precision="fp32")


def encoders_of(folder: Path, share_encoders: bool = True, length: int = LENGTH, **options: Any) -> DualEncoder:
    return DualEncoder.from_backbone(
        str(folder), query_length=length, passage_length=length, share_encoders=share_encoders, **options
    )


def vectors_of_both(encoders: DualEncoder) -> list[np.ndarray]:
    """Vectors of `TEXTS` as queries, and as passages."""
    return [
        encode_texts(encoder, TEXTS, precision="fp32") for encoder in (encoders.query_encoder, encoders.passage_encoder)
    ]


def published_vectors(folder: Path, of: str = "encode_document") -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(getattr(model, of)(TEXTS, show_progress_bar=False), np.float32)


def worst_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def refusal(read: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        read()
    assert "\n" not in str(caught.value)
    return str(caught.value)
