"""Attention of passages over passages of their documents, one for each type of edge; a part of the passage layer."""

import torch
from torch import Tensor, nn

from gnn_encoder.artifacts.document_graph import EDGE_TYPES


class StructureAttention(nn.Module):
    """Σ_r w_r Σ_j α_ij^r W_r h_j over the eight types r, for each head; heads are concatenated.

    α^r is a softmax over the neighbours of passage i of type r, so many neighbours do not outweigh few. Its logit is
    that of the GNN's eq. 3 without edge features, LeakyReLU(aᵀ [W_t h_i, W_r h_j]). W_t occurs only in a_tᵀ W_t, so
    that product is the parameter. There are no self-loops: a type without a neighbour adds 0.

    w_r is one trained number for each type, as in Albarede et al. (2022), eq. 1, but without their softmax over types:
    all w_r can become 0, and the GNN is then the one without structure.
    """

    def __init__(self, width: int, heads: int, slope: float) -> None:
        super().__init__()
        self.slope, kinds = slope, len(EDGE_TYPES)
        self.value = nn.Parameter(torch.empty(kinds, width, width))  # W_r
        self.target = nn.Parameter(torch.empty(kinds, heads, width))  # a_tᵀ W_t
        self.source = nn.Parameter(torch.empty(kinds, heads, width // heads))  # a_s
        self.weight = nn.Parameter(torch.zeros(kinds))  # w
        for parameter in (self.value, self.target, self.source):
            for part in parameter:
                nn.init.xavier_uniform_(part)

    def forward(self, targets: Tensor, sources: Tensor, edges: list[Tensor]) -> Tensor:
        """The sums [t, d] for `targets` [t, d].

        Args:
            sources: [s, d]. edges: for each type int64 [2, e], row of `sources` and row of `targets`.
        """
        out = torch.zeros_like(targets)
        for kind, (source, target) in enumerate(edges):
            own = self.source[kind]  # [H, d/H]
            projected = (sources @ self.value[kind].T).unflatten(1, own.shape)  # [s, H, d/H]
            asked, answered = targets @ self.target[kind].T, (projected * own).sum(-1)
            logits = nn.functional.leaky_relu(asked[target] + answered[source], self.slope)  # [e, H]
            # A softmax over each target's edges; the largest logit is subtracted first.
            largest = torch.full_like(asked, -torch.inf).scatter_reduce(
                0, target[:, None].expand_as(logits), logits.detach(), "amax"
            )
            share = torch.exp(logits - largest[target])
            share = share / torch.zeros_like(asked).index_add(0, target, share)[target]
            mixed = projected.new_zeros(len(targets), *own.shape)
            mixed = mixed.index_add(0, target, share[..., None] * projected[source])
            out = out + self.weight[kind] * mixed.flatten(1)
        return out

    def start_from_mean(self) -> None:
        """W_r = I and small logits: a type's result is near the mean of its neighbours."""
        with torch.no_grad():
            for part in self.value:
                nn.init.eye_(part)
            self.source.mul_(0.1)
            self.target.mul_(0.1)
