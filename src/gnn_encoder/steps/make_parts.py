"""Makes the parts that need labels and no training, and the examples from which fusions of them are learnt."""

from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.artifacts.arrays import QUERIES, read_rows, read_scored
from gnn_encoder.artifacts.bundle import LABELS, Bm25Index
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.artifacts.parts_folder import ADAPTER, DEV_EXAMPLES, EXAMPLES, FIELD, LENGTHS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.fusion_examples import (
    Labelled,
    chosen_strength,
    dev_examples,
    examples_of,
    hard_negative_pulls,
)
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.machine.scratch import scratch_texts
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.adapter import Moments
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.label_field import LabelField
from gnn_encoder.retrieval.parts import Parts, length_of
from gnn_encoder.retrieval.query_index import build_query_index, open_query_index, said
from gnn_encoder.settings.fusion import MakeParts


@step(parts="parts")
def make_parts(
    context: Context, settings: MakeParts, dataset: Path, passage_vectors: Path, bm25_index: Path, parts: Draft
) -> Metrics:
    """Chooses the adapter's strength, indexes the labelled queries, and scores candidates of training queries."""
    data, (vectors, of) = Dataset(dataset), read_scored(passage_vectors)
    labelled, train = Labelled.of(data, settings.hub_exponent), data.query_rows("train")
    queries = read_rows(passage_vectors, QUERIES)
    if len(labelled.rows) < len(train):
        queries = queries[np.searchsorted(train, labelled.rows)]
    ids, texts = (scratch_texts(data.query_table.column(name, labelled.rows)) for name in ("query_id", "text"))
    words = Bm25.load(Bm25Index.read(bm25_index).path)
    pulls = hard_negative_pulls(data, labelled, vectors, queries, settings.margin, settings.hard_negatives, of)
    targets = nearest_rows(vectors, of, queries, labelled.query, labelled.passage)
    moments = Moments.of_pairs(queries, labelled.query, vectors, targets, labelled.weights, pulls)
    strength, figures = chosen_strength(data, labelled, vectors, queries, moments, settings.strengths, pulls, of)
    labels = LabelledQueries.grouped(labelled.query, labelled.passage, len(data.passages), queries)
    labels.write(parts / LABELS, ids, texts, None, LabelUse("fusion", 1.0))
    recalled = build_query_index(labels, parts / LABELS, settings)

    def texts_at(rows: np.ndarray) -> list[str]:
        return list(texts.take(rows).to_pylist())

    known = Parts(
        vectors=vectors,
        search=partial(best_vectors.search, vectors, of),
        words=words,
        passages=data.passages,
        labels=labels,
        texts=texts_at,
        field=LabelField.build(words, data.passages, labels, texts_at),
        adapter=moments.adapter(strength),
        lengths=np.concatenate([length_of(batch.full_texts()) for batch in data.passages.stream()]),
        query_index=open_query_index(labels, parts / LABELS),
        pulls=pulls,
        of=of,
    )
    folds = context.progress("examples", settings.folds, "folds")
    examples = examples_of(
        data, known, labelled, moments, strength, folds=settings.folds, most=settings.examples, done=folds.advance,
        weight_of=Labelled.weight_of(labelled.passage, len(data.passages), settings.hub_exponent),
    )  # fmt: skip
    np.save(parts / ADAPTER, known.adapter, allow_pickle=False)
    np.save(parts / LENGTHS, known.lengths, allow_pickle=False)
    known.field.write(parts / FIELD)
    examples.write(parts / EXAMPLES)
    dev = labelled_queries(data.split_qrels("dev"))
    if settings.trained_encoder and len(dev) >= max(settings.smallest_dev, settings.folds):
        of_dev = dev_examples(data, known, vectors_of_queries(passage_vectors, data, dev), settings.folds)
        of_dev.write(parts / DEV_EXAMPLES)
    return {
        "labelled_queries": len(labelled.rows),
        "labelled_passages": len(labels.passages),
        "strength": strength,
        "hard_negatives": 0 if pulls is None else settings.hard_negatives,
        "examples": len(examples.sizes),
        "candidates": len(examples.relevant),
        "headline": f"{len(labelled.rows):,} labelled queries, adapter strength {strength:g} "
        f"(MRR@10 {figures[strength]:.3f} left out), {len(examples.sizes):,} examples{said(recalled)}",
        **({} if recalled is None else {"query_recall": recalled}),
    }
