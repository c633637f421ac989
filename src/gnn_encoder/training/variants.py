"""One variant of the graph and of the training: trains it, and returns the vectors that it searches with."""

from collections.abc import Callable

import numpy as np

from gnn_encoder.artifacts import Dataset, Graph, TrainingSet
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.settings.graph import TryVariant
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.masked_graph import MaskedGraphTraining, new_gnn, training_examples
from gnn_encoder.training.texts import FrozenGnnEncoder


def train_variant(
    context: Context,
    settings: TryVariant,
    data: Dataset,
    training_set: TrainingSet,
    encoders: DualEncoder,
    graph: Graph,
    queries: np.ndarray,
    passages: np.ndarray,
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], dict[str, float]]:
    """Trains a variant whose mode is `frozen` or `joint`, and propagates over the whole graph.

    Args:
        graph: the variant's graph.
        queries: M_de's vectors [q, d] of all queries. passages: M_de's vectors [m, d].

    Returns:
        h'_p [m, d] in the type of `passages`, in an unlinked file; a function from query rows [b] to vectors [b, d];
        the training's figures.
    """
    examples, is_joint = training_examples(settings, data, training_set, graph), settings.mode == "joint"
    gnn, encoder = new_gnn(settings, encoders, graph), encoders.passage_encoder
    model: GnnEncoder | FrozenGnnEncoder = GnnEncoder(encoders, gnn)
    if not is_joint:
        rate = settings.query_map_learning_rate
        model = FrozenGnnEncoder(gnn, queries, passages, unit_length=encoder.normalize, rate=rate)
    training = MaskedGraphTraining(model, data, examples, graph, passages, settings)
    figures, m, encoded = training.fit(context), len(passages), passages
    if is_joint:
        encoded = scratch(*passages.shape, dtype=passages.dtype)
        progress = context.progress("encoding", m, "passages")
        encode_passages(encoder, data.passages, encoded, precision=settings.precision, progress=progress)
    of_queries = gnn.config.passages_of_queries(passages, encoded)
    full_graph = Propagation(gnn, graph, training.queries.vectors(graph.queries), of_queries)
    vectors = scratch(*passages.shape, dtype=passages.dtype)
    full_graph.write(vectors, np.arange(m), encoded)
    return vectors, training.queries.vectors, figures
