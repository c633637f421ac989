"""Orders the first hits of a run by a scorer of pairs."""

from typing import TYPE_CHECKING, Unpack

from gnn_encoder.artifacts import Asked, Bundle, Run, Texts
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.inference.encoding import ReadOptions
    from gnn_encoder.retrieval.scorers import Scorer


def reranked(scorer: "Scorer", data: Texts, run: Run, depth: int, **options: Unpack["ReadOptions"]) -> Run:
    """Returns the run with each query's first `depth` hits ordered by the scorer, see `Run.reordered`."""
    if not len(run.query):
        return run  # BM25 alone has hits only for words that a passage has
    first = run.rank <= depth
    return run.reordered(depth, scorer.score(data, run.query[first], run.passage[first], **options))


def reranked_hits(bundle: Bundle, question: str, run: Run, depth: int) -> Run:
    """Returns the hits of one question with the first `depth` of them ordered by the bundle's re-ranker.

    Raises UserError if the bundle has no re-ranker.
    """
    return reranked(reranker_of(bundle), Asked([question], bundle.passages), run, depth)


def reranker_of(bundle: Bundle) -> "Scorer":
    """Returns the bundle's re-ranker; raises UserError if it has none."""
    if bundle.reranker_path is None:
        raise UserError(
            f"{bundle.path} has no re-ranker: gnn-encoder rerank --first-stage ROOT/latest makes one with it"
        )
    from gnn_encoder.retrieval.scorers import load_scorer  # imports torch

    return load_scorer(bundle.reranker_path)
