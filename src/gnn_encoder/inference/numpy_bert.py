"""BERT in NumPy, for the vector of one query. A search takes less than 1 s of processor time this way; importing torch
and transformers takes 5 s.

Only BERT in fp32 is supported (such as MiniLM and most dense retrievers); transformers runs every other encoder. Both
give the same vector, except for the last bits of fp32.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone_files import read_config

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
BERT = {"model_type": "bert", "hidden_act": "gelu", "dtype": "float32", "is_decoder": False}
"""The config of a supported encoder."""
erf: Callable[[np.ndarray], np.ndarray] = np.frompyfunc(math.erf, 1, 1)
"""Elementwise, on float64 objects: a query has few tokens, and SciPy takes 0.3 s to import."""


POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda hidden: np.asarray(hidden[0]),
    "mean": lambda hidden: np.asarray(hidden.mean(axis=0)),
}
"""Pooling → a text's vector [d] from its tokens' vectors [l, d], as in `models.dual_encoder`."""


class Bert:
    """A BERT (Devlin et al., 2019) with its pooling and its tokenizer."""

    @classmethod
    def read(cls, folder: Path) -> "Bert | None":
        """Reads the BERT in a folder of `TextEncoder.save`; None for another encoder. Errors as `read_config`."""
        config = read_config(str(folder))
        is_bert = BERT.items() <= config.items() and (folder / TOKENIZER).is_file()
        bert = cls(folder, config) if is_bert else None
        return bert if bert and bert._layout["pooling"] in POOLED else None

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._folder, self._config, self._weights = folder, config, load_file(folder / WEIGHTS)
        self._layout = json.loads((folder / "text_encoder.json").read_text("utf-8"))
        self.width: int = self._layout.get("dimension") or config["hidden_size"]
        self._prompt = self._layout.get("prompts", {}).get(self._layout.get("side"), "")
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        cut = (self._tokenizer.truncation or {}).get("direction", "right").lower()
        longest = min(self._layout["max_length"], config["max_position_embeddings"])
        self._tokenizer.enable_truncation(longest, direction=cut)
        self._tokenizer.no_padding()

    def __call__(self, question: str) -> np.ndarray:
        """The vector fp32 [1, d] of a query; raises `UserError` if the weights do not fit the config."""
        try:
            hidden = self._hidden(np.array(self._tokenizer.encode(self._prompt + question).ids))
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(f"{self._folder}: its weights do not fit its config.json ({error})") from None
        vector = POOLED[self._layout["pooling"]](hidden)[: self.width]
        if self._layout["normalize"]:
            vector = vector / max(np.linalg.norm(vector), 1e-12)
        return np.asarray(vector[None], np.float32)

    def _hidden(self, ids: np.ndarray) -> np.ndarray:
        """The last layer's vectors [l, d] of tokens [l]."""
        words, positions, types = (
            self._weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        )
        x = self._norm("embeddings.LayerNorm", words[ids] + positions[: len(ids)] + types[0])
        heads = (len(ids), self._config["num_attention_heads"], -1)
        for number in range(self._config["num_hidden_layers"]):
            layer = f"encoder.layer.{number}"
            q, k, v = (
                self._linear(f"{layer}.attention.self.{name}", x).reshape(heads).swapaxes(0, 1)
                for name in ("query", "key", "value")
            )
            logits = q @ k.swapaxes(1, 2) / np.float32(math.sqrt(q.shape[-1]))  # [heads, l, l]
            weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
            mixed = (weights / weights.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
            x = self._norm(
                f"{layer}.attention.output.LayerNorm", x + self._linear(f"{layer}.attention.output.dense", mixed)
            )
            inner = self._linear(f"{layer}.intermediate.dense", x)
            inner = inner * (0.5 + 0.5 * erf(inner / math.sqrt(2)).astype(np.float32))  # GELU
            x = self._norm(f"{layer}.output.LayerNorm", x + self._linear(f"{layer}.output.dense", inner))
        return x

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(self._config["layer_norm_eps"]))
        return np.asarray(centred / deviation * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"])
