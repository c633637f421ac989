"""Orders the first hits of a run by a scorer of pairs, alone or summed with the first stage's scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from gnn_encoder.artifacts import Asked, Bundle, Run, Texts
from gnn_encoder.artifacts.tables import System
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.fusion import min_max

if TYPE_CHECKING:
    from gnn_encoder.inference.encoding import ReadOptions
    from gnn_encoder.retrieval.scorers import Scorer

DEPTH = 100
"""First hits that are re-ranked, unless a run or a caller says otherwise."""


def reranked(scorer: "Scorer", data: Texts, run: Run, depth: int, **options: Unpack["ReadOptions"]) -> Run:
    """Returns the run with each query's first `depth` hits ordered by the scorer, see `Run.reordered`."""
    if not len(run.query):
        return run  # BM25 alone has hits only for words that a passage has
    first = run.rank <= depth
    return run.reordered(depth, scorer.score(data, run.query[first], run.passage[first], **options))


def weighed(run: Run, depth: int, scores: np.ndarray, weight: float) -> Run:
    """Returns the run with each query's first `depth` hits ordered by (1 - weight) · its score + weight · another one.

    Both are min-max normalised over these hits. With weight 0 the order stays, with weight 1 it is that of `reranked`.

    Args:
        scores: the other score of these hits [r], float32.
    """
    if weight == 1:
        return run.reordered(depth, scores)  # without a rounding that could make ties
    first = run.where(run.rank <= depth)
    total = (1 - weight) * min_max(first) + weight * min_max(replace(first, score=scores))
    return run.reordered(depth, total)


def reranked_by_bundle(
    bundle: Bundle, scorer: "Scorer", queries: np.ndarray, questions: Sequence[str], run: Run, depth: int | None = None
) -> Run:
    """Returns a first stage's run in the order of the bundle's re-ranker, with the weight that its run chose.

    Args:
        queries: row numbers [n] of the run's queries, ascending. questions: their texts [n].
        depth: first hits that are re-ranked; None: as the run did, or `DEPTH`.
    """
    if not len(run.query):
        return run
    depth = depth or reranked_depth(bundle)
    scores = scores_by_bundle(bundle, scorer, queries, questions, run.where(run.rank <= depth))
    return weighed(run, depth, scores, bundle.serving.reranking.weight if bundle.serving.reranking else 1.0)


def scores_by_bundle(
    bundle: Bundle, scorer: "Scorer", queries: np.ndarray, questions: Sequence[str], hits: Run
) -> np.ndarray:
    """Returns the scores fp32 [r] of hits by the bundle's re-ranker, at the precision of its run.

    Args:
        queries: row numbers [n] of the hits' queries, ascending. questions: their texts [n].
    """
    how, query = bundle.serving.reranking, np.searchsorted(queries, hits.query)
    speed: ReadOptions = {"precision": how.precision, "tokens_per_batch": how.tokens_per_batch} if how else {}
    return scorer.score(Asked(list(questions), bundle.passages), query, hits.passage, **speed)


def reranked_depth(bundle: Bundle) -> int:
    """Returns how many first hits the bundle's re-ranker orders."""
    return bundle.serving.reranking.depth if bundle.serving.reranking else DEPTH


def served_facts(run: System, **reranking: Any) -> dict[str, Any]:
    """Returns the fact about a re-ranked run that says how a search ranks as it does; none if no bundle can.

    Args:
        run: the first stage, or another ranking of its hits by the same re-ranker.
        reranking: fields of `Reranking`, or those that differ.
    """
    if not (served := run.facts.get("served")):
        return {}
    former = served.get("reranking") or {"first_stage": served["system"]}
    return {"served": {**served, "reranking": {**former, **reranking}}}


def reranker_of(bundle: Bundle) -> "Scorer":
    """Returns the bundle's re-ranker; raises UserError if it has none."""
    if bundle.reranker_path is None:
        raise UserError(
            f"{bundle.path} has no re-ranker: gnn-encoder rerank --first-stage ROOT/latest makes one with it"
        )
    from gnn_encoder.retrieval.scorers import load_scorer  # imports torch

    return load_scorer(bundle.reranker_path)
