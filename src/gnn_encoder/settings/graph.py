"""The settings of the query–passage graph, of the training over it, and of the ablations of both."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from gnn_encoder.settings.shared import Inference, WatchedTraining
from gnn_encoder.settings.values import AutoYesNo, Count, Fraction, PositiveFloat, PositiveInt, StepSettings


class GraphShape(StepSettings):
    """Which edges the query–passage graph has, and the features of the edges."""

    neighbors: PositiveInt = 25
    """k: passages per training query, the first under M_de."""
    edges: Literal["retrieved", "retrieved+labelled", "labelled", "none"] = "retrieved"
    """`retrieved`: the paper's edges. `labelled`: each training query's labelled positives, marked as such. `none`: the
    control "without edges"; the layers then map a passage by itself, as self-loops do beside edges."""
    retrieved: PositiveInt = 50
    """Passages per training query that are kept with the graph, the first under M_de (`train_gnn.hard_negatives`)."""
    edge_features: Literal["cross_encoder", "none"] = "cross_encoder"
    """`none` is the ablation "without edge features"."""
    self_loop_features: Literal["learned", "cross_encoder"] = "learned"
    """One trained vector per node type, or M_ce's [CLS] of the pair (x, x) (the paper's count)."""

    @property
    def edge_kinds(self) -> frozenset[str]:
        """The kinds in `edges`: `retrieved`, `labelled`, both or none."""
        return frozenset(self.edges.split("+")) - {"none"}


class BuildGraph(Inference, GraphShape):
    """The query–passage graph (GNN-encoder 3.2)."""

    edge_feature_type: Literal["fp16", "int8"] = "fp16"
    """How edge features are stored. `int8`, with a scale per edge, halves their size on disk and the bytes read; on
    ObliQA's graph the first ten hits of 300 test queries stayed the same (benchmarks/RESULTS.md)."""
    previous: str = ""
    """Folder of an earlier run, such as ROOT/latest, with its `graph` and `passage_vectors`. What the same models
    computed for texts that have not changed is taken from there. Empty: everything is computed."""


class GnnShape(StepSettings):
    """The GNN's arithmetic (GNN-encoder 3.3). A saved GNN's `gnn.json` holds these settings, too."""

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
    """Masked Graph Training: the dual encoder and the GNN, jointly (GNN-encoder 3.4, Algorithm 1)."""

    epochs: PositiveInt = 5
    learning_rate: PositiveFloat = 2e-6
    """Of the two encoders."""
    gnn_learning_rate: PositiveFloat = 5e-5
    negatives: Count = 1
    hard_negatives: Literal["selected", "retrieved"] = "selected"
    """Drawn from the training set (`selected`), or from what M_de retrieved, without known positives. Few of the
    selected ones are the query's neighbours in the graph, so the GNN learns to tell few neighbours apart."""
    mask: Literal["folds", "sample", "drop_positives", "none"] = "folds"
    """`folds`: an epoch visits every query once, in disjoint folds. `sample`: each round draws its queries anew (the
    paper's wording). `drop_positives` is the ablation "without MGT": all queries are in the graph, without the edges
    from training queries to their positives (without any edge, where `build_graph.edges` is `labelled`). `none`: the
    whole graph, in which a query trains on passages that its own vector reached."""
    mask_fraction: Annotated[float, Field(gt=0.0, le=0.9)] = 0.05
    """β, the share of queries that a round trains on and takes out of the graph. `folds` makes round(1/β) folds, so β
    is at most 0.5 there."""
    start: Literal["random", "mean"] = "random"
    """The GNN's first weights: Xavier (the paper names none), or a plain attention mean behind a gate that is open by
    sigmoid(gate_bias), so that training starts near M_de."""
    gate_bias: float = -2.0
    """Of `start: mean`."""
    max_queries_per_passage: Count = 0
    """Most neighbour queries of a passage in training, by a seeded draw. 0: all, as in encoding."""
    cache_refreshes: Count = 0
    """How often in an epoch the passage vectors of eq. 6 are computed again, by the passage encoder of that moment;
    encoding then reads its vectors from there. Until the first refresh they are M_de's, so 4 in one epoch means after
    a quarter, a half and three quarters. 0: always M_de's (GNN-encoder 3.4)."""
    normalize_passages: AutoYesNo = "auto"
    """Scale h'_p to unit length. `auto`: where the backbone's own vectors have unit length."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"

    def _problems(self) -> Iterator[str]:
        if self.mask == "folds" and self.mask_fraction > 0.5:
            yield "mask_fraction above 0.5 needs mask: sample (two folds are the fewest there can be)"


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
    `untrained` evaluates M_de as it is."""
    query_map_learning_rate: PositiveFloat = 1e-4
    """Of `mode: frozen`."""
    depth: PositiveInt = 1000
    """Hits that the figures are computed on."""


class CompareVariants(StepSettings):
    """The table and figures of an ablation."""

    permutations: PositiveInt = 10000
    """Of the paired randomization test against the full model."""
    seed: Count = 0
