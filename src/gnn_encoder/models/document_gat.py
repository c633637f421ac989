"""The graph attention network over documents: attention between token matrices, for each type of edge (eq. 1).

Albarede et al. (2022), section 2.2. Token matrices are ragged: the tokens of all nodes are one flat array, so that
projections waste nothing on padding. A node is projected once for each type of its edges, not for each edge. Only the
attention itself pads, and it takes edges of similar lengths together. The sum over edges comes before the output
projection, which is linear, so that projection runs once for each node and type, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, normalize, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.document_graph import KINDS
from gnn_encoder.models.dual_encoder import on_device

SIZES = 2 ** np.arange(23)
"""Numbers of edges of a batch in training: the last edge is repeated up to the next number. Both sides are padded to
one of `Batching.lengths`. oneDNN compiles a product for each new shape, and a batch of 32 passages had 300 of them for
each layer's attention."""


class Batching(NamedTuple):
    """How edges are divided into batches of the attention."""

    lengths: np.ndarray
    """Bounds of the classes of lengths; a batch has one class of asking and one of answering matrices."""
    scores: int
    """Attention scores, over all heads, of a batch."""
    all_types: bool
    """A batch may have edges of several types."""
    edges: int
    """Edges of a batch."""


BATCHING = {
    "cpu": Batching(np.array([8, 16, 32, 64, 96, 128, 192, 256]), 2**22, False, 2**22),
    "cuda": Batching(np.array([32, 256]), 2**27, True, 2**15),
}
"""On a CPU padding costs time. A GPU has time for it, but each call of torch takes microseconds, and with the CPU's
batches a training step had 130,000 calls (`benchmarks/RESULTS.md`). With dropout torch's kernel refuses more than
65,535 edges, and training pads their number to a power of two."""


@dataclass(frozen=True)
class DocumentGatConfig:
    """Everything that determines the network's shape and arithmetic."""

    width: int = 128
    """d, the width of a token's vector."""
    layers: int = 3
    heads: int = 8
    dropout: float = 0.7
    """Of the attention's weights."""
    neighbour_reduction: Literal["sum", "mean"] = "sum"
    """Over a node's neighbours of one type. Eq. 1 has the sum, in which many neighbours outweigh few."""
    residual: bool = False
    """A layer adds its result to its input; the paper's do not. The context-only GAT's first layer leaves out its
    passage, because the passage's content would become a part of the result."""
    layer_norm: bool = False
    """A layer's result is normalised; the paper's are not."""
    context_only: bool = True
    """The network is run on graphs without the edges out of the passage (CGAT), of LiM."""
    context_asks: Literal["content", "learned"] = "content"
    """CGAT: what asks in a passage's place, its own tokens or a trained sequence of `asking_tokens` vectors."""
    asking_tokens: int = 32
    edge_types: tuple[str, ...] = KINDS
    """The types that the network reads, in the order of `KINDS`."""


class TokenMatrices(NamedTuple):
    """Vectors of the tokens of n nodes, one node after the other."""

    values: Tensor
    """[t, d]."""
    lengths: np.ndarray
    """int64 [n], tokens of each node."""

    @property
    def offsets(self) -> np.ndarray:
        """int64 [n + 1]: node i has the vectors `offsets[i]` to `offsets[i + 1]`."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    def rows(self, nodes: np.ndarray) -> np.ndarray:
        """The rows of `values` of some nodes, int64."""
        offsets = self.offsets
        return ranges(offsets[nodes], offsets[nodes + 1])

    def take(self, nodes: np.ndarray) -> "TokenMatrices":
        """The matrices of some nodes."""
        return TokenMatrices(_rows(self.values, self.rows(nodes)), self.lengths[nodes])

    def first(self, count: int) -> "TokenMatrices":
        """The matrices of the first nodes."""
        return TokenMatrices(self.values[: int(self.lengths[:count].sum())], self.lengths[:count])

    def after(self, count: int) -> "TokenMatrices":
        """The matrices of all but the first nodes."""
        return TokenMatrices(self.values[int(self.lengths[:count].sum()) :], self.lengths[count:])

    def padded(self) -> tuple[Tensor, Tensor]:
        """Vectors [n, k, d], where padding has any values, and bool [n, k]: the tokens."""
        rows, inside = _padded(self, np.arange(len(self.lengths)))
        return embedding(_index(rows, self.values), self.values), _index(inside, self.values)

    @staticmethod
    def join(parts: Sequence["TokenMatrices"]) -> "TokenMatrices":
        """The matrices of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return TokenMatrices(
            torch.cat([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
        )


class Edges(NamedTuple):
    """Edges j → i, by which i hears j."""

    target: np.ndarray
    """int64 [e], i: a place among the nodes that ask."""
    source: np.ndarray
    """int64 [e], j: a place among the nodes that answer."""
    kind: np.ndarray
    """int64 [e], number of the type in `KINDS`."""
    weight: np.ndarray | None = None
    """fp32 [e], the edge's factor in the sum; None: by the network's `neighbour_reduction`."""

    def take(self, rows: np.ndarray) -> Self:
        """Some of the edges, by place or by mask."""
        return self._replace(**{name: a[rows] for name, a in self._asdict().items() if a is not None})

    def weights(self, reduction: str) -> np.ndarray:
        """fp32 [e]: 1, or for `mean` one over the number of edges of the type into the same node."""
        if self.weight is not None:
            return self.weight
        if reduction == "sum":
            return np.ones(len(self.target), np.float32)
        _, group, count = np.unique(self.target * len(KINDS) + self.kind, return_inverse=True, return_counts=True)
        return (1.0 / count[group]).astype(np.float32)


class Hop(NamedTuple):
    """One layer's work in a neighbourhood: the first `targets` rows of the layer's input ask, all rows answer."""

    targets: int
    edges: Edges


class TypedAttention(nn.Module):
    """A layer: one multi-head attention and one scalar weight for each type of edge."""

    def __init__(self, config: DocumentGatConfig) -> None:
        super().__init__()
        d = config.width
        self.config = config
        self.attention = nn.ModuleDict({kind: nn.MultiheadAttention(d, config.heads) for kind in config.edge_types})
        self.type_weights = nn.Parameter(torch.zeros(len(config.edge_types)))  # W
        self.norm = nn.LayerNorm(d) if config.layer_norm else nn.Identity()

    def forward(
        self, asking: TokenMatrices, answering: TokenMatrices, edges: Edges, kept: Tensor | None = None
    ) -> Tensor:
        """The layer's result [t, d], with the lengths of `asking`; `kept`: see `finished`."""
        return self.finished(self.heard(asking, answering, edges), asking, kept)

    def heard(self, asking: TokenMatrices, answering: TokenMatrices, edges: Edges) -> Tensor:
        """Eq. 1, fp32 [t, d]: Σ_j weight · softmax(W)_φ(ij) · MultiHead_φ(ij)(h_i, h_j, h_j).

        Results of parts of the edges add up to the result of all, if the edges have their weights. A node that hears
        nobody gets 0. An edge from or to a node without tokens adds nothing, but counts in the number of a mean.
        """
        weights = edges.weights(self.config.neighbour_reduction)
        share = torch.softmax(self.type_weights, dim=0)
        total = torch.zeros_like(asking.values, dtype=_wide(asking.values))
        exists = (asking.lengths[edges.target] > 0) & (answering.lengths[edges.source] > 0)
        present = [
            (number, of_kind)
            for number, kind in enumerate(self.config.edge_types)
            if len(of_kind := np.flatnonzero((edges.kind == KINDS.index(kind)) & exists))
        ]
        together = BATCHING[total.device.type].all_types
        for some in [present] if together and present else [[one] for one in present]:
            types = [self._typed(asking, answering, edges.take(of), weights[of], number) for number, of in some]
            for of_type, part in zip(types, self._attended(types), strict=True):
                rows = asking.rows(of_type.targets)
                total.index_add_(0, _index(rows, total), share[of_type.number] * part)
        return total

    def _typed(
        self, asking: TokenMatrices, answering: TokenMatrices, edges: Edges, weight: np.ndarray, number: int
    ) -> "_OfType":
        d, attention = self.config.width, self._of(number)
        targets, target = np.unique(edges.target, return_inverse=True)
        sources, source = np.unique(edges.source, return_inverse=True)
        ask, answer = asking.take(targets), answering.take(sources)
        projection, bias = cast(Tensor, attention.in_proj_weight), cast(Tensor, attention.in_proj_bias)
        query = linear(ask.values, projection[:d], bias[:d])
        answers = linear(answer.values, projection[d:], bias[d:])
        return _OfType(
            number, targets, TokenMatrices(query, ask.lengths), TokenMatrices(answers, answer.lengths), target, source,
            weight,
        )  # fmt: skip

    def _of(self, number: int) -> nn.MultiheadAttention:
        return cast(nn.MultiheadAttention, self.attention[self.config.edge_types[number]])

    def finished(self, heard: Tensor, asking: TokenMatrices, kept: Tensor | None = None) -> Tensor:
        """The layer's result [t, d] from what its nodes heard.

        Args:
            kept: fp32 [t, 1], factor of the residual connection; None: 1.
        """
        if self.config.residual:
            heard = heard + (asking.values if kept is None else kept * asking.values)
        result: Tensor = self.norm(heard)
        return result

    def _attended(self, types: Sequence["_OfType"]) -> Iterator[Tensor]:
        """Σ_j weight · MultiHead(h_i, h_j, h_j) of each type, fp32 [t, d]."""
        asking, answering = (
            TokenMatrices.join(side) for side in zip(*((t.query, t.answers) for t in types), strict=True)
        )
        query, (key, value) = asking.values, answering.values.chunk(2, dim=-1)
        before = np.cumsum([(0, 0), *((len(t.query.lengths), len(t.answers.lengths)) for t in types[:-1])], axis=0)
        target = np.concatenate([t.target + first for t, first in zip(types, before[:, 0], strict=True)])
        source = np.concatenate([t.source + first for t, first in zip(types, before[:, 1], strict=True)])
        weight, where = np.concatenate([t.weight for t in types]), query.device
        batching = BATCHING[where.type]
        bounds = batching.lengths if self.training else None
        sums = torch.zeros_like(query, dtype=_wide(query))
        for part in _batches(asking.lengths[target], answering.lengths[source], self.config.heads, batching):
            edges = part
            if self.training:  # the last edge is repeated, and the results of its copies are not read
                edges = part[np.minimum(np.arange(_upto(len(part), SIZES)), len(part) - 1)]
            rows, asks = _padded(asking, target[edges], bounds)
            others, answers = _padded(answering, source[edges], bounds)
            asks[len(part) :] = False
            arrays = (rows, others, answers, weight[edges])
            tensors = (on_device(array, where) for array in arrays)
            if self.training and torch.is_grad_enabled():
                # The padded arrays of all edges would take some gigabytes until the backward pass.
                mixed = checkpoint(self._mixed, query, key, value, *tensors, use_reentrant=False)
            else:
                mixed = self._mixed(query, key, value, *tensors)
            inside = np.flatnonzero(asks.ravel())
            sums.index_add_(0, _index(rows.ravel()[inside], sums), _rows(mixed.flatten(0, 1), inside))
        for of_type, part in zip(types, sums.split([len(t.query.values) for t in types]), strict=True):
            lengths, out = of_type.query.lengths, self._of(of_type.number).out_proj
            amount = np.bincount(of_type.target, of_type.weight, len(lengths)).astype(np.float32).repeat(lengths)
            yield linear(part, out.weight).to(sums.dtype) + on_device(amount, where)[:, None] * out.bias

    def _mixed(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, others: Tensor, answers: Tensor, weight: Tensor
    ) -> Tensor:
        """The heads' results fp32 [e, l, d] of a batch of edges, times their weights.

        Args:
            rows: int64 [e, l], the asking tokens. others: int64 [e, k], the answering tokens. answers: bool [e, k].
        """
        heads = self.config.heads
        queries, keys, values = (
            embedding(index, side).unflatten(-1, (heads, -1)).transpose(1, 2)  # [e, H, l, d/H]
            for side, index in ((query, rows), (key, others), (value, others))
        )
        rate = self.config.dropout if self.training else 0.0
        mixed = _attention(queries, keys, values, answers[:, None, None], rate)
        return mixed.transpose(1, 2).flatten(2).to(_wide(mixed)) * weight[:, None, None]


class _OfType(NamedTuple):
    """The edges of one type, and what their nodes ask and answer."""

    number: int
    """Of the type in `edge_types`."""
    targets: np.ndarray
    """int64, the nodes that ask."""
    query: TokenMatrices
    """[t, d] of these nodes."""
    answers: TokenMatrices
    """Keys and values, [t, 2 d], of the nodes that answer."""
    target: np.ndarray
    """int64 [e], each edge's place in `query`."""
    source: np.ndarray
    """int64 [e], each edge's place in `answers`."""
    weight: np.ndarray
    """fp32 [e]."""


class DocumentGat(nn.Module):
    """The layers, and for a context-only network that is asked by a learned sequence, this sequence."""

    def __init__(self, config: DocumentGatConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(TypedAttention(config) for _ in range(config.layers))
        if config.context_only and config.context_asks == "learned":
            self.asking = nn.Parameter(normalize(torch.randn(config.asking_tokens, config.width), dim=-1))

    def forward(
        self, tokens: TokenMatrices, hops: Sequence[Hop], passages: int, asking: TokenMatrices | None = None
    ) -> TokenMatrices:
        """Vectors of `passages` passages in their context.

        Args:
            tokens: the matrices of a neighbourhood's nodes; the passages are the first.
            hops: one for each layer. The first hops alone give what the next layer reads, of all its nodes.
            asking: the matrices that ask in the passages' place in the first layer; None: `questions` of `tokens`.
        """
        questions = self.questions(tokens.first(passages)) if asking is None else asking
        matrices = tokens
        for number, (layer, hop) in enumerate(zip(self.stack, hops, strict=False)):
            asks, kept = matrices.first(hop.targets), None
            if number == 0:
                rest = asks.after(passages)
                asks, kept = TokenMatrices.join([questions, rest]), self.kept(questions, rest)
            matrices = TokenMatrices(layer(asks, matrices, hop.edges, kept), asks.lengths)
        return matrices

    def questions(self, passages: TokenMatrices) -> TokenMatrices:
        """What asks in the place of g passages in the first layer: their own tokens, or the learned sequence."""
        if not hasattr(self, "asking"):
            return passages
        count = len(passages.lengths)
        return TokenMatrices(self.asking.repeat(count, 1), np.full(count, self.config.asking_tokens))

    def kept(self, questions: TokenMatrices, rest: TokenMatrices) -> Tensor | None:
        """The factor [t, 1] of the first layer's residual connection, for passages and other nodes; None: 1."""
        if not self.config.context_only:
            return None
        ones = rest.values.new_ones(len(rest.values), 1)
        return torch.cat([ones.new_zeros(len(questions.values), 1), ones])

    @property
    def stack(self) -> list[TypedAttention]:
        """The layers, from the first on."""
        return [cast(TypedAttention, layer) for layer in self.layers]

    @property
    def shares(self) -> list[dict[str, float]]:
        """The softmax weight of each type of edge, for each layer."""
        with torch.no_grad():
            shares = [torch.softmax(layer.type_weights, dim=0).tolist() for layer in self.stack]
        return [dict(zip(self.config.edge_types, of_layer, strict=True)) for of_layer in shares]


def _attention(queries: Tensor, keys: Tensor, values: Tensor, answers: Tensor, rate: float) -> Tensor:
    """Scaled dot-product attention [e, H, l, d/H] with dropout of the weights; `answers`: tokens that are read.

    In training on a CPU it is written out. torch's function (2.13) takes three times as long there in bf16, forward
    and backward, because its backward pass is slow, and half of the rest is for dropout's draws.
    """
    if queries.device.type != "cpu" or not (rate or torch.is_grad_enabled()):
        return scaled_dot_product_attention(queries, keys, values, attn_mask=answers, dropout_p=rate)
    with torch.autocast("cpu", enabled=False):
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
        weights = torch.softmax(scores.masked_fill(~answers, -torch.inf), dim=-1)
        if rate:
            weights = weights * _kept(weights, rate)
        return weights @ values


def _kept(weights: Tensor, rate: float) -> Tensor:
    """Dropout's factors of some weights: 0 with probability `rate`, to 1 / 65,536, or else 1 / (1 - kept's share).

    Each draw of 64 bits is for four weights, which is eight times as fast as `bernoulli_`.
    """
    count, levels = weights.numel(), 2**16
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    dropped = round(rate * levels)
    kept = bits.view(torch.int16)[:count].view(weights.shape) >= dropped - levels // 2
    return kept.to(weights.dtype).mul_(levels / max(levels - dropped, 1))


def _wide(values: Tensor) -> torch.dtype:
    """The type of sums over many values: fp32, or fp64 of fp64."""
    return torch.promote_types(values.dtype, torch.float32)


def _rows(values: Tensor, rows: np.ndarray) -> Tensor:
    return values.index_select(0, _index(rows, values))


def _index(rows: np.ndarray, like: Tensor) -> Tensor:
    return on_device(rows, like.device)


def _padded(
    matrices: TokenMatrices, nodes: np.ndarray, bounds: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Token rows int64 [e, l] of some nodes, 0 for padding, and bool [e, l]: the tokens.

    `bounds`: l is one of them, if there is one.
    """
    lengths, starts = matrices.lengths[nodes][:, None], matrices.offsets[nodes][:, None]
    longest = int(lengths.max())
    columns = np.arange(longest if bounds is None else _upto(longest, bounds))
    inside = columns < lengths
    return np.where(inside, starts + columns, 0), inside


def _upto(number: int, bounds: np.ndarray) -> int:
    """The first of the ascending bounds that is not below a number, or the number itself."""
    index = int(np.searchsorted(bounds, number))
    return int(bounds[index]) if index < len(bounds) else number


def _batches(asking: np.ndarray, answering: np.ndarray, heads: int, batching: Batching) -> Iterator[np.ndarray]:
    """Places of edges, in batches of similar lengths with a bounded number of attention scores.

    Args:
        asking, answering: int64 [e], tokens on both sides of each edge.
    """
    bounds = batching.lengths
    group = np.searchsorted(bounds, asking) * (len(bounds) + 1) + np.searchsorted(bounds, answering)
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(members):
            scores = int(heads * asking[members].max() * answering[members].max())
            size = max(1, min(batching.edges, batching.scores // scores))
            yield from (members[start : start + size] for start in range(0, len(members), size))
