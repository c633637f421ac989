"""Trains and measures one variant of an ablation (the paper's Table 3, Fig. 3 and 4), or measures a use of labels.

All variants of a study start from the same M_de, the same candidates and the same cross-encoder.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Draft, Figures, Graph, Run, TrainingSet, read_manifest, read_vectors
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, labelled_pairs
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.label_tuning import Trial, chosen_use
from gnn_encoder.evaluation.measures import NAMES, labelled_queries, per_query
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.query_graph.narrowing import narrowed
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.settings.graph import BuildGraph, TryVariant
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.measures import WARM
from gnn_encoder.training.variants import train_variant

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
    """Trains the variant and propagates over the full graph, or chooses a use of labels; searches, and measures."""
    data, queries, passages = Dataset(dataset), read_vectors(query_vectors), read_vectors(passage_vectors)
    qrels = {split: data.judged(split) for split in SPLITS}
    rows = {split: labelled_queries(labels) for split, labels in qrels.items()}
    query_rows = np.concatenate(list(rows.values()))
    if not len(query_rows):
        raise UserError("no dev or test query has a positive label, so variants cannot be compared")
    trained: Metrics = {}
    if settings.labels:
        run = _with_labels(settings.labels, data, queries, passages, query_rows, settings.depth)
    else:
        vectors = np.asarray(queries[query_rows])
        if settings.trains:
            built = BuildGraph.model_validate(read_manifest(graph).settings)
            arrays, encoders = narrowed(Graph.read(graph), built, settings), DualEncoder.load(dual_encoder)
            passages, of_queries, trained = train_variant(
                context, settings, data, TrainingSet.read(training_set), encoders, arrays, queries, passages
            )
            vectors = of_queries(query_rows)
        run = run_by(partial(exact.search, passages, vectors), query_rows, data.identical[query_rows], settings.depth)
    ids = data.judged_ids()
    measured = {split: per_query(run, qrels[split], rows[split], ids) for split in SPLITS if len(rows[split])}
    warm = {split: warm_strata(qrels[split], data.seen_labels).rows(WARM) for split in measured}
    tables = [_table(split, rows[split], warm[split], values) for split, values in measured.items()]
    Figures.write(figures, pa.concat_tables(tables))
    means = {
        f"{split}/{name}": float(mean)
        for split, values in measured.items()
        for name, mean in zip(NAMES, values.mean(axis=0), strict=True)
    }
    headline = ", ".join(f"{split} MRR@10 {values[:, 0].mean():.3f}" for split, values in measured.items())
    return {**trained, **means, "headline": headline}


def _with_labels(
    settings: EncodeWithLabels,
    data: Dataset,
    queries: np.ndarray,
    passages: np.ndarray,
    query_rows: np.ndarray,
    depth: int,
) -> Run:
    """Ranks for the queries `query_rows` [n] with the use of labels that `encode_with_labels` would choose.

    `queries` [q, d] and `passages` [m, d] are M_de's vectors of all.
    """
    of_train = np.asarray(queries[data.query_rows("train")])
    use, _ = chosen_use(data, settings, passages, of_train, lambda rows: np.asarray(queries[rows]))
    labels = LabelledQueries.of(*labelled_pairs(data), len(passages), of_train)
    depth, left_out = min(depth, len(passages)), data.identical[query_rows]
    return Trial(query_rows, np.asarray(queries[query_rows]), labels, passages, depth, left_out).ranked(use)


def _table(split: str, rows: np.ndarray, warm: np.ndarray, values: np.ndarray) -> pa.Table:
    columns = {"split": pa.array([split] * len(rows)), "query": pa.array(rows, pa.int32()), WARM: pa.array(warm)}
    return pa.table({**columns, **dict(zip(NAMES, values.T, strict=True))})
