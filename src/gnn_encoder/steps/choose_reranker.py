"""Chooses the re-ranker that is the best on dev queries."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, read_manifest
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import dev_means
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.settings.reranking import ChooseReranker


@step(reranker="model")
def choose_reranker(
    context: Context, settings: ChooseReranker, dataset: Path, runs: list[Path], scorers: list[Path], reranker: Draft
) -> Metrics:
    """Copies the scorer, one of `scorers`, that made the best of `runs`; without dev labels, that of the last run.

    SS-BERT(d) and QSF are not among the runs, because a search could not rank as they do: a bundle has no query
    generator, and does not say a passage's section.
    """
    figures = dict(zip(runs, dev_means(Dataset(dataset), runs, settings.measure), strict=False))
    best = max(figures, key=figures.__getitem__) if figures else runs[-1]
    made_by = read_manifest(best, "run").inputs["scorer"]
    scorer = next(path for path in scorers if read_manifest(path, "model").digest == made_by)
    reranker.copy(scorer)
    shown = f"dev {mean_name(settings.measure)} {figures[best]:.3f}" if figures else "the last, without dev labels"
    return {
        **{f"dev/{System.of(path).name}": figure for path, figure in figures.items()},
        "headline": f"{System.of(best).name}, {shown}",
    }
