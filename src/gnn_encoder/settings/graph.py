"""The settings of the query–passage graph, of the training over it, and of the ablations of both."""

from typing import Annotated, Literal

import pydantic
from pydantic import Field

from gnn_encoder.settings.shared import (
    AutoYesNo,
    Count,
    Fraction,
    Inference,
    PositiveFloat,
    PositiveInt,
    StepSettings,
    WatchedTraining,
)


class GraphShape(StepSettings):
    """Which edges the query–passage graph has, and what they carry."""

    neighbors: PositiveInt = 25
    """k: passages per training query, the first under M_de."""
    edges: Literal["retrieved", "retrieved+labelled", "labelled", "none"] = "retrieved"
    """The paper's edges; each training query's labelled positives too, marked as such; these alone; or `none`, the
    control "without edges": layers that map a passage by itself, as self-loops do beside edges."""
    retrieved: PositiveInt = 50
    """Passages per training query that are kept with the graph, the first under M_de (`train_gnn.hard_negatives`)."""
    edge_features: Literal["cross_encoder", "none"] = "cross_encoder"
    """`none` is the ablation "without edge features"."""
    self_loop_features: Literal["learned", "cross_encoder"] = "learned"
    """One trained vector per node type, or M_ce's [CLS] of the pair (x, x) (the paper's count)."""

    @property
    def edge_kinds(self) -> frozenset[str]:
        """The kinds that `edges` names, of `retrieved` and `labelled`; empty for `none`."""
        return frozenset(self.edges.split("+")) - {"none"}


class BuildGraph(Inference, GraphShape):
    """The query–passage graph (GNN-encoder 3.2)."""

    edge_feature_type: Literal["fp16", "int8"] = "fp16"
    """How they are stored: `int8`, with a scale per edge, takes half the disk and half the reading, and on ObliQA's
    graph changed the first ten of none of 300 test queries (benchmarks/RESULTS.md)."""
    previous: str = ""
    """Folder of an earlier run, such as ROOT/latest, with its `graph` and `passage_vectors`: what the same models made
    of texts that have not changed is carried over. Empty: all is made anew."""


class GnnShape(StepSettings):
    """The GNN's arithmetic (GNN-encoder 3.3). A saved GNN's `gnn.json` holds these too."""

    heads: PositiveInt = 4
    negative_slope: Fraction = 0.2
    activation: Literal["identity", "elu"] = "identity"
    """σ of eq. 5."""
    layers: Literal[0, 1, 2] = 2
    """1 is the ablation "one layer": the passage side only, over E_Q(q); 0 is "without GNN": h'_p = h_p."""
    gate: Literal["filter", "fixed"] = "filter"
    """`fixed` is the ablation "without filter gate": h'_p = gate_alpha · h~_p + h_p."""
    gate_alpha: Fraction = 0.5


class TrainGnn(WatchedTraining, GnnShape):
    """Masked Graph Training, dual encoder and GNN jointly (GNN-encoder 3.4, Algorithm 1)."""

    epochs: PositiveInt = 5
    learning_rate: PositiveFloat = 2e-6
    """Of the two encoders."""
    gnn_learning_rate: PositiveFloat = 5e-5
    negatives: Count = 1
    hard_negatives: Literal["selected", "retrieved"] = "selected"
    """Where they are drawn from: the training set, or what M_de retrieved, known positives left out. Few of
    the former are the query's neighbours in the graph, so little is there for the GNN to tell apart."""
    mask: Literal["folds", "sample", "drop_positives", "none"] = "folds"
    """`folds`: an epoch visits every query once, over disjoint folds; `sample`: each round draws its
    queries afresh (the paper's wording); `drop_positives` is the ablation "without MGT": all queries in the graph, the
    edges from training queries to their positives dropped (every edge, where `build_graph.edges` is `labelled`); `none`
    leaves the graph whole: a query trains on passages that it has flowed into."""
    mask_fraction: Annotated[float, Field(gt=0.0, le=0.9)] = 0.05
    """β, the share of queries that a round trains on and takes out of the graph. `folds` has round(1/β) of
    them, so at most 0.5 there."""
    start: Literal["random", "mean"] = "random"
    """The GNN's first weights: Xavier (the paper names none), or a plain attention mean behind a gate
    that is open by sigmoid(gate_bias), so that training starts near M_de."""
    gate_bias: float = -2.0
    """Of `start: mean`."""
    max_queries_per_passage: Count = 0
    """Neighbour queries of a passage in training, by a seeded draw. 0: all, as in encoding."""
    cache_refreshes: Count = 0
    """How often in an epoch the passage vectors of eq. 6 are made anew, by the passage encoder as it then is; encoding
    then takes its vectors there too. The first stretch of the first epoch has M_de's, so 4 in one epoch means at a
    quarter, a half and three quarters. 0: M_de's always (GNN-encoder 3.4)."""
    normalize_passages: AutoYesNo = "auto"
    """Scale h'_p to unit length. `auto`: where the backbone's own vectors have unit length."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"

    @pydantic.model_validator(mode="after")
    def _folds_mask_at_most_half(self) -> "TrainGnn":
        if self.mask == "folds" and self.mask_fraction > 0.5:
            raise ValueError("mask_fraction above 0.5 needs mask: sample (two folds are the fewest there can be)")
        return self


class EncodeQueries(Inference):
    """M_de's vectors of every query, for variants with frozen encoders."""


class TryVariant(GraphShape, TrainGnn):
    """One variant of an ablation with one seed: a graph, a training, and its figures on dev and test queries.

    What the graph and the training share with the main pipeline comes from `build_graph` and `train_gnn`.
    """

    variant: str = "full"
    """Its name in tables."""
    mode: Literal["frozen", "joint", "untrained"] = "frozen"
    """`joint` is the paper's training; `frozen` trains the GNN and a linear map of the queries over M_de's vectors;
    `untrained` measures M_de as it is."""
    query_map_learning_rate: PositiveFloat = 1e-4
    """Of `mode: frozen`."""
    depth: PositiveInt = 1000
    """Hits that are measured."""


class CompareVariants(StepSettings):
    """The table and figures of an ablation."""

    permutations: PositiveInt = 10000
    """Of the paired randomization test against the full model."""
    seed: Count = 0
