"""Step 12: Masked Graph Training of the dual encoder and the GNN, jointly (GNN-encoder Algorithm 1)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset, Draft, Graph, TrainingSet, read_vectors
from gnn_encoder.context import Context
from gnn_encoder.errors import UserError
from gnn_encoder.graph.edge_features import EdgeFeatures
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.models.gnn_encoder import GnnEncoder
from gnn_encoder.settings import TrainGnn
from gnn_encoder.settings.graph import GnnShape
from gnn_encoder.steps.step import Metrics, step
from gnn_encoder.training.losses import KnownPositives
from gnn_encoder.training.masked_graph import MaskedGraphTraining


@step(gnn_encoder="model")
def train_gnn(
    context: Context,
    settings: TrainGnn,
    dataset: Path,
    training_set: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    graph: Path,
    gnn_encoder: Draft,
) -> Metrics:
    """Train from M_de on the examples whose query is in the graph."""
    data, graph_arrays = Dataset(dataset), Graph.read(graph)
    examples = training_examples(settings, data, TrainingSet.read(training_set), graph_arrays)
    encoders = DualEncoder.load(dual_encoder)
    model = GnnEncoder(encoders, new_gnn(settings, encoders, graph_arrays))
    training = MaskedGraphTraining(model, data, examples, graph_arrays, read_vectors(passage_vectors), settings)
    result = training.fit(context)
    model.save(gnn_encoder.path)
    return {
        "examples": len(examples.query),
        **result.metrics(),
        "headline": f"loss {result.loss:.3f}, {result.examples_per_second:.1f} examples/s",
    }


def training_examples(settings: TrainGnn, data: Dataset, examples: TrainingSet, graph: Graph) -> TrainingSet:
    """The examples whose query is in the graph, with the negatives that the settings want.

    Raises:
        UserError: fewer than two queries are left.
    """
    examples = graph_examples(examples)
    if len(np.unique(examples.query)) < 2:
        raise UserError("masked training needs at least two training queries with a positive")
    if settings.hard_negatives == "retrieved":
        known = KnownPositives.of(data.split_qrels("train"), examples)
        examples = replace(examples, negatives=retrieved_negatives(examples, graph, known))
    return examples


def new_gnn(settings: TrainGnn, encoders: DualEncoder, graph: Graph) -> GNN:
    """The GNN before training, drawn from the settings' seed."""
    torch.manual_seed(settings.seed)
    gnn = GNN(gnn_config(settings, encoders, graph))
    if settings.start == "mean":
        gnn.start_from_mean(settings.gate_bias)
    return gnn


def graph_examples(examples: TrainingSet) -> TrainingSet:
    """The examples whose query is a dataset query, and so a graph node."""
    keep = np.flatnonzero(examples.query >= 0)
    return TrainingSet(
        [examples.query_text[i] for i in keep],
        examples.query[keep],
        examples.positive[keep],
        examples.negatives[keep],
        examples.origin[keep],
    )


def retrieved_negatives(examples: TrainingSet, graph: Graph, known: KnownPositives) -> np.ndarray:
    """What M_de retrieved for each example's query, int32 [e, r], with -1 in the place of known positives."""
    assert graph.retrieved is not None
    rows = graph.retrieved[np.searchsorted(graph.queries, examples.query)]
    negatives: np.ndarray = np.where(known.contains(examples.query[:, None], rows), -1, rows)
    return negatives


def gnn_config(settings: TrainGnn, encoders: DualEncoder, graph: Graph) -> GnnConfig:
    """The GNN's shape for these encoders and this graph."""
    width = encoders.passage_encoder.width
    if width % settings.heads:
        raise UserError(f"train_gnn.heads = {settings.heads}: must divide the encoder's width {width}")
    scaled = settings.normalize_passages
    return GnnConfig(
        width=width,
        edge_width=EdgeFeatures(graph).width,
        learned_loops=graph.query_loops is None,
        normalize_passages=encoders.passage_encoder.normalize if scaled == "auto" else scaled == "yes",
        cached_passages=settings.cache_refreshes == 0,
        **settings.model_dump(include=set(GnnShape.model_fields)),
    )
