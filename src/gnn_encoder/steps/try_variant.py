"""Trains and measures one variant of an ablation (the paper's Table 3, Fig. 3 and 4).

All variants of a study start from the same M_de, the same candidates and the same cross-encoder.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Draft, Figures, Graph, Run, TrainingSet, read_manifest, read_vectors
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES, labelled_queries, per_query
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.query_graph.narrowing import narrowed
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.retrieval import exact
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.graph import BuildGraph, TryVariant
from gnn_encoder.settings.measures import WARM
from gnn_encoder.training.masked_graph import MaskedGraphTraining, new_gnn, training_examples
from gnn_encoder.training.texts import FrozenGnnEncoder

SPLITS = ("dev", "test")


@step(figures="figures")
def try_variant(
    context: Context,
    settings: TryVariant,
    dataset: Path,
    training_set: Path,
    dual_encoder: Path,
    passage_vectors: Path,
    query_vectors: Path,
    graph: Path,
    figures: Draft,
) -> Metrics:
    """Trains the variant, propagates over the full graph, searches, and measures."""
    data, queries, passages = Dataset(dataset), read_vectors(query_vectors), read_vectors(passage_vectors)
    qrels = {split: data.split_qrels(split) for split in SPLITS}
    rows = {split: labelled_queries(labels) for split, labels in qrels.items()}
    asked = np.concatenate(list(rows.values()))
    if not len(asked):
        raise UserError("no dev or test query has a positive label, so variants cannot be compared")
    trained: Metrics = {}
    if settings.mode == "untrained":
        asking = np.asarray(queries[asked])
    else:
        built = BuildGraph.model_validate(read_manifest(graph).settings)
        arrays, encoders = narrowed(Graph.read(graph), built, settings), DualEncoder.load(dual_encoder)
        examples = training_examples(settings, data, TrainingSet.read(training_set), arrays)
        model = _model(settings, encoders, arrays, queries, passages)
        training = MaskedGraphTraining(model, data, examples, arrays, passages, settings)
        trained = training.fit(context)
        passages = _propagated(context, training, passages)
        asking = training.queries.vectors(asked)
    scores, hits = exact.search(passages, asking, settings.depth)
    run, ids = Run.from_hits(asked, hits, scores), data.passages.ids()
    found = {split: per_query(run, qrels[split], rows[split], ids) for split in SPLITS if len(rows[split])}
    train = data.split_qrels("train")
    warm = {split: warm_strata(qrels[split], train).rows(WARM) for split in found}
    tables = [_table(split, rows[split], warm[split], values) for split, values in found.items()]
    Figures.write(figures, pa.concat_tables(tables))
    means = {
        f"{split}/{name}": float(mean)
        for split, values in found.items()
        for name, mean in zip(NAMES, values.mean(axis=0), strict=True)
    }
    headline = ", ".join(f"{split} MRR@10 {values[:, 0].mean():.3f}" for split, values in found.items())
    return {**trained, **means, "headline": headline}


def _model(
    settings: TryVariant, encoders: DualEncoder, graph: Graph, queries: np.ndarray, passages: np.ndarray
) -> GnnEncoder | FrozenGnnEncoder:
    gnn = new_gnn(settings, encoders, graph)
    if settings.mode == "joint":
        return GnnEncoder(encoders, gnn)
    normalize, rate = encoders.passage_encoder.normalize, settings.query_map_learning_rate
    return FrozenGnnEncoder(gnn, queries, passages, unit_length=normalize, rate=rate)


def _propagated(context: Context, training: MaskedGraphTraining, stored: np.ndarray) -> np.ndarray:
    """Returns h'_p [m, d] of all passages with the full graph, in an unlinked file; `stored` are M_de's vectors."""
    model = training.model
    m, encoded = len(stored), stored
    if isinstance(model, GnnEncoder):
        encoded = scratch(*stored.shape)
        progress, encoder = context.progress("encoding", m, "passages"), model.dual_encoder.passage_encoder
        precision = training.settings.precision
        encode_passages(encoder, training.dataset.passages, encoded, precision=precision, progress=progress)
    of_queries = model.gnn.config.passages_of_queries(stored, encoded)
    asked = training.queries.vectors(training.graph.queries)
    full_graph = Propagation(model.gnn, training.graph, asked, of_queries)
    vectors = scratch(*stored.shape)
    full_graph.write(vectors, np.arange(m), encoded)
    return vectors


def _table(split: str, rows: np.ndarray, warm: np.ndarray, values: np.ndarray) -> pa.Table:
    columns = {"split": pa.array([split] * len(rows)), "query": pa.array(rows, pa.int32()), WARM: pa.array(warm)}
    return pa.table({**columns, **dict(zip(NAMES, values.T, strict=True))})
