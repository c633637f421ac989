"""Gives the hits that are re-ranked: BM25's, a bundle's, a run file's, or the pool of the data."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Run
from gnn_encoder.artifacts.bundle import Bm25Index
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries, shown_split
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.trec import read_run_of
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.first_stage import dev_figures, search_splits, searched_queries
from gnn_encoder.retrieval.identical import run_without
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import NO_VECTORS, served_run
from gnn_encoder.settings.first_stage import BM25, POOL, FirstStage
from gnn_encoder.storage import local_file, local_folder


@step(run="run")
def first_stage(
    context: Context,
    settings: FirstStage,
    dataset: Path,
    bm25_run: Path,
    bm25_index: Path,
    run: Draft,
    bundle: Path | None = None,
    passage_vectors: Path | None = None,
) -> Metrics:
    """Writes the hits of the source, and BM25's for a split of which the source has no query.

    `bundle` is the source if it is given. Some bundles know the labels of training queries and rank their passages
    high. That is no leak into a re-ranker: it reads texts, its positives are the labels themselves, and its negatives
    are hits without a label. Only the weight of the first stage's score would be wrong on these queries, so
    `weigh_reranker` chooses it on dev, whose labels are in no bundle; a fusion that was learnt from dev queries ranks
    none that it has seen.

    `passage_vectors` are of the published encoder: one whose weights are elsewhere is not asked again.

    Raises:
        UserError: the source does not fit the dataset, or has no query of the split in the report's headline.
    """
    data, lexical, name = Dataset(dataset), Run.read(bm25_run), settings.system
    served: dict[str, dict[str, Any]] = {}
    if bundle:
        opened = Bundle.read(bundle)
        name = opened.serving.first_stage.system
        served = {"served": {"dense": opened.system, **opened.serving.first_stage.facts()}}
        hits = _searched(context, settings, data, bundle, passage_vectors, evaluated_queries(data))
    elif settings.bundle:
        hits = _searched(context, settings, data, local_folder(settings.bundle, indexed=False))
    elif settings.source == POOL:
        hits = _ordered_pool(context, data, Bm25.load(Bm25Index.read(bm25_index).path))
    else:
        hits = lexical if settings.source == BM25 else read_run_of(local_file(settings.source), data)
    hits = run_without(hits, data.identical)  # a pool or a file may have the query itself
    note = ""
    if settings.source != BM25 and not bundle:
        rows = {split: data.query_rows(split) for split in SPLITS}
        missing = [split for split in SPLITS if len(rows[split]) and not np.isin(rows[split], hits.query).any()]
        if (shown := shown_split(data)) in missing:
            raise UserError(f"{settings.source} has no hit of a {shown} query, so there is nothing to re-rank")
        if missing:
            note = f", BM25's hits for {' and '.join(missing)}"
            print(f"first_stage: {name} has no {' and no '.join(missing)} query{note}", file=sys.stderr)
            hits = Run.concatenate([hits, lexical.of(np.concatenate([rows[split] for split in missing]))])
    hits.write(run, name, **served)
    figures = dev_figures(data, hits)
    quality = f", dev R@100 {figures['dev/R_at_100']:.3f}" if figures else ""
    return {"hits": len(hits.query), **figures, "headline": f"{name}{note}{quality}"}


def _searched(
    context: Context,
    settings: FirstStage,
    data: Dataset,
    folder: Path,
    passage_vectors: Path | None = None,
    evaluated: np.ndarray | None = None,
) -> Run:
    """Returns the hits of a bundle, as `gnn-encoder search` ranks them without a re-ranker.

    passage_vectors: of an encoder whose weights are elsewhere. evaluated: rows of dev and test queries; None: all.
    """
    bundle = Bundle.read(folder)
    if bundle.passages.digest != data.passages.digest:
        raise UserError(
            f"{folder} has other passages than the dataset: give the dataset of that run, or bring the bundle to this "
            "dataset by gnn-encoder update"
        )
    index, encoder = PassageIndex.read(bundle), bundle.has_vectors and TextEncoder.load(bundle.query_encoder_path)
    of_train, of_evaluation = searched_queries(data, evaluated=evaluated)
    count = (len(of_train) if settings.train_depth else 0) + len(of_evaluation)
    progress = context.progress("encoding", count, "queries")
    encode = passage_vectors if encoder and isinstance(encoder, AddressEncoder) else None

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        questions = data.query_texts(queries)
        if encode:
            vectors = vectors_of_queries(encode, data, queries)
        else:
            vectors = encode_texts(encoder, questions, progress=progress, **settings.speed) if encoder else NO_VECTORS
        run = served_run(bundle, index, queries, questions, vectors, k, data.identical[queries], measured=True)
        return run.scored_hits(queries, k)

    return search_splits(
        data, search, train_depth=settings.train_depth, eval_depth=settings.eval_depth, evaluated=evaluated
    )


def _ordered_pool(context: Context, data: Dataset, index: Bm25) -> Run:
    """Returns all candidates in BM25's order, ties by ascending row; the order of a file may tell the labels."""
    if data.pool is None:
        raise UserError("the data have no candidates/<split>.tsv, so no pool: choose another first stage")
    query, passage = data.pool
    queries, starts = np.unique(query, return_index=True)
    scoring = context.progress("scoring", len(queries), "queries")
    score, stops = np.zeros(len(query), np.float32), [*starts[1:].tolist(), len(query)]
    for start, stop, total in zip(starts.tolist(), stops, index.totals(data.query_texts(queries)), strict=True):
        if total is not None:
            score[start:stop] = total[passage[start:stop]]
        scoring.advance()
    return Run.by_score(query, passage, score)
