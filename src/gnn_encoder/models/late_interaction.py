"""ColBERT: a vector for each token; relevance is the sum over query tokens of the best passage token (MaxSim).

Khattab and Zaharia (2020), as SS-BERT trains it: one encoder for both sides. A marker token after `[CLS]` says which
side a text is.
"""

import json
import string
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import eval_frozen, load_encoder, load_tokenizer, readable_tokens
from gnn_encoder.models.backbone_files import check_token_vectors, resolve_backbone
from gnn_encoder.models.packed import Row

LAYOUT, PROJECTION = "late_interaction.json", "projection.safetensors"
UNUSED, ADDED = ("[unused0]", "[unused1]"), ("[Q]", "[D]")
"""The markers of queries and passages: ColBERT takes two unused tokens of BERT's vocabulary. Others get new tokens."""


@dataclass(frozen=True)
class LateInteractionLayout:
    """How texts become tokens, and tokens vectors."""

    width: int = 128
    """Length of a token's vector."""
    query_length: int = 32
    """Tokens of a query, special tokens and the marker included."""
    passage_length: int = 180
    """Tokens of a passage, special tokens and the marker included."""
    expand_queries: bool = True
    """Queries are filled up to `query_length` with `[MASK]`, and the masks' vectors take part in the score."""
    attend_to_masks: bool = False
    """The other query tokens read the added masks. ColBERT: no."""
    titles: bool = True
    """A passage's title is read before its text. Without, the title is read where a passage has no text."""
    markers: tuple[int, int] | None = None
    """Tokens of a published model that mark queries and passages; None: see `UNUSED`."""
    skipped: tuple[int, ...] | None = None
    """Tokens of a passage that a published model leaves out of the score; None: punctuation."""


class LateInteraction(nn.Module):
    """A transformer over texts with a linear map of each token's output."""

    def __init__(self, backbone: Any, tokenizer: Any, layout: LateInteractionLayout) -> None:
        super().__init__()
        self.backbone, self.tokenizer = backbone, tokenizer
        query, passage = (readable_tokens(backbone, length) for length in (layout.query_length, layout.passage_length))
        self.layout = layout = replace(layout, query_length=query, passage_length=passage)
        self.width = layout.width
        self.projection = nn.Linear(backbone.config.hidden_size, layout.width, bias=False)
        self.projection_is_new = True
        nn.init.normal_(self.projection.weight, std=0.02)
        if layout.expand_queries and tokenizer.mask_token_id is None:
            raise UserError("late interaction fills queries up with [MASK], which this backbone's tokenizer lacks")
        self.markers = layout.markers or _markers(backbone, tokenizer)
        self.punctuation = _punctuation(tokenizer) if layout.skipped is None else frozenset(layout.skipped)
        """Tokens of a passage that are left out of the score."""

    @classmethod
    def from_backbone(cls, name: str, layout: LateInteractionLayout) -> "LateInteraction":
        """A pretrained encoder with a new linear map; of a folder that `save` wrote, with the map in it.

        Raises UserError if this map has another width than the layout, or if the encoder comes with a map of another
        package, which would not be read.
        """
        check_token_vectors(name)
        model = cls(load_encoder(name), load_tokenizer(name), layout)
        file = Path(resolve_backbone(name)) / PROJECTION
        if file.is_file():
            weights = load_file(file)
            if (width := len(weights["weight"])) != layout.width:
                raise UserError(f"backbone {name!r} gives vectors of {width} numbers: set token_width to {width}")
            model.projection.load_state_dict(weights)
            model.projection_is_new = False
        return model

    def train(self, mode: bool = True) -> Self:
        """As in every module, but frozen layers stay in eval mode, also when training continues after an evaluation."""
        super().train(mode)
        eval_frozen(self.backbone)
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors of unit length, fp32 [b, l, width], of tokens [b, l]; mask 1 for tokens that are read."""
        return self._projected(self.backbone(input_ids=input_ids, attention_mask=attention_mask)[0])

    def packed(self, row: Row) -> Tensor:
        """Vectors [t, width] of a row's tokens, as `forward`."""
        return self._projected(row.hidden(self.backbone))

    def _projected(self, hidden: Tensor) -> Tensor:
        return nn.functional.normalize(self.projection(hidden).float(), dim=-1)

    def query_arrays(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids and mask int64 [b, l] to read, and bool [b, l]: the tokens that are summed over.

        The marker follows the first token. Queries are filled up with `[MASK]`, if the layout says so.

        Args:
            ids, mask: queries of at most `query_length` - 1 tokens, padded on the right.
        """
        ids, mask = np.insert(ids, 1, self.markers[0], axis=1), np.insert(mask, 1, 1, axis=1)
        if not self.layout.expand_queries:
            return ids, mask, mask > 0
        missing = ((0, 0), (0, self.layout.query_length - ids.shape[1]))
        ids, mask = np.pad(ids, missing), np.pad(mask, missing)
        ids[mask == 0] = self.tokenizer.mask_token_id
        everything = np.ones_like(mask)
        return ids, everything if self.layout.attend_to_masks else mask, everything > 0

    def passage_arrays(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same of passages of at most `passage_length` - 1 tokens; the last array has no punctuation."""
        ids, mask = np.insert(ids, 1, self.markers[1], axis=1), np.insert(mask, 1, 1, axis=1)
        return ids, mask, (mask > 0) & ~np.isin(ids, list(self.punctuation))

    def save(self, folder: Path) -> None:
        """Write the backbone, tokenizer, linear map and layout."""
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        save_file(self.projection.state_dict(), folder / PROJECTION)
        (folder / LAYOUT).write_text(json.dumps(asdict(self.layout)), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "LateInteraction":
        """Read what `save` wrote."""
        written = json.loads((Path(folder) / LAYOUT).read_text("utf-8"))
        tokens = {name: tuple(written[name]) for name in ("markers", "skipped") if written[name] is not None}
        layout = LateInteractionLayout(**written | tokens)
        return cls.from_backbone(str(folder), layout)


def _punctuation(tokenizer: Any) -> frozenset[int]:
    """Tokens that are one punctuation mark each. Other tokenizers than BERT's have a second token, with the space."""
    texts = [before + mark for mark in string.punctuation for before in ("", " ", "a", "a ")]
    ids = {i for text_ids in tokenizer(texts, add_special_tokens=False)["input_ids"] for i in text_ids}
    return frozenset(i for i in ids if tokenizer.decode([i]).strip() in {*string.punctuation})


def _markers(backbone: Any, tokenizer: Any) -> tuple[int, int]:
    """The marker tokens of queries and passages; adds two to a vocabulary that has none."""
    known = tokenizer.get_vocab()
    for pair in (UNUSED, ADDED):
        if all(token in known for token in pair):
            return known[pair[0]], known[pair[1]]
    tokenizer.add_special_tokens({"additional_special_tokens": list(ADDED)})
    backbone.resize_token_embeddings(max(len(tokenizer), backbone.config.vocab_size), mean_resizing=False)
    return tuple(tokenizer.convert_tokens_to_ids(list(ADDED)))


def max_similarity(queries: Tensor, passages: Tensor, asks: Tensor, answers: Tensor) -> Tensor:
    """Scores fp32 [b] of pairs: Σ over query tokens of the largest inner product with a passage token.

    Args:
        queries: [b, l, d]; `asks` bool [b, l]: the tokens that are summed over.
        passages: [b, k, d]; `answers` bool [b, k]: the tokens that are compared; at least one in each passage.
            [g, 1] and [1, c] in the place of [b] give the scores [g, c] of all pairs.
    """
    with torch.autocast(queries.device.type, enabled=False):
        products = queries.float() @ passages.float().transpose(-1, -2)  # [b, l, k]
    best = products.masked_fill(~answers[..., None, :], -torch.inf).amax(dim=-1)
    return best.masked_fill(~asks, 0.0).sum(dim=-1)
