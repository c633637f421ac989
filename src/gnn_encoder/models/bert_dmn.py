"""BERT-DMN: a cross-encoder whose token outputs are read by a Dynamic Memory Network (BERT-DMN 3.2)."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import dropout

from gnn_encoder.models.backbone import check_pairs, load_encoder, load_tokenizer, readable_tokens
from gnn_encoder.models.dynamic_memory import DynamicMemory, MemoryConfig, sentence_means

LAYOUT, WEIGHTS = "bert_dmn.json", "memory.safetensors"


class Reading(NamedTuple):
    """What the memory network reads of a batch of pairs; of the encoder's outputs it needs nothing else."""

    cls: Tensor
    """[b, d], the output of `[CLS]`."""
    query: Tensor
    """[b, l, d], the outputs of the query's tokens, then padding."""
    query_length: Tensor
    """int64 [b]."""
    sentences: Tensor
    """[b, m, d], the mean output of each sentence of the passage, then padding."""
    sentence_count: Tensor
    """int64 [b], sentences of each passage."""


def reading(outputs: Tensor, segments: Tensor) -> Reading:
    """What the memory network reads of an encoder's outputs.

    Args:
        outputs: [b, t, d] of `[CLS] query [SEP] passage [SEP]`.
        segments: int64 [b, t]; 0 at the query's tokens, n at the tokens of the passage's nth sentence, from 1; -1 at
            `[CLS]`, `[SEP]` and padding.
    """
    query_length = (segments == 0).sum(dim=1)
    longest = max(int(query_length.amax()), 1)
    return Reading(outputs[:, 0], outputs[:, 1 : longest + 1], query_length, *sentence_means(outputs, segments))


class BertDmn(nn.Module):
    """A transformer over token pairs, a memory network over its outputs, and a linear answer module."""

    full_precision = ("memory", "answer")

    def __init__(self, backbone: Any, tokenizer: Any, max_length: int, config: MemoryConfig) -> None:
        super().__init__()
        self.backbone, self.tokenizer = backbone, tokenizer
        self._has_token_types = getattr(backbone.config, "type_vocab_size", 0) > 1
        self.max_length = readable_tokens(backbone, max_length)
        self.memory = DynamicMemory(config)
        self.answer = nn.Linear(config.source + 2 * config.width, 1)

    @classmethod
    def from_backbone(cls, name: str, max_length: int, **config: Any) -> "BertDmn":
        """A pretrained encoder with a new memory network; `config`: fields of `MemoryConfig` other than `source`."""
        backbone, tokenizer = load_encoder(name), load_tokenizer(name)
        check_pairs(name, backbone, tokenizer)
        return cls(backbone, tokenizer, max_length, MemoryConfig(backbone.config.hidden_size, **config))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, segments: Tensor) -> Tensor:
        """Scores fp32 [b] (logits) of token pairs [b, t]; `segments` as for `reading`."""
        types = {"token_type_ids": token_type_ids} if self._has_token_types else {}
        outputs = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types)[0]
        return self.score(reading(outputs, segments))

    def score(self, read: Reading) -> Tensor:
        """Scores fp32 [b] (logits): W [c; Q; m] + b. The lite model begins here, with stored outputs."""
        question, memory = self.memory(read.query, read.query_length, read.sentences, read.sentence_count)
        with torch.autocast(memory.device.type, enabled=False):
            facts = torch.cat([read.cls.float(), question, memory], dim=-1)
            scores: Tensor = self.answer(dropout(facts, self.memory.config.dropout, self.memory.training)).squeeze(-1)
        return scores

    def save(self, folder: Path) -> None:
        """Write the backbone, tokenizer, memory network, answer module and layout."""
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        tensors = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("backbone.")}
        save_file(tensors, folder / WEIGHTS)
        layout = {"max_length": self.max_length, "memory": asdict(self.memory.config)}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "BertDmn":
        """Read what `save` wrote."""
        folder = Path(folder)
        layout = json.loads((folder / LAYOUT).read_text("utf-8"))
        config = MemoryConfig(**layout["memory"])
        model = cls(load_encoder(str(folder)), load_tokenizer(str(folder)), layout["max_length"], config)
        tensors = load_file(folder / WEIGHTS)
        model.load_state_dict({f"backbone.{name}": t for name, t in model.backbone.state_dict().items()} | tensors)
        return model
