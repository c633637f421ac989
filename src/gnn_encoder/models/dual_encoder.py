"""The dual encoder M_de, E_Q and E_P: text → vector; relevance is the dot product (GNN-encoder eq. 1)."""

import json
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gnn_encoder.models.backbone import (
    ADDRESS,
    check_text_tokens,
    load_encoder,
    load_tokenizer,
    readable_tokens,
    sentence_transformers_layout,
)
from gnn_encoder.models.packed import Row

LAYOUT, QUERY_ENCODER, PASSAGE_ENCODER = "text_encoder.json", "query_encoder", "passage_encoder"
Pooling = Literal["cls", "mean"]


class TextEncoder(nn.Module):
    """A transformer with pooling and tokenizer; `normalize`: to unit length, as cosine-trained backbones expect."""

    def __init__(self, backbone: Any, tokenizer: Any, pooling: Pooling, normalize: bool, max_length: int) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise ValueError(f"no pooling {pooling!r}")
        self.backbone, self.tokenizer = backbone, tokenizer
        self.pooling: Pooling = pooling
        self.normalize = normalize
        self.width: int = backbone.config.hidden_size  # d, the length of a vector
        self.max_length = readable_tokens(backbone, max_length)

    @classmethod
    def from_backbone(
        cls, name: str, pooling: str = "auto", normalize: str = "auto", max_length: int = 128
    ) -> "TextEncoder":
        """Loads a backbone; `auto`: as its sentence-transformers files say, otherwise `[CLS]`, not normalised.

        `auto` in a folder that `save` wrote: as in the encoder that was saved. Raises UserError if the backbone, its
        tokenizer or these files ask for something that would not be done.
        """
        known, unit_length = _saved_layout(name) or sentence_transformers_layout(name, pooling)
        pooling = (known or "cls") if pooling == "auto" else pooling
        encoder, tokenizer = load_encoder(name), load_tokenizer(name)
        check_text_tokens(name, encoder, tokenizer, pooling)
        normalized = unit_length if normalize == "auto" else normalize == "yes"
        return cls(encoder, tokenizer, pooling, normalized, max_length)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors fp32 [b, d] of tokens [b, l]; mask 1 for tokens, 0 for padding."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0]
        if self.pooling == "cls":
            vectors = hidden[:, 0].float()
        else:
            weights = attention_mask.unsqueeze(-1).float()
            vectors = (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return self._scaled(vectors)

    def packed(self, row: Row) -> Tensor:
        """Vectors fp32 [b, d] of the texts of a row, as `forward`."""
        hidden = row.hidden(self.backbone)
        return self._scaled(row.first(hidden).float() if self.pooling == "cls" else row.mean(hidden))

    def _scaled(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def save(self, folder: Path) -> None:
        """Write config, tokenizer, safetensors and the layout."""
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        layout = {"pooling": self.pooling, "normalize": self.normalize, "max_length": self.max_length}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "TextEncoder":
        """Read what `save` wrote, also an `AddressEncoder`'s."""
        if (folder / ADDRESS).is_file():
            from gnn_encoder.models.address import AddressEncoder

            return AddressEncoder.load(folder)
        layout = json.loads((folder / LAYOUT).read_text("utf-8"))
        return cls(load_encoder(str(folder)), load_tokenizer(str(folder)), **layout)


def _saved_layout(name: str) -> tuple[Pooling, bool] | None:
    """The pooling of an encoder in a folder that `TextEncoder.save` wrote, and whether its vectors have unit length."""
    file = Path(name) / LAYOUT
    if not file.is_file():
        return None
    layout = json.loads(file.read_text("utf-8"))
    return layout["pooling"], layout["normalize"]


class DualEncoder(nn.Module):
    """Query encoder and passage encoder; with shared weights both have the same backbone."""

    def __init__(self, query_encoder: TextEncoder, passage_encoder: TextEncoder) -> None:
        super().__init__()
        self.query_encoder = query_encoder
        self.passage_encoder = passage_encoder

    @classmethod
    def from_backbone(
        cls, name: str, *, pooling: str, normalize: str, query_length: int, passage_length: int, share_encoders: bool
    ) -> "DualEncoder":
        """Loads both encoders from one backbone, with separate weights unless `share_encoders`."""
        passage = TextEncoder.from_backbone(name, pooling, normalize, passage_length)
        if not share_encoders:
            return cls(TextEncoder.from_backbone(name, pooling, normalize, query_length), passage)
        query = TextEncoder(passage.backbone, passage.tokenizer, passage.pooling, passage.normalize, query_length)
        return cls(query, passage)

    @property
    def shared(self) -> bool:
        """Whether both encoders share one set of weights."""
        return self.query_encoder.backbone is self.passage_encoder.backbone

    def save(self, folder: Path) -> None:
        """Write `query_encoder/` and `passage_encoder/`; shared weights are written to both."""
        self.query_encoder.save(folder / QUERY_ENCODER)
        self.passage_encoder.save(folder / PASSAGE_ENCODER)
        (folder / "dual_encoder.json").write_text(json.dumps({"shared": self.shared}), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "DualEncoder":
        """Read what `save` wrote."""
        folder = Path(folder)
        model = cls(cls.load_query_encoder(folder), TextEncoder.load(folder / PASSAGE_ENCODER))
        if json.loads((folder / "dual_encoder.json").read_text("utf-8"))["shared"]:
            model.query_encoder.backbone = model.passage_encoder.backbone
        return model

    @staticmethod
    def load_query_encoder(folder: Path) -> TextEncoder:
        """Reads only E_Q, for work on stored passage vectors."""
        return TextEncoder.load(folder / QUERY_ENCODER)


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
