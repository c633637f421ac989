"""Settings of the systems that train no encoder: the labels' field, the query adapter, and learned fusions of parts."""

from typing import Annotated, Literal

from pydantic import Field

from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.settings.shared import Inference
from gnn_encoder.settings.systems import FusionKind, fusion_systems
from gnn_encoder.settings.values import Count, PositiveFloat, PositiveInt


class MakeParts(IndexKind):
    """Makes the parts that fusions read, and examples of queries from parts without these queries' labels.

    The index over the labelled queries is of the kind of the bundles' index (`gnn_encoder.retrieval.query_index`).
    """

    strengths: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
    """c of the query adapter's penalty λ = c · trace(AᵀΩA) / d, the weakest adapter first. Chosen by leaving each
    training query out, with its twins."""
    margin: Annotated[float, Field(ge=0.0)] = 1.0
    """γ: how far the query adapter leads a query from its hard negatives. 0: it learns from the positives alone."""
    hard_negatives: PositiveInt = 10
    """Hits of a labelled query, without its positives, that are its hard negatives."""
    hub_exponent: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """α: a label of a passage with n labels weighs 1 / n^α in the adapter. Above 0, passages with many labels draw
    other queries less."""
    folds: Annotated[int, Field(ge=2, strict=True)] = 5
    """Parts that score a training query know no label of its fold."""
    examples: PositiveInt = 3000
    """Most training queries that a fusion is learnt from, a seeded draw. The parts keep all labels."""
    trained_encoder: bool = False
    """Whether the training queries have trained the encoder. They lie nearer to their passages then than other queries
    do, so the linear fusion, which needs few examples, is learnt from dev queries."""
    smallest_dev: Count = 50
    """Labelled dev queries from which on a fusion may be learnt from them."""


class FuseParts(Inference, IndexKind):
    """Makes a bundle that ranks by one part with labels, or by a learned fusion of all parts.

    Precision and tokens per batch are as in the step that encoded the queries, for labels that are added later.
    """

    kinds: tuple[FusionKind, ...] = tuple(fusion_systems())
    """The systems that a run makes and measures. `field`: BM25 over passages and their labelled queries. `adapter`: the
    query adapter. `linear`: a logistic regression over all parts. `trees`: LambdaMART. None of them: []."""
    kind: FusionKind = "trees"
    """The system of this call."""
    system: str = ""
    """Its name in every table. Empty: the name of that kind over M_de."""
    trees: PositiveInt = 200
    """Trees of LambdaMART."""
    leaves: Annotated[int, Field(ge=2, strict=True)] = 15
    """Most leaves of a tree."""
    learning_rate: PositiveFloat = 0.05
    """The factor of each tree in the sum (shrinkage)."""
    smallest_leaf: PositiveInt = 40
    """Candidates in a leaf at least."""
    penalty: PositiveFloat = 1.0
    """Of the logistic regression, on the squares of its coefficients."""
    bm25: Literal[True] = True
    """Always on: all these systems read the words, so each bundle has a BM25 index."""
    seed: Count = 0
    """Of LambdaMART."""
