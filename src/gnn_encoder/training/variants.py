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

Trained = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], dict[str, float]]


def train_variant(
    context: Context,
    settings: TryVariant,
    data: Dataset,
    training_set: TrainingSet,
    encoders: DualEncoder,
    graph: Graph,
    queries: np.ndarray,
    passages: np.ndarray,
) -> Trained:
    """Trains a variant whose mode is `frozen` or `joint`, and propagates over the whole graph.

    Args:
        graph: the variant's graph.
        queries: M_de's vectors [q, d] of all queries. passages: M_de's vectors [m, d].

    Returns:
        h'_p [m, d], in an unlinked file; a function from query rows [b] to vectors [b, d]; the training's figures.
    """
    examples = training_examples(settings, data, training_set, graph)
    model = _model(settings, encoders, graph, queries, passages)
    training = MaskedGraphTraining(model, data, examples, graph, passages, settings)
    figures = training.fit(context)
    return _propagated(context, training, passages), training.queries.vectors, figures


def _model(
    settings: TryVariant, encoders: DualEncoder, graph: Graph, queries: np.ndarray, passages: np.ndarray
) -> GnnEncoder | FrozenGnnEncoder:
    gnn = new_gnn(settings, encoders, graph)
    if settings.mode == "joint":
        return GnnEncoder(encoders, gnn)
    normalize, rate = encoders.passage_encoder.normalize, settings.query_map_learning_rate
    return FrozenGnnEncoder(gnn, queries, passages, unit_length=normalize, rate=rate)


def _propagated(context: Context, training: MaskedGraphTraining, stored: np.ndarray) -> np.ndarray:
    """Returns h'_p [m, d] of all passages with the full graph, in an unlinked file; `stored` are M_de's vectors.

    h_p and h'_p have the type of `stored`, as in `encode_nodes` and `encode_corpus`.
    """
    model = training.model
    m, encoded = len(stored), stored
    if isinstance(model, GnnEncoder):
        encoded = scratch(*stored.shape, dtype=stored.dtype)
        progress, encoder = context.progress("encoding", m, "passages"), model.dual_encoder.passage_encoder
        precision = training.settings.precision
        encode_passages(encoder, training.dataset.passages, encoded, precision=precision, progress=progress)
    of_queries = model.gnn.config.passages_of_queries(stored, encoded)
    query_vectors = training.queries.vectors(training.graph.queries)
    full_graph = Propagation(model.gnn, training.graph, query_vectors, of_queries)
    vectors = scratch(*stored.shape, dtype=stored.dtype)
    full_graph.write(vectors, np.arange(m), encoded)
    return vectors
