"""The systems of a training run. A system is one row of `SYSTEMS`, which graphs, settings, links and cards read.

CONTRIBUTING.md says what a new system needs besides.
"""

from dataclasses import dataclass, replace
from typing import Literal

LEXICAL, UNTRAINED, DPR, DUAL_ENCODER, GNN_ENCODER = "BM25", "Untrained", "DPR", "Dual encoder", "GNN-encoder"
CONVERGED = "Dual encoder, converged"
NOT_TRAINED = "untrained"
"""In the names of systems whose encoder is a published one as it is."""
QUERY_SUM, QUERY_MEMORY, QUERY_CLUSTERS = "Query sum", "Query memory", "Query clusters"
CROSS_ENCODER = "Cross-encoder"
RERANKED, FIRST_AND_RERANKED = "Re-ranked", "First stage + re-ranker"
LABEL_FIELD, ADAPTER = "BM25 with labels", "Query adapter"
LINEAR_FUSION, LEARNED_FUSION = "Linear fusion", "Learned fusion"

FusionKind = Literal["field", "adapter", "linear", "trees"]
LabelKind = Literal["sum", "memory", "clusters"]
BY_SCORES, BY_RANKS = FUSIONS = ("convex_run", "reciprocal_run")
"""Fusions with BM25, as outputs of `fuse`. A search can do the first, so it may be recommended, too."""


@dataclass(frozen=True)
class System:
    """A way to rank the passages. Most systems have a bundle, and are the same but for a few fields."""

    name: str
    """The name in all tables, and in the titles of calls."""
    purpose: str
    """What it is, for the readers of its card."""
    fusions: tuple[str, ...] = (BY_SCORES,)
    """The fusions that are measured."""
    served: bool = True
    """Whether a search can rank by it, with its bundle or with BM25's index, so that it may be recommended."""
    labels: LabelKind | None = None
    """The kind of `encode_with_labels` that makes its bundle; None: another call does."""
    fusion: FusionKind | None = None
    """The kind of `fuse_parts` that makes its bundle."""
    of_dual_encoder: bool = False
    """Whether its query encoder is M_de's. `build_graph` writes M_de's vectors of all queries."""
    model: str = ""
    """The name, in ROOT/latest and in an update, of a dual encoder that no other system has. It is there if the run
    made the bundle."""
    as_it_is: bool = False
    """Whether its encoder is a published one that nothing has trained. Only the ladder has such systems."""
    bundled_last: bool = False
    """Whether its bundle is made only if it is recommended: its run is older than that, and of an exact search."""


_TEXT = "The vector of a passage comes from its own text alone."
_GRAPH = (
    "The vector of a passage includes the training queries that are its neighbours in a query–passage graph "
    "(GNN-encoder, Liu et al., 2022). The graph is used only once, when the corpus is encoded."
)
_SUM = "The vector of a passage includes the sum of the training queries that are labelled with it."
_MEMORY = "A search also looks up the training queries nearest to the query, and lifts their passages."
_CLUSTERS = "A passage has a vector for each group of the training queries that are labelled with it."
_FIELD = "A passage retriever by words (BM25), in which a passage has the words of its labelled training queries, too."
_ADAPTER = "The query's vector is mapped by a matrix that labels give in closed form; the passages' vectors stay."
_PARTS = "Vectors, words, labelled queries, the query adapter and query memory, ordered together"
_FIRST = "The first hits of what the rung below recommends,"
_OF_LABELS = (
    System(QUERY_SUM, _SUM, labels="sum", of_dual_encoder=True),
    System(QUERY_MEMORY, _MEMORY, labels="memory", of_dual_encoder=True),
    System(QUERY_CLUSTERS, _CLUSTERS, labels="clusters", of_dual_encoder=True),
    System(ADAPTER, _ADAPTER, fusions=(), fusion="adapter", of_dual_encoder=True),
    System(LINEAR_FUSION, f"{_PARTS} by a logistic regression.", fusions=(), fusion="linear", of_dual_encoder=True),
    System(LEARNED_FUSION, f"{_PARTS} by LambdaMART.", fusions=(), fusion="trees", of_dual_encoder=True),
)
_ROWS = (
    System(LEXICAL, "A passage retriever by words (BM25).", fusions=()),
    System(LABEL_FIELD, _FIELD, fusions=(), fusion="field", of_dual_encoder=True),
    System(UNTRAINED, "A pretrained encoder as it is.", fusions=(), served=False),
    *(replace(row, name=f"{row.name}, {NOT_TRAINED}", as_it_is=True, served=False) for row in _OF_LABELS),
    System(DPR, f"{_TEXT} Trained with BM25's hits as negatives.", model="dpr", bundled_last=True),
    System(DUAL_ENCODER, f"{_TEXT} Trained on the selected training set.", fusions=FUSIONS, of_dual_encoder=True),
    System(CONVERGED, f"{_TEXT} Trained on until dev gains no more.", model="converged"),
    *_OF_LABELS,
    System(GNN_ENCODER, _GRAPH, fusions=FUSIONS),
    System(CROSS_ENCODER, "The GNN-encoder's first hits in the cross-encoder's order.", fusions=(), served=False),
    System(RERANKED, f"{_FIRST} in a re-ranker's order.", fusions=(), served=False),
    System(FIRST_AND_RERANKED, f"{_FIRST} by the sum of its score and a re-ranker's.", fusions=(), served=False),
)
SYSTEMS = {row.name: row for row in _ROWS}
"""Name → row, in the order of all tables, in which the simplest comes first for the recommendation."""


def served_systems() -> tuple[str, ...]:
    """Returns the systems of a training that may be recommended, the simplest first."""
    return tuple(name for name, row in SYSTEMS.items() if row.served)


def label_systems(as_it_is: bool = False) -> dict[LabelKind, str]:
    """Returns {kind of `encode_with_labels`: its system}, of M_de or of an encoder `as_it_is`."""
    return {row.labels: name for name, row in SYSTEMS.items() if row.labels and row.as_it_is == as_it_is}


def fusion_systems(as_it_is: bool = False) -> dict[FusionKind, str]:
    """Returns {kind of `fuse_parts`: its system}, of M_de or of an encoder `as_it_is`."""
    rows = (row for row in SYSTEMS.values() if row.as_it_is == as_it_is or row.fusion == "field")
    return {row.fusion: row.name for row in rows if row.fusion}


def systems_with_models() -> list[System]:
    """Returns the systems with a `model`, in the order in which a run makes their bundles."""
    return sorted((row for row in SYSTEMS.values() if row.model), key=lambda row: row.bundled_last)
