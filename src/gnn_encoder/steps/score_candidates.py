"""Computes cross-encoder scores and [CLS] vectors of the training queries' candidates, once per distinct pair.

A task that shares the work scores its share of all pairs, which are sorted by query and passage.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, KnownPositives, PairScores, Run, pair_keys
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import pair_figures
from gnn_encoder.inference.scoring import score_pairs
from gnn_encoder.retrieval.first_stage import chance_negatives, merge_candidates
from gnn_encoder.retrieval.scorers import load_cross_encoder
from gnn_encoder.settings.foundation import ScoreCandidates


@step(pair_scores="pair_scores")
def score_candidates(
    context: Context,
    settings: ScoreCandidates,
    dataset: Path,
    bm25_run: Path,
    cross_encoder: Path,
    pair_scores: Draft,
    dpr_run: Path | None = None,
) -> Metrics:
    """Scores every candidate pair; the [CLS] vectors become edge features of the graph."""
    data, scorer = Dataset(dataset), load_cross_encoder(cross_encoder)
    runs = [Run.read(path) for path in (dpr_run, bm25_run) if path]
    every_query, every_passage = candidate_pairs(data, runs, settings.candidates)
    share = settings.share(len(every_query))
    query, passage = every_query[share], every_passage[share]
    cls = PairScores.create_cls(pair_scores, len(query), scorer.model.width)
    scores = np.empty(len(query), dtype=np.float32)
    progress = context.progress("scoring", len(query), "pairs")
    score_pairs(scorer.model, *scorer.pairs(data, query, passage), scores, cls, progress=progress, **settings.speed)
    cls.flush()
    rate = progress.rate
    pairs = PairScores(query, passage, scores, scorer.probability(scores).astype(np.float32), cls)
    PairScores.write(pair_scores, query, passage, scores, pairs.probability)
    return pair_figures(data, pairs, rate)


def candidate_pairs(dataset: Dataset, runs: list[Run], depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns distinct (query, passage) pairs, sorted: first candidates and labelled positives of the queries that are
    trained on. If no labelled query has a candidate that is no known positive, each has some by chance."""
    labels, queries = dataset.trained_labels, dataset.trained
    candidates, known = merge_candidates(runs, queries, depth), KnownPositives.of(dataset, "train")
    labelled = np.isin(queries, labels.query)
    if (known.contains(queries[:, None], candidates) | (candidates < 0))[labelled].all():
        candidates[labelled] = chance_negatives(dataset, known, queries[labelled], depth)
    exists = candidates >= 0
    query = np.concatenate([np.repeat(queries, depth)[exists.ravel()], labels.query])
    passage = np.concatenate([candidates[exists], labels.passage])
    keys = np.sort(pair_keys(query, passage))
    keys = keys[np.diff(keys, prepend=-1) != 0]  # for 8 M pairs np.unique takes 8 to 17 s, this line 0.7 s
    return (keys >> 32).astype(np.int32), (keys & 0xFFFFFFFF).astype(np.int32)
