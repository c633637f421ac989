"""The cross-encoder M_ce: a linear head on `[CLS]` of `[CLS] query [SEP] passage [SEP]` (GNN-encoder 3.4)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gnn_encoder.models.backbone import check_pairs, load_encoder, load_tokenizer, readable_tokens
from gnn_encoder.models.packed import Row

LAYOUT, HEAD = "cross_encoder.json", "head.safetensors"


class CrossEncoder(nn.Module):
    """A transformer over token pairs with a linear head."""

    def __init__(self, backbone: Any, tokenizer: Any, max_length: int) -> None:
        super().__init__()
        self.backbone, self.tokenizer = backbone, tokenizer
        self._has_token_types = getattr(backbone.config, "type_vocab_size", 0) > 1
        self.width: int = backbone.config.hidden_size  # d_e, the length of a pair's [CLS] vector
        self.max_length = readable_tokens(backbone, max_length)
        self.head = nn.Linear(self.width, 1)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_backbone(cls, name: str, max_length: int) -> "CrossEncoder":
        """A pretrained encoder with a new head, in the place of any head of its own; errors as `check_pairs`."""
        backbone, tokenizer = load_encoder(name), load_tokenizer(name)
        check_pairs(name, backbone, tokenizer)
        return cls(backbone, tokenizer, max_length)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [b] (logits) and [CLS] vectors [b, d_e], fp32, of token pairs [b, l]."""
        types = {"token_type_ids": token_type_ids} if self._has_token_types else {}
        return self.scored(self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types)[0][:, 0])

    def packed(self, row: Row) -> tuple[Tensor, Tensor]:
        """Scores [b] and [CLS] vectors [b, d_e] of the pairs of a row, as `forward`."""
        row = row if self._has_token_types else replace(row, types=None)
        return self.scored(row.first(row.hidden(self.backbone)))

    def scored(self, cls: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [b] (logits) and [CLS] vectors [b, d_e], fp32, of [CLS] vectors. The lite model begins here."""
        cls = cls.float()
        # The head is always fp32: in bf16 many scores of a query would be tied.
        with torch.autocast(cls.device.type, enabled=False):
            # Row by row, because the rounding of one product over all rows depends on the number of rows.
            return (cls * self.head.weight.float()).sum(dim=-1) + self.head.bias.float(), cls

    def save(self, folder: Path) -> None:
        """Write the backbone, tokenizer, head and layout."""
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        save_file(self.head.state_dict(), folder / HEAD)
        (folder / LAYOUT).write_text(json.dumps({"max_length": self.max_length}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "CrossEncoder":
        """Read what `save` wrote."""
        folder = Path(folder)
        model = cls.from_backbone(str(folder), json.loads((folder / LAYOUT).read_text("utf-8"))["max_length"])
        model.head.load_state_dict(load_file(folder / HEAD))
        return model
