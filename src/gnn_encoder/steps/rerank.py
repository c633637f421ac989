"""The first hits of a run in the order of a scorer of pairs."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.scorers import load_scorer
from gnn_encoder.retrieval.reranking import reranked
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.outcome import Rerank
from gnn_encoder.tracking.context import Context


@step(run="run")
def rerank(context: Context, settings: Rerank, dataset: Path, first_run: Path, scorer: Path, run: Draft) -> Metrics:
    """Order each query's first `depth` hits by the scorer; a depth of 0 makes a run without hits."""
    data, ranking = Dataset(dataset), Run.read(first_run)
    if not settings.depth:
        ranking.of(evaluated_queries(data), 0).write(run, settings.system)
        return {"pairs": 0, "headline": "not asked for"}
    ranking = ranking.of(evaluated_queries(data))
    pairs = int((ranking.rank <= settings.depth).sum())
    progress = context.progress("scoring", pairs, "pairs")
    result = reranked(load_scorer(scorer), data, ranking, settings.depth, progress=progress, **settings.speed)
    result.write(run, settings.system)
    return {"pairs": pairs, "headline": f"{pairs:,} pairs, {progress.rate:,.0f} pairs/s"}
