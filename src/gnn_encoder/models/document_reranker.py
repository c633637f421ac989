"""MiM, LiM and Mix-iM: late interaction with a passage's content, with its context in its documents, or with both.

Albarede et al. (2022), section 2.2, eq. 2 and 3.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from gnn_encoder.models.document_gat import DocumentGat, DocumentGatConfig
from gnn_encoder.models.late_interaction import LateInteraction
from gnn_encoder.settings.reranking_systems import RerankerKind

LAYOUT, WEIGHTS = "document_gat.json", "document_gat.safetensors"


class ContextMatching(nn.Module):
    """The network over documents, and what makes one score of the similarities with content and with context."""

    def __init__(self, kind: RerankerKind, config: DocumentGatConfig, unit_length: bool = False) -> None:
        super().__init__()
        self.kind, self.unit_length = kind, unit_length
        self.network = DocumentGat(config)
        if kind != "mim":
            self.mixture = nn.Parameter(torch.zeros(()))

    @property
    def uses_content(self) -> bool:
        """Whether the score depends on the similarity with the passage's own token vectors, too."""
        return self.kind != "mim"

    @property
    def share(self) -> Tensor:
        """λ, the context's share in the score: sigmoid of a learned scalar; 1 for `mim`."""
        return torch.sigmoid(self.mixture.float()) if self.uses_content else torch.ones(())

    @property
    def figures(self) -> dict[str, float]:
        """λ, and the softmax weight of each type of edge in each layer, from 1, by name."""
        weights = {
            f"edge_weight/{number}/{kind}": weight
            for number, layer in enumerate(self.network.shares, 1)
            for kind, weight in layer.items()
        }
        return {"context_share": float(self.share.detach()), **weights} if self.uses_content else weights

    def fix_share(self, share: float) -> None:
        """Give λ a value that training does not change; 0 and 1 are possible, too."""
        with torch.no_grad():
            self.mixture.copy_(torch.logit(torch.tensor(share)))
        self.mixture.requires_grad_(False)

    def relevance(self, content: Tensor, context: Tensor) -> Tensor:
        """(1 − λ) · content + λ · context (eq. 3), of similarities of one shape; for `mim` the context's alone."""
        if not self.uses_content:
            return context
        share = self.share.to(content.device)  # trained on a GPU, and similarities of stored vectors are on the CPU
        return (1 - share) * content + share * context

    def context_vectors(self, vectors: Tensor) -> Tensor:
        """The network's results [t, d] as they are compared with a query."""
        return normalize(vectors, dim=-1) if self.unit_length else vectors


class DocumentReranker(nn.Module):
    """A text encoder (ColBERT) for queries, passages and section titles, and the network over its token vectors."""

    full_precision = ("context",)

    def __init__(self, text: LateInteraction, context: ContextMatching) -> None:
        super().__init__()
        self.text, self.context = text, context

    @classmethod
    def of(
        cls, text: LateInteraction, kind: RerankerKind, *, unit_length: bool = False, **config: object
    ) -> "DocumentReranker":
        """A new network over an encoder's vectors; `config`: fields of `DocumentGatConfig` besides the two known ones.

        Args:
            unit_length: context vectors are scaled to length 1, as the encoder's are. The paper does not say.
        """
        full = DocumentGatConfig(width=text.width, context_only=kind == "lim", **config)  # type: ignore[arg-type]
        return cls(text, ContextMatching(kind, full, unit_length))

    def save(self, folder: Path) -> None:
        """Write the encoder as `LateInteraction` does, the network's weights and the layout."""
        self.text.save(folder)
        save_file(self.context.state_dict(), folder / WEIGHTS)
        layout = {
            "kind": self.context.kind,
            "unit_length": self.context.unit_length,
            "network": asdict(self.context.network.config),
        }
        (folder / LAYOUT).write_text(json.dumps(layout), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "DocumentReranker":
        """Read what `save` wrote."""
        folder, text = Path(folder), LateInteraction.load(folder)
        layout = json.loads((folder / LAYOUT).read_text("utf-8"))
        types = tuple(layout["network"].pop("edge_types"))
        config = DocumentGatConfig(edge_types=types, **layout["network"])
        context = ContextMatching(layout["kind"], config, layout["unit_length"])
        context.load_state_dict(load_file(folder / WEIGHTS))
        return cls(text, context)
