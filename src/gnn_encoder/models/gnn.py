"""The GNN-encoder: a dual encoder, and a GNN over its vectors with two GAT layers and a filter gate (3.3, eq. 3–10).

Two facts shape the code. First, a logit is a sum of three scalars per head, a_tᵀW_t h_i + a_sᵀW_s h_j + a_eᵀW_e h_ij.
So aᵀW is computed once, and a node costs d·H. Second, every query has the same number of neighbours. So a dense
contraction aggregates before it projects, Σ_j α_ij W_s h_j = W_s Σ_j α_ij h_j, without scatter and without a
[n, k, d] projection.
"""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.graph import GnnShape
from gnn_encoder.settings.values import Count, PositiveInt

WEIGHTS, CONFIG = "gnn.safetensors", "gnn.json"


class GnnConfig(GnnShape):
    """Everything that determines the GNN's shape and arithmetic. The number of heads H divides the width d."""

    width: PositiveInt
    """d, the width of node vectors."""
    edge_width: Count
    """d_e, the width of edge features; 0: no edge features."""
    learned_loops: bool = True
    normalize_passages: bool = False
    cached_passages: bool = True
    """Whether eq. 6 was trained with M_de's passage vectors."""

    def passages_of_queries(self, cached: np.ndarray, encoded: Rows) -> Rows:
        """The passage vectors [m, d] of eq. 6 at encoding: of M_de, or of the jointly trained passage encoder."""
        return cached if self.cached_passages else encoded


class GATLayer(nn.Module):
    """Multi-head graph attention from sources to targets, with edge features and self-loops (eq. 3–5 per head).

    Heads are concatenated: [·, H · d/H]. Arguments of the methods:
        targets: [t, d]. sources: [s, d].
        arriving: [..., H], the part of each edge's logit without the target: a_sᵀW_s h_j + a_eᵀW_e h_ij.
        loops: [d_e] or [t, d_e], features of the self-loops, or None.
    """

    def __init__(self, config: GnnConfig) -> None:
        super().__init__()
        d, heads = config.width, config.heads
        if d % heads:
            raise ValueError(f"heads = {heads} must divide the encoder's width {d}")
        self.heads, self.slope, self.activation = heads, config.negative_slope, config.activation
        self.target = nn.Linear(d, d, bias=False)  # W_t
        self.source = nn.Linear(d, d, bias=False)  # W_s
        self.edge = nn.Linear(config.edge_width, d, bias=False) if config.edge_width else None  # W_e
        self.attention = nn.Parameter(torch.empty(3, heads, d // heads))  # a, its three parts [t, s, e]
        for parameter in (self.target.weight, self.source.weight, self.attention):
            nn.init.xavier_uniform_(parameter)
        if self.edge:
            nn.init.xavier_uniform_(self.edge.weight)

    def _folded(self, linear: nn.Linear, part: int) -> Tensor:
        """aᵀW for every head, [d_in, H]."""
        weight = linear.weight.view(self.heads, -1, linear.in_features)
        return torch.einsum("ho,hoi->ih", self.attention[part], weight)

    def source_scalars(self, sources: Tensor) -> Tensor:
        """a_sᵀW_s h_j [..., H] of sources [..., d]."""
        return sources @ self._folded(self.source, 1)

    def folded_edge(self) -> Tensor | None:
        """a_eᵀW_e for every head, [d_e, H]; None without edge features."""
        return None if self.edge is None else self._folded(self.edge, 2)

    def edge_scalars(self, features: Tensor | None) -> Tensor:
        """a_eᵀW_e h_ij [..., H] of edge features [..., d_e]; 0 without them."""
        folded = self.folded_edge()
        return self.attention.new_zeros(()) if folded is None or features is None else features @ folded

    def weights(self, targets: Tensor, arriving: Tensor, into: Tensor, loops: Tensor | None) -> tuple[Tensor, Tensor]:
        """α of the edges [e, H] and of the self-loops [t, H] (eq. 3–4); `into` [e]: the row of each edge's target."""
        at, itself = self._target_logits(targets, loops)
        incoming = nn.functional.leaky_relu(at.index_select(0, into) + arriving, self.slope)
        # A softmax over each target's edges and self-loop; the largest logit is subtracted first.
        index = into[:, None].expand_as(incoming)
        largest = itself.detach().scatter_reduce(0, index, incoming.detach(), "amax", include_self=True)
        incoming, itself = torch.exp(incoming - largest.index_select(0, into)), torch.exp(itself - largest)
        total = itself.index_add(0, into, incoming)
        return incoming / total.index_select(0, into), itself / total

    def _target_logits(self, targets: Tensor, loops: Tensor | None) -> tuple[Tensor, Tensor]:
        """a_tᵀW_t h_i [t, H], the target's part of every logit, and the logits of the self-loops [t, H]."""
        folded = torch.cat([self._folded(self.target, 0), self._folded(self.source, 1)], 1)
        at, as_source = (targets @ folded).chunk(2, -1)
        return at, nn.functional.leaky_relu(at + as_source + self.edge_scalars(loops), self.slope)

    def project(self, sources: Tensor) -> Tensor:
        """W_s h_j for every head: [s, d] → [s, H, d/H]."""
        projected: Tensor = self.source(sources).unflatten(1, (self.heads, -1))
        return projected

    def activate(self, mixed: Tensor) -> Tensor:
        """σ (eq. 5) of the heads' sums [t, H, d/H], concatenated to [t, d]."""
        out = mixed.flatten(1)
        return nn.functional.elu(out) if self.activation == "elu" else out

    def dense(self, targets: Tensor, sources: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None) -> Tensor:
        """Eq. 5, [t, d], of targets with k sources each [t, k, d] and a self-loop; `mask` as in `dense_weights`."""
        weights = self.dense_weights(targets, mask, arriving, loops)
        mixed = weights[..., :-1] @ sources + weights[..., -1:] * targets[:, None]
        weight = self.source.weight.view(self.heads, -1, self.source.in_features)
        return self.activate(torch.einsum("uhd,hod->uho", mixed, weight))

    def dense_weights(self, targets: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None) -> Tensor:
        """α of each target's k edges and, last, of the self-loop: [t, H, k + 1] (eq. 3–4); `mask` [t, k]: edges."""
        at, loop_logits = self._target_logits(targets, loops)
        logits = (at[:, None] + arriving).transpose(1, 2)  # [t, H, k]
        logits = nn.functional.leaky_relu(logits, self.slope).masked_fill(~mask[:, None], float("-inf"))
        return torch.softmax(torch.cat([logits, loop_logits[..., None]], dim=2), dim=2)

    def ragged(
        self, targets: Tensor, sources: Tensor, edges: Tensor, features: Tensor | None, loops: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5, [t, d], of targets with any number of edges (maybe 0) and a self-loop; and α, as `weights` does.

        Args:
            edges: int64 [2, e], source row and target row. features: [e, d_e] or None.
        """
        source, target = edges
        arriving = self.source_scalars(sources).index_select(0, source) + self.edge_scalars(features)
        incoming, itself = self.weights(targets, arriving, target, loops)
        mixed = itself[..., None] * self.project(targets)
        projected = self.project(sources).index_select(0, source)
        mixed = mixed.index_add(0, target, incoming[..., None] * projected)
        return self.activate(mixed), incoming, itself


class GNN(nn.Module):
    """Passage-interactive query vectors h'_q, then query-interactive passage vectors h'_p."""

    def __init__(self, config: GnnConfig) -> None:
        super().__init__()
        self.config = config
        d = config.width
        if config.layers == 0:
            return
        if config.layers == 2:
            self.query_attention = GATLayer(config)  # GAT_1
            self.query_merge = nn.Linear(2 * d, d)  # W_pq, b_pq
        self.passage_attention = GATLayer(config)  # GAT_2
        if config.gate == "filter":
            self.gate = nn.Linear(2 * d, d)  # W_qp, b_qp
        if config.learned_loops and config.edge_width:
            if config.layers == 2:
                self.query_loop = nn.Parameter(torch.zeros(config.edge_width))
            self.passage_loop = nn.Parameter(torch.zeros(config.edge_width))

    def query_vectors(
        self, queries: Tensor, passages: Tensor, mask: Tensor, features: Tensor | None, loops: Tensor | None = None
    ) -> Tensor:
        """h'_q [u, d] (eq. 6–7); h_q if there are fewer than two layers.

        Args:
            queries: h_q [u, d]. passages: h_p of the queries' neighbours [u, k, d]. mask: [u, k] bool.
            features: [u, k, d_e] or None. loops: [u, d_e] if self-loop features are not learned.
        """
        if self.config.layers < 2:
            return queries
        layer = self.query_attention
        arriving = layer.source_scalars(passages) + layer.edge_scalars(features)
        return self.interactive_queries(queries, passages, mask, arriving, loops)

    def interactive_queries(
        self, queries: Tensor, passages: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None
    ) -> Tensor:
        """h'_q [u, d] (eq. 6–7), two layers; `arriving` [u, k, H]: the sum of each edge's source and edge scalars."""
        aggregated = self.query_attention.dense(queries, passages, mask, arriving, self.loops("query", loops))
        merged: Tensor = self.query_merge(torch.cat([aggregated, queries], dim=1))
        return merged

    def passage_vectors(
        self, passages: Tensor, queries: Tensor, edges: Tensor, features: Tensor | None, loops: Tensor | None = None
    ) -> Tensor:
        """h'_p [t, d] (eq. 8–10). `query_graph/propagation.py` computes h'_p for the full graph.

        Args:
            passages: h_p [t, d]. queries: h'_q [s, d]. edges: [2, e], row of `queries`, row of `passages`.
            features: [e, d_e] or None. loops: [t, d_e] if self-loop features are not learned.
        """
        if self.config.layers == 0:
            return self.scaled(passages)
        loops = self.loops("passage", loops)
        aggregated, _, _ = self.passage_attention.ragged(passages, queries, edges, features, loops)
        return self.gated(aggregated, passages)

    def gated(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """h'_p [t, d] from h~_p [t, d], the result of the attention, and h_p [t, d] (eq. 9–10)."""
        return self.scaled(torch.addcmul(passages, self.opening(aggregated, passages), aggregated))

    def opening(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """The gate f_p [t, d], 0…1, for h~_p [t, d] and h_p [t, d] (eq. 9)."""
        if self.config.gate == "filter":
            return torch.sigmoid(self.gate(torch.cat([aggregated, passages], dim=1)))
        return torch.full_like(aggregated, self.config.gate_alpha)

    def loops(self, of: Literal["query", "passage"], stored: Tensor | None) -> Tensor | None:
        """Features of the self-loops of queries or passages: the learned vector [d_e], otherwise `stored`."""
        return getattr(self, f"{of}_loop", stored)

    def scaled(self, vectors: Tensor) -> Tensor:
        """Vectors [t, d], scaled to unit length if `normalize_passages`."""
        return nn.functional.normalize(vectors, dim=-1) if self.config.normalize_passages else vectors

    def start_from_mean(self, gate_bias: float) -> None:
        """Initialises the GNN near M_de: W_s = I, h'_q is the mean of h_q and its context, the gate is only its bias.

        The paper does not say how to initialise.
        """
        with torch.no_grad():
            for layer in self.children():
                if isinstance(layer, GATLayer):
                    nn.init.eye_(layer.source.weight)
                    layer.attention.mul_(0.1)
            if self.config.layers == 2:
                half = 0.5 * torch.eye(self.config.width)
                self.query_merge.weight.copy_(torch.cat([half, half], dim=1))
                nn.init.zeros_(self.query_merge.bias)
            if self.config.layers and self.config.gate == "filter":
                nn.init.zeros_(self.gate.weight)
                nn.init.constant_(self.gate.bias, gate_bias)


class GnnEncoder(nn.Module):
    """The joint model: Masked Graph Training trains the model, `encode_nodes` and `encode_corpus` run it."""

    def __init__(self, dual_encoder: DualEncoder, gnn: GNN) -> None:
        super().__init__()
        self.dual_encoder = dual_encoder
        self.gnn = gnn

    def save(self, folder: Path) -> None:
        """Write both encoders and the GNN."""
        self.dual_encoder.save(folder)
        save_file(self.gnn.state_dict(), folder / WEIGHTS)
        (folder / CONFIG).write_text(self.gnn.config.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "GnnEncoder":
        """Read what `save` wrote."""
        return cls(DualEncoder.load(folder), cls.load_gnn(folder))

    @staticmethod
    def load_gnn(folder: str | Path) -> GNN:
        """Reads only the GNN, for work on stored vectors."""
        folder = Path(folder)
        gnn = GNN(GnnConfig(**json.loads((folder / CONFIG).read_text("utf-8"))))
        gnn.load_state_dict(load_file(folder / WEIGHTS))
        return gnn
