"""The settings of the query–passage graph, of the training on the graph, and of the ablations."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.measures import Measure
from gnn_encoder.settings.shared import Inference, LongPassages, OnNodes, Sharded, Tasks, VectorType, WatchedTraining
from gnn_encoder.settings.systems import LabelKind
from gnn_encoder.settings.values import AutoYesNo, Count, Fraction, PositiveFloat, PositiveInt, StepSettings, described


class GraphShape(StepSettings):
    """Which edges the query–passage graph has, and the features of the edges."""

    neighbors: PositiveInt = 25
    """k: passages per training query, the first in M_de's ranking."""
    edges: Literal["retrieved", "retrieved+labelled", "labelled", "none"] = "retrieved"
    """`retrieved`: the paper's edges. `labelled`: edges to the labelled positives of each training query, marked as
    labelled. `none`: the control "without edges"; each passage then has its self-loop only."""
    retrieved: PositiveInt = 50
    """Passages per training query that the graph stores, the first in M_de's ranking (`train_gnn.hard_negatives`)."""
    edge_features: Literal["cross_encoder", "none"] = "cross_encoder"
    """`none` is the ablation "without edge features"."""
    self_loop_features: Literal["learned", "cross_encoder"] = "learned"
    """`learned`: one trained vector per node type. `cross_encoder`: M_ce's [CLS] of (x, x) (the paper's count)."""

    @property
    def edge_kinds(self) -> frozenset[str]:
        """Returns the kinds in `edges`: `retrieved`, `labelled`, both or none."""
        return frozenset(self.edges.split("+")) - {"none"}


class FindNeighbours(Sharded, Inference, LongPassages):
    """A task that shares `build_graph`'s encoding of the passages and its search of the training queries."""

    depth: PositiveInt = 50
    """Passages per training query."""
    vector_type: VectorType = "fp16"
    """Storage type of the passages' vectors."""


class BuildGraph(Inference, GraphShape, LongPassages):
    """The query–passage graph (GNN-encoder 3.2). `long_passages` is that of DPR and the converged dual encoder, too; on
    the ladder `windows` of `encode` counts here."""

    edge_feature_type: Literal["fp16", "int8"] = "fp16"
    """Storage type of edge features. `int8`, with one scale per edge, halves the size on disk and the bytes read. On
    ObliQA's graph the first ten hits of 300 test queries did not change (benchmarks/RESULTS.md)."""
    vector_type: VectorType = "fp16"
    """Storage type of the passages' vectors, M_de's and those of all bundles. `fp32` takes twice the disk. An update
    keeps the type of the earlier run; with another type it encodes all passages again."""
    queries: Literal["all", "trained"] = "all"
    """Training queries that are nodes, if `ingest.max_trained_queries` draws the queries that are trained on. `all`: a
    query that is not trained on has edges to its labelled passages only (none, if `edges` is `retrieved`). `trained`:
    only the queries that are trained on."""
    previous: str = ""
    """Folder of an earlier run, such as ROOT/latest, with its `graph` and `passage_vectors`. With the same models,
    results for unchanged texts are copied from there. Empty: everything is computed."""
    shards: Tasks = 1
    """Tasks `find_neighbours`, which share the encoding of the passages and the search of the training queries, as
    `dense_retrieve.shards`. An update takes one task, because it encodes new texts alone. With `long_passages: late` a
    document that two tasks share is read in two passes."""

    @property
    def depth(self) -> int:
        """Returns how many nearest passages of a training query the graph needs."""
        return max(self.neighbors, self.retrieved)

    @property
    def find_neighbours(self) -> FindNeighbours:
        """Returns the settings of the tasks."""
        return FindNeighbours(depth=self.depth, **self.model_dump(include={*FindNeighbours.model_fields}))

    def _problems(self) -> Iterator[str]:
        if self.shards > 1 and self.previous:
            yield "shards above 1 is for a whole run: set shards = 1 with previous, which encodes new texts alone"


class GnnShape(StepSettings):
    """The architecture of the GNN (GNN-encoder 3.3). The `gnn.json` of a saved GNN also holds these settings."""

    heads: PositiveInt = 4
    """Attention heads of a layer. They divide the width of the vectors."""
    negative_slope: Fraction = 0.2
    """Slope of the LeakyReLU of the attention logits below 0 (GAT)."""
    activation: Literal["identity", "elu"] = "identity"
    """σ of eq. 5."""
    layers: Literal[0, 1, 2] = 2
    """1 is the ablation "one layer": only the passage layer, which reads E_Q(q). 0 is "without GNN": h'_p = h_p."""
    gate: Literal["filter", "fixed"] = "filter"
    """`fixed` is the ablation "without filter gate": h'_p = gate_alpha · h~_p + h_p."""
    gate_alpha: Fraction = 0.5
    """Opening of the gate with `gate: fixed`."""


class TrainGnn(WatchedTraining, OnNodes, GnnShape):
    """Masked Graph Training of the dual encoder and the GNN together (GNN-encoder 3.4, Algorithm 1)."""

    epochs: PositiveInt = 5
    """Passes over all training queries."""
    learning_rate: PositiveFloat = 2e-6
    """Learning rate of the two encoders."""
    gnn_learning_rate: PositiveFloat = 5e-5
    """Learning rate of the GNN."""
    negatives: Count = 1
    """Hard negatives of each query in a batch, besides the positives of the other queries."""
    hard_negatives: Literal["selected", "retrieved"] = "selected"
    """`selected`: drawn from the training set. `retrieved`: drawn from M_de's hits without known positives. Few
    selected negatives are neighbours of the query in the graph, so the GNN learns to tell few neighbours apart."""
    mask: Literal["folds", "sample", "drop_positives", "none"] = "folds"
    """`folds`: an epoch visits every query once, in disjoint folds. `sample`: each round draws its queries again (the
    paper's wording). `drop_positives` is the ablation "without MGT": all queries stay in the graph, but the edges from
    training queries to their positives are removed (all edges, if `build_graph.edges` is `labelled`). `none`: the whole
    graph; a query then trains on passages whose vectors contain the query's own vector."""
    mask_fraction: Annotated[float, Field(gt=0.0, le=0.9)] = 0.05
    """β, the share of queries that a round trains on and removes from the graph. `folds` makes round(1/β) folds, so its
    β is at most 0.5."""
    start: Literal["random", "mean"] = "random"
    """Initial weights of the GNN. `random`: Xavier (the paper names none). `mean`: the plain mean of the neighbours,
    behind a gate with the value sigmoid(gate_bias), so that training starts near M_de."""
    gate_bias: float = -2.0
    """Initial bias of the gate with `start: mean`."""
    max_queries_per_passage: Count = 0
    """Largest number of neighbour queries of a passage in training, drawn with the seed. 0: all, as in encoding."""
    cache_refreshes: Count = 0
    """How often per epoch the current passage encoder computes the passage vectors of eq. 6 again; `encode_corpus` then
    uses the trained encoder's vectors. The first part of training uses M_de's vectors, so 4 in one epoch means: after a
    quarter, a half and three quarters. 0: always M_de's vectors (GNN-encoder 3.4)."""
    normalize_passages: AutoYesNo = "auto"
    """Scale h'_p to unit length. `auto`: yes if the backbone's own vectors have unit length."""
    score_scale: PositiveFloat | Literal["auto"] = "auto"
    """Factor of s(q, p) in the loss, as in the training of the dual encoder."""

    def _problems(self) -> Iterator[str]:
        if self.mask == "folds" and self.mask_fraction > 0.5:
            yield "mask_fraction above 0.5 needs mask: sample (two folds are the fewest there can be)"


class EncodeQueries(Inference):
    """Computes M_de's vectors of all queries, for variants with frozen encoders."""


class TryVariant(GraphShape, TrainGnn):
    """One variant of an ablation with one seed: a graph, a training, and the measures of dev and test queries.

    Settings of the graph and of the training that the main pipeline has, too, come from `build_graph` and `train_gnn`.
    """

    variant: str = "full"
    """Name of the variant in tables."""
    mode: Literal["frozen", "joint", "untrained", LabelKind] = "frozen"
    """`joint`: the paper's training. `frozen`: the encoders stay as they are; the GNN and a linear map of the query
    vectors are trained on M_de's vectors. `untrained`: M_de is evaluated as it is. The others: M_de with the kind of
    `encode_with_labels`, which trains nothing."""
    labels: EncodeWithLabels | None = None
    """The numbers that are tried for such a kind: the preset's."""
    query_map_learning_rate: PositiveFloat = 1e-4
    """Learning rate of the linear map with `mode: frozen`."""
    depth: PositiveInt = 1000
    """Number of hits that are evaluated."""

    @property
    def trains(self) -> bool:
        """Whether the variant trains, so that seeds differ."""
        return self.mode in ("frozen", "joint")


def largest_graph(settings: BuildGraph, wanted: Iterable[GraphShape]) -> BuildGraph:
    """Returns the settings of a graph that contains every wanted graph (`query_graph.narrowing`)."""
    shapes = [settings, *wanted]
    kinds = frozenset().union(*(shape.edge_kinds for shape in shapes))
    return settings.model_copy(update={
        "neighbors": max(shape.neighbors for shape in shapes),
        "retrieved": max(shape.retrieved for shape in shapes),
        "edges": "+".join(sorted(kinds, reverse=True)) or "none",
        **{name: "cross_encoder" for name in ("edge_features", "self_loop_features")
           if any(getattr(shape, name) == "cross_encoder" for shape in shapes)},
    })  # fmt: skip


class ChooseGraph(StepSettings):
    """Tries graphs and trainings with frozen encoders on dev queries, for `train_gnn` to train the best one jointly."""

    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name → changes to `build_graph` and `train_gnn`, the simplest first: `{one layer: {train_gnn.layers: 1}}`. The
    best one on dev is trained, among those that do not fall on cold dev queries; of equal ones the first. Empty:
    nothing is tried, and `build_graph` and `train_gnn` hold."""
    seeds: PositiveInt = 1
    """Each variant is trained with so many seeds, and the means of a query's figures are compared."""
    tried: tuple[TryVariant, ...] = ()
    """The variants in full, from the three sections."""
    measure: Measure = "RR@10"
    """`promote.measure`."""

    def of(self, build: BuildGraph, train: TrainGnn, measure: Measure) -> "ChooseGraph":
        """Returns the settings with the variants in full; raises ValueError for an unknown or impossible setting."""
        shared = {name: getattr(build, name) for name in GraphShape.model_fields} | train.model_dump()
        tried = []
        for name, changes in self.variants.items():
            changed = {}
            for key, value in changes.items():
                step, _, setting = key.partition(".")
                known = {"build_graph": GraphShape.model_fields, "train_gnn": TrainGnn.model_fields}.get(step, ())
                if setting not in known:
                    raise ValueError(f"choose_graph.variants.{name}: {key} is no setting of build_graph or train_gnn")
                changed[setting] = value
            try:
                alone = {"cache_refreshes": 0, "processes": 1, "nodes": 1}
                tried.append(TryVariant(**{**shared, **alone, **changed, "variant": name}))
            except ValidationError as error:
                raise ValueError(f"choose_graph.variants.{name}: {described(error)}") from None
        return self.model_copy(update={"tried": tuple(tried), "measure": measure})


class CompareVariants(StepSettings):
    """Writes the table and plots of an ablation."""

    permutations: PositiveInt = 10000
    """Permutations of the paired randomization test against the full model."""
    resamples: PositiveInt = 2000
    """Bootstrap resamples of the queries, for the confidence intervals."""
    seed: Count = 0
    """Of the randomization test and of the bootstrap."""
