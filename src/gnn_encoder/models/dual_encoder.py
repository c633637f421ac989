"""The dual encoder M_de, E_Q and E_P: text → vector; relevance is the dot product (GNN-encoder eq. 1)."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.models.backbone import (
    ADDRESS,
    check_text_tokens,
    load_encoder,
    load_tokenizer,
    readable_tokens,
    reads_ahead,
)
from gnn_encoder.models.backbone_files import (
    PACKAGED,
    is_published,
    refused,
    sentence_transformers_layout,
    transformer_of,
)
from gnn_encoder.models.packed import Row
from gnn_encoder.models.published import Head, check_vectors, write_layout
from gnn_encoder.models.sentence_layout import DOCUMENT, QUERY, TextLayout, known_prompts
from gnn_encoder.models.trusted_code import code_files, trust

LAYOUT, QUERY_ENCODER, PASSAGE_ENCODER = "text_encoder.json", "query_encoder", "passage_encoder"
COMPARED = "GNN_ENCODER_COMPARED"
"""Environment variable with the digests of the encoders that this run has compared with sentence-transformers."""


class TextEncoder(nn.Module):
    """A transformer with tokenizer and pooling, for queries, for passages, or (`side` None) for texts without a prompt.

    pooling     `cls` or `mean`; None: `head` has the modules that make a vector of a text
    normalize   to unit length, as cosine-trained backbones expect
    prompts     `query` and `document` → what stands before such a text; `prompt` is that of this side
    dimension   components of a vector that are kept, the first ones (Matryoshka); None: all
    """

    prompt = ""
    dimension: int | None = None

    def __init__(
        self,
        backbone: Any,
        tokenizer: Any,
        pooling: str | None,
        normalize: bool,
        max_length: int,
        *,
        head: Head | None = None,
        prompts: Mapping[str, str] = {},
        side: str | None = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.tokenizer, self.head = backbone, tokenizer, head
        self.full_precision = ("head",) if head else ()
        self.pooling = pooling
        self.normalize = normalize
        self.prompts, self.side = dict(prompts), side
        self.prompt = self.prompts.get(side, "") if side else ""
        self.dimension = dimension
        self.full_width: int = head.width if head else backbone.config.hidden_size
        self.width: int = dimension or self.full_width  # d, the length of a vector
        self.max_length = readable_tokens(backbone, max_length)
        self._left_out = {} if head is None or head.includes_prompt else {"prompt_length": self.prompt_tokens}

    @classmethod
    def from_backbone(
        cls,
        name: str,
        pooling: str = "auto",
        normalize: str = "auto",
        max_length: int = 128,
        *,
        side: str | None = None,
        prompts: Mapping[str, str] = {},
        dimension: int | None = None,
    ) -> "TextEncoder":
        """Loads a backbone as its sentence-transformers files say. No text is longer than the length that they name.

        Without such files vectors are `[CLS]`, or the last token of a causal model, and not normalised.

        Args:
            name: the backbone; a folder that `save` wrote is read as the encoder that was saved.
            pooling: `auto`, or a pooling in the place of the files'.
            normalize: `auto`, `yes` or `no`.
            max_length: tokens of a text, special tokens and the prompt included.
            side: `query` or `document`; None: no text gets a prompt.
            prompts: side → prompt, in the place of the files'.
            dimension: components that are kept.

        Raises:
            UserError: the backbone, its tokenizer or these files ask for something that would not be done.
        """
        saved = _saved_layout(name)
        layout = sentence_transformers_layout(name, pooling)
        part = transformer_of(name, layout)
        backbone, tokenizer = load_encoder(part, of_pair=True), load_tokenizer(part)
        if saved and not layout.modules and saved["pooling"]:
            layout = TextLayout((saved["pooling"],) if pooling == "auto" else (pooling,))
        if not layout.pooling:
            layout = TextLayout(("cls",) if reads_ahead(backbone) else ("lasttoken",))
        check_text_tokens(name, backbone, tokenizer, layout.pooling)
        tokenizer.padding_side = "right"  # on the left, padding moves the positions of GPT-2's kind
        unit_length = saved["normalize"] if saved else layout.normalize
        published = layout.prompts if layout.has_prompts else known_prompts(name)
        published = saved.get("prompts", {}) if saved else published
        longest = None if saved else layout.max_tokens
        dimension = dimension or (saved or {}).get("dimension") or layout.dimension
        hidden: int = backbone.config.hidden_size
        if dimension and dimension > (full := replace(layout, dimension=None).width(hidden)):
            raise refused(name, f"truncate_dimension = {dimension}, and its vectors have {full} components")
        return cls(
            backbone,
            tokenizer,
            layout.pooling[0] if layout.plain else None,
            unit_length if normalize == "auto" else normalize == "yes",
            min(max_length, longest or max_length),
            head=Head.of(name, layout, hidden),
            prompts={side: text for side, text in {**published, **prompts}.items() if text},
            side=side,
            dimension=dimension,
        )

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, with the special tokens before it."""
        if not self.prompt:
            return 0
        ids = self.tokenizer(self.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def for_queries(self) -> "TextEncoder":
        """An encoder of queries with the same weights."""
        return TextEncoder(
            self.backbone, self.tokenizer, self.pooling, self.normalize, self.max_length, head=self.head,
            prompts=self.prompts, side=QUERY, dimension=self.dimension,
        )  # fmt: skip

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors fp32 [b, d] of tokens [b, l]; mask 1 for tokens, 0 for padding."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0]
        if self.head:
            features = {"token_embeddings": hidden.float(), "attention_mask": attention_mask, **self._left_out}
            return self.finished(self.head(features))
        if self.pooling == "cls":
            vectors = hidden[:, 0].float()
        else:
            weights = attention_mask.unsqueeze(-1).float()
            vectors = (hidden.float() * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return self.finished(vectors)

    def packed(self, row: Row) -> Tensor:
        """Vectors fp32 [b, d] of the texts of a row, as `forward`."""
        hidden = row.hidden(self.backbone)
        if self.head:
            return self.finished(self.head.packed(row, hidden, **self._left_out))
        return self.finished(row.first(hidden).float() if self.pooling == "cls" else row.mean(hidden))

    def finished(self, vectors: Tensor) -> Tensor:
        """Pooled vectors [n, d] with as many components and the length that the encoder's have."""
        if self.dimension:
            vectors = vectors[:, : self.dimension]
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def save_weights(self, folder: Path) -> None:
        """Write config, tokenizer and safetensors, and the backbone's code if it has some."""
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if getattr(self.backbone.config, "auto_map", None):
            for file in code_files(Path(self.backbone.config._name_or_path)):
                shutil.copyfile(file, folder / file.name)

    def save(self, folder: Path) -> None:
        """Write config, tokenizer, safetensors, the layout, and the files that sentence-transformers reads."""
        self.save_weights(folder)
        write_layout(folder, self)
        layout = {"pooling": self.pooling, "normalize": self.normalize, "max_length": self.max_length}
        details = {"prompts": self.prompts, "side": self.prompts and self.side, "dimension": self.dimension}
        layout |= {name: value for name, value in details.items() if value}
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "TextEncoder":
        """Read what `save` wrote, also an `AddressEncoder`'s."""
        if (folder / ADDRESS).is_file():
            from gnn_encoder.models.address import AddressEncoder

            return AddressEncoder.load(folder)
        layout = json.loads((folder / LAYOUT).read_text("utf-8"))
        backbone, head = load_encoder(str(folder), of_pair=True), None
        if layout["pooling"] is None:
            head = Head.of(str(folder), sentence_transformers_layout(str(folder)), backbone.config.hidden_size)
        return cls(backbone, load_tokenizer(str(folder)), head=head, **layout)


def _saved_layout(name: str) -> dict[str, Any] | None:
    """What `TextEncoder.save` wrote into a folder."""
    file = Path(name) / LAYOUT
    return json.loads(file.read_text("utf-8")) if file.is_file() else None


class DualEncoder(nn.Module):
    """Query encoder and passage encoder; with shared weights both have the same backbone."""

    def __init__(self, query_encoder: TextEncoder, passage_encoder: TextEncoder) -> None:
        super().__init__()
        self.query_encoder = query_encoder
        self.passage_encoder = passage_encoder

    @classmethod
    def from_backbone(
        cls,
        name: str,
        *,
        pooling: str = "auto",
        normalize: str = "auto",
        query_length: int,
        passage_length: int,
        share_encoders: bool,
        query_prompt: str = "auto",
        passage_prompt: str = "auto",
        truncate_dimension: int | None = None,
        trusted_code: str = "",
    ) -> "DualEncoder":
        """Loads both encoders from one backbone, with separate weights unless `share_encoders`.

        If sentence-transformers has its own say on the backbone's vectors, some are compared with those it gives, once
        in a run.

        Raises:
            UserError: as `TextEncoder.from_backbone`, or the vectors differ.
        """
        trust(trusted_code)
        prompts = {side: text for side, text in ((QUERY, query_prompt), (DOCUMENT, passage_prompt)) if text != "auto"}
        reading: dict[str, Any] = {"prompts": prompts, "dimension": truncate_dimension}
        longest = max(query_length, passage_length)
        passage = TextEncoder.from_backbone(name, pooling, normalize, longest, side=DOCUMENT, **reading)
        if share_encoders:
            query = passage.for_queries()
        else:
            query = TextEncoder.from_backbone(name, pooling, normalize, longest, side=QUERY, **reading)
        query.max_length = min(query_length, query.max_length)
        passage.max_length = min(passage_length, passage.max_length)
        if pooling == "auto" and name not in PACKAGED and not _saved_layout(name) and is_published(name):
            key = digest_of({"name": name, "lengths": [query.max_length, passage.max_length], **reading})[:20]
            compared = os.environ.get(COMPARED, "").split()
            if key not in compared:
                check_vectors(name, {QUERY: query, DOCUMENT: passage})
                os.environ[COMPARED] = " ".join([*compared, key])
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
            model.query_encoder.head = model.passage_encoder.head
        return model

    @staticmethod
    def load_query_encoder(folder: Path) -> TextEncoder:
        """Reads only E_Q, for work on stored passage vectors."""
        return TextEncoder.load(folder / QUERY_ENCODER)


def device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_device(array: np.ndarray, where: torch.device | None = None) -> Tensor:
    """The array on `where`, by default `device()`. A GPU copies from pinned memory beside its work, without a wait."""
    tensor, where = torch.from_numpy(array), where or device()
    return tensor.pin_memory().to(where, non_blocking=True) if where.type == "cuda" else tensor.to(where)
