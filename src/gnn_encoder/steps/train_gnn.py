"""Trains the dual encoder and the GNN together by Masked Graph Training (GNN-encoder Algorithm 1)."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, Graph, GraphChoice, TrainingSet, read_vectors
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.masked_graph import MaskedGraphTraining, new_gnn, training_examples

KEPT = ("cache_refreshes", "processes", "nodes")
"""Settings that a trial with frozen encoders does not have."""


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
    graph_choice: Path | None = None,
) -> Metrics:
    """Trains from M_de, on the examples whose query is in the graph; with the chosen settings, if any were chosen."""
    chosen = GraphChoice.read(graph_choice).facts if graph_choice else {}
    if chosen:
        kept = {name: getattr(settings, name) for name in KEPT}
        settings = TrainGnn(**{**chosen["training"], **kept})
    data, graph_arrays = Dataset(dataset), Graph.read(graph)
    examples = training_examples(settings, data, TrainingSet.read(training_set), graph_arrays)
    encoders = DualEncoder.load(dual_encoder)
    model = GnnEncoder(encoders, new_gnn(settings, encoders, graph_arrays))
    training = MaskedGraphTraining(model, data, examples, graph_arrays, read_vectors(passage_vectors), settings)
    result = training.fit(context)
    model.save(gnn_encoder.path)
    return {"examples": len(examples.query), **result}
