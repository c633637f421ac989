"""Settings of the kinds of re-rankers that read a passage's context in its documents: mim, lim and mix_im."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from gnn_encoder.settings.shared import Inference, TokenVectorType
from gnn_encoder.settings.values import Count, Fraction, PositiveInt, StepSettings

EdgeType = Literal[
    "order", "order_inverse", "structural", "structural_inverse",
    "internal", "internal_inverse", "external", "external_inverse", "self",
]  # fmt: skip
"""The types of edges of the document graph (`gnn_encoder.artifacts.document_graph`)."""
EDGE_KINDS: tuple[EdgeType, ...] = get_args(EdgeType)


class BuildDocumentGraph(StepSettings):
    """Builds the typed edges between the passages and sections of documents."""


class EncodeContext(Inference):
    """Computes the vectors of all passages in their context, once for all queries."""

    token_vectors: TokenVectorType = "fp16"
    """As in `train_reranker`, whose value the pipeline takes."""


class DocumentNetwork(StepSettings):
    """The network over documents, and its training (Albarede et al. 2022). For mim, lim and mix_im alone."""

    frozen_layers: Count | Literal["half"] = "half"
    """The encoder's first so many layers, and what is below them, are not trained. The paper freezes six of twelve."""
    graph_layers: PositiveInt = 3
    """Layers of the network over documents (Albarede et al. 2022, section 3, also the next two)."""
    graph_heads: PositiveInt = 8
    """Attention heads of a layer. They divide the width of its vectors."""
    graph_dropout: Fraction = 0.7
    """Of that network's attention, whatever `dropout` is."""
    neighbour_reduction: Literal["sum", "mean"] = "sum"
    """Over a node's neighbours of one type. Eq. 1 has the sum, in which a section with 200 parts outweighs others."""
    edge_types: Annotated[tuple[EdgeType, ...], Field(min_length=1)] = EDGE_KINDS
    """The types of edges that the network reads."""
    max_neighbours: Count = 8
    """In training, at most so many edges of each type into a node are read in a layer, drawn for each batch. 0: all.
    Later all are read."""
    neighbours: Literal["cached", "live"] = "cached"
    """In training, the neighbours' vectors are those of the epoch's start, or are computed with gradient
    for each batch."""
    residual: bool = False
    """A layer of the network adds its result to its input. The paper's do not."""
    layer_norm: bool = False
    """A layer's result is normalised. The paper's are not."""
    context_unit_length: bool = False
    """Context vectors are scaled to length 1, as the encoder's are. The paper does not say."""
    context_asks: Literal["content", "learned"] = "content"
    """lim: what asks the neighbours in a passage's place: its own tokens, or a trained sequence of 32 vectors, so that
    the context depends on the passage's position alone."""
    context_weight: Fraction | None = None
    """lim, mix_im: λ, the context's share in the score. By default it is learned."""
