"""The GNN on the query–passage graph: two GAT layers and a filter gate (GNN-encoder 3.3, eq. 3–10).

Two facts shape the code. A logit is a sum of three scalars per head, a_tᵀW_t h_i + a_sᵀW_s h_j +
a_eᵀW_e h_ij, so a folds into W and a node costs d·H. And on the query side every target has the same
number of sources: a dense contraction that aggregates first and projects after,
Σ_j α_ij W_s h_j = W_s Σ_j α_ij h_j, with no scatter and no [n, k, d] projection.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.graph import GnnShape
from gnn_encoder.settings.values import Count, PositiveInt

WEIGHTS, CONFIG = "gnn.safetensors", "gnn.json"


class GnnConfig(GnnShape):
    """Everything that fixes the GNN's shape and arithmetic: the settings, and what the encoders and the graph add.

    The number of heads H divides the width d.
    """

    width: PositiveInt
    """d, of the node vectors."""
    edge_width: Count
    """d_e, of the edge features. 0: there are none."""
    learned_loops: bool = True
    normalize_passages: bool = False
    cached_passages: bool = True
    """It was trained with M_de's passage vectors in eq. 6."""

    def passages_of_queries(self, cached: np.ndarray, encoded: np.ndarray) -> np.ndarray:
        """The passage vectors [m, d] of eq. 6 at encoding: M_de's, or those of the passage encoder trained since."""
        return cached if self.cached_passages else encoded


class GATLayer(nn.Module):
    """Multi-head graph attention from sources to targets with edge features and an explicit self-loop.

    Eq. 3–5 per head; heads are concatenated: [·, H · d/H].
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
        nn.init.xavier_uniform_(self.target.weight)
        nn.init.xavier_uniform_(self.source.weight)
        nn.init.xavier_uniform_(self.attention)
        if self.edge:
            nn.init.xavier_uniform_(self.edge.weight)

    def _folded(self, linear: nn.Linear, part: int) -> Tensor:
        """aᵀW for every head, [d_in, H]."""
        weight = linear.weight.view(self.heads, -1, linear.in_features)
        return torch.einsum("ho,hoi->ih", self.attention[part], weight)

    def source_scalars(self, sources: Tensor) -> Tensor:
        """a_sᵀW_s h_j [..., H] of sources [..., d]."""
        return sources @ self.folded_source()

    def folded_source(self) -> Tensor:
        """a_sᵀW_s for every head, [d, H]: all that attention asks of a source."""
        return self._folded(self.source, 1)

    def folded_edge(self) -> Tensor | None:
        """a_eᵀW_e for every head, [d_e, H]: all that attention asks of an edge's features. None without."""
        return None if self.edge is None else self._folded(self.edge, 2)

    def edge_scalars(self, features: Tensor | None) -> Tensor:
        """a_eᵀW_e h_ij [..., H] of edge features [..., d_e]; a 0 without."""
        folded = self.folded_edge()
        return self.attention.new_zeros(()) if folded is None or features is None else features @ folded

    def weights(self, targets: Tensor, arriving: Tensor, into: Tensor, loops: Tensor | None) -> tuple[Tensor, Tensor]:
        """α of the edges [e, H] and of the self-loops [t, H] (eq. 3–4).

        Args:
            targets: [t, d]. into: [e], each edge's row of `targets`.
            arriving: [e, H], sum of each edge's source and edge scalars.
            loops: [d_e] or [t, d_e], features of the self-loops, or None.
        """
        at, itself = self._target_logits(targets, loops)
        incoming = nn.functional.leaky_relu(at.index_select(0, into) + arriving, self.slope)
        # A softmax over each target's edges and its self-loop; the largest logit is taken out first.
        index = into[:, None].expand_as(incoming)
        largest = itself.detach().scatter_reduce(0, index, incoming.detach(), "amax", include_self=True)
        incoming, itself = torch.exp(incoming - largest.index_select(0, into)), torch.exp(itself - largest)
        total = itself.index_add(0, into, incoming)
        return incoming / total.index_select(0, into), itself / total

    def _target_logits(self, targets: Tensor, loops: Tensor | None) -> tuple[Tensor, Tensor]:
        """a_tᵀW_t h_i [t, H] of targets [t, d], their part in every logit, and the self-loops' logits [t, H]."""
        at, own = (targets @ torch.cat([self._folded(self.target, 0), self._folded(self.source, 1)], 1)).chunk(2, -1)
        return at, nn.functional.leaky_relu(at + own + self.edge_scalars(loops), self.slope)

    def project(self, sources: Tensor) -> Tensor:
        """W_s h_j for every head: [s, d] → [s, H, d/H]."""
        projected: Tensor = self.source(sources).unflatten(1, (self.heads, -1))
        return projected

    def activate(self, mixed: Tensor) -> Tensor:
        """σ of eq. 5 over the heads' sums [t, H, d/H], concatenated: [t, d]."""
        out = mixed.flatten(1)
        return nn.functional.elu(out) if self.activation == "elu" else out

    def dense(self, targets: Tensor, sources: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None) -> Tensor:
        """Every target with k sources of its own [u, k, d] and itself: [u, d]. Other arguments: `dense_weights`."""
        weights = self.dense_weights(targets, mask, arriving, loops)
        mixed = weights[..., :-1] @ sources + weights[..., -1:] * targets[:, None]
        weight = self.source.weight.view(self.heads, -1, self.source.in_features)
        return self.activate(torch.einsum("uhd,hod->uho", mixed, weight))

    def dense_weights(self, targets: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None) -> Tensor:
        """α of each target's k edges and, last, of its self-loop: [u, H, k + 1] (eq. 3–4).

        Args:
            targets: [u, d]. mask: [u, k] bool, True where the edge exists.
            arriving: [u, k, H], sum of each edge's source and edge scalars.
            loops: [d_e] or [u, d_e], features of the self-loops, or None.
        """
        at, own = self._target_logits(targets, loops)
        logits = (at[:, None] + arriving).transpose(1, 2)  # [u, H, k]
        logits = nn.functional.leaky_relu(logits, self.slope).masked_fill(~mask[:, None], float("-inf"))
        return torch.softmax(torch.cat([logits, own[..., None]], dim=2), dim=2)

    def ragged(
        self, targets: Tensor, sources: Tensor, edges: Tensor, features: Tensor | None, loops: Tensor | None
    ) -> Tensor:
        """Targets with any number of sources, none included, and themselves: [t, d]. Arguments: `ragged_weights`."""
        source, target = edges
        incoming, itself = self.ragged_weights(targets, sources, edges, features, loops)
        mixed = itself[..., None] * self.project(targets)
        return self.activate(mixed.index_add(0, target, incoming[..., None] * self.project(sources)[source]))

    def ragged_weights(
        self, targets: Tensor, sources: Tensor, edges: Tensor, features: Tensor | None, loops: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """α of the edges [e, H] and of the targets' self-loops [t, H].

        Args:
            targets: [t, d]. sources: [s, d]. edges: [2, e] int64, source row and target row.
            features: [e, d_e] or None. loops: [d_e] or [t, d_e], or None.
        """
        source, target = edges
        arriving = self.source_scalars(sources)[source] + self.edge_scalars(features)
        return self.weights(targets, arriving, target, loops)


class GNN(nn.Module):
    """Passage-interactive query vectors, then query-interactive passage vectors."""

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
        """h'_q [u, d], eq. 6–7; with fewer than two layers the queries themselves.

        Args:
            queries: h_q [u, d]. passages: h_p of their neighbours [u, k, d]. mask: [u, k] bool.
            features: [u, k, d_e] or None. loops: [u, d_e] where self-loop features are not learned.
        """
        if self.config.layers < 2:
            return queries
        layer = self.query_attention
        arriving = layer.source_scalars(passages) + layer.edge_scalars(features)
        return self.interactive_queries(queries, passages, mask, arriving, loops)

    def interactive_queries(
        self, queries: Tensor, passages: Tensor, mask: Tensor, arriving: Tensor, loops: Tensor | None
    ) -> Tensor:
        """h'_q [u, d] by two layers, from the sums [u, k, H] of each edge's source and edge scalars."""
        aggregated = self.query_attention.dense(queries, passages, mask, arriving, self.query_loop_features(loops))
        merged: Tensor = self.query_merge(torch.cat([aggregated, queries], dim=1))
        return merged

    def passage_vectors(
        self, passages: Tensor, queries: Tensor, edges: Tensor, features: Tensor | None, loops: Tensor | None = None
    ) -> Tensor:
        """h'_p [t, d], eq. 8–10.

        Args:
            passages: h_p [t, d]. queries: h'_q [s, d]. edges: [2, e], row of `queries`, row of `passages`.
            features: [e, d_e] or None. loops: [t, d_e] where self-loop features are not learned.
        """
        if self.config.layers == 0:
            return self.scaled(passages)
        loops = self.loop_features(loops)
        return self.gated(self.passage_attention.ragged(passages, queries, edges, features, loops), passages)

    def gated(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """h'_p [t, d] from the attention's h~_p [t, d] and h_p [t, d] (eq. 9–10)."""
        return self.scaled(torch.addcmul(passages, self.opening(aggregated, passages), aggregated))

    def opening(self, aggregated: Tensor, passages: Tensor) -> Tensor:
        """How far the gate opens, f_p [t, d] in 0…1, for h~_p [t, d] and h_p [t, d] (eq. 9)."""
        if self.config.gate == "filter":
            return torch.sigmoid(self.gate(torch.cat([aggregated, passages], dim=1)))
        return torch.full_like(aggregated, self.config.gate_alpha)

    def query_loop_features(self, loops: Tensor | None) -> Tensor | None:
        """Features of the queries' self-loops: the learned vector [d_e], or those given [u, d_e]."""
        return self.query_loop if self.config.learned_loops and self.config.edge_width else loops

    def loop_features(self, loops: Tensor | None) -> Tensor | None:
        """Features of the passages' self-loops: the learned vector [d_e], or those given [t, d_e]."""
        return self.passage_loop if self.config.learned_loops and self.config.edge_width else loops

    def scaled(self, vectors: Tensor) -> Tensor:
        """Vectors [t, d] at unit length where the config wants that."""
        return nn.functional.normalize(vectors, dim=-1) if self.config.normalize_passages else vectors

    def start_from_mean(self, gate_bias: float) -> None:
        """Start at a plain attention mean: W_s = I, h'_q halfway between its context and itself, and the
        gate's bias at `gate_bias` with no other input. A deviation from the paper, which leaves the
        start open: training then starts near M_de."""
        if self.config.layers == 0:
            return
        with torch.no_grad():
            d = self.config.width
            layers = [self.passage_attention] + ([self.query_attention] if self.config.layers == 2 else [])
            for layer in layers:
                nn.init.eye_(layer.source.weight)
                layer.attention.mul_(0.1)
            if self.config.layers == 2:
                half = 0.5 * torch.eye(d)
                self.query_merge.weight.copy_(torch.cat([half, half], dim=1))
                nn.init.zeros_(self.query_merge.bias)
            if self.config.gate == "filter":
                nn.init.zeros_(self.gate.weight)
                nn.init.constant_(self.gate.bias, gate_bias)


class GnnEncoder(nn.Module):
    """What Masked Graph Training trains and `encode_corpus` runs."""

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
        """The GNN alone, for work on vectors that are already there."""
        folder = Path(folder)
        gnn = GNN(GnnConfig(**json.loads((folder / CONFIG).read_text("utf-8"))))
        gnn.load_state_dict(load_file(folder / WEIGHTS))
        return gnn
