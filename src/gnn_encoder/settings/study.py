"""The settings classes of the ablation pipeline's own steps."""

from typing import Literal

from gnn_encoder.settings.graph import GraphShape, TrainGnn
from gnn_encoder.settings.shared import Count, Inference, PositiveFloat, PositiveInt, StepSettings


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
