"""Mixes a re-ranker's scores with the mean scores of sections: our reading of QSF sectionPropagateAVG.

`PropagateSections` has the equation and the source, and says which passages of a section count.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run, pair_keys
from gnn_encoder.artifacts.structure import Structure
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.tuning import weighted_run
from gnn_encoder.settings.reranking import PropagateSections


@step(run="run")
def propagate_sections(
    context: Context, settings: PropagateSections, dataset: Path, ranking: Path, run: Draft
) -> Metrics:
    """Orders each query's first `depth` hits by (1 − μ) s(p) + μ · mean of s over p's section, with μ chosen on dev.

    Raises UserError if the dataset has no documents.
    """
    data = Dataset(dataset)
    if data.structure is None:
        raise UserError(f"{dataset} has no documents, so passages have no sections: leave out {settings.system}")
    section = sections_of(data.structure)
    before, depth = Run.read(ranking).of(evaluated_queries(data)), settings.depth
    means, sizes = section_means(before, depth, section)
    total, weight, tuned = weighted_run(
        data, settings.propagation_weights, settings.measure, propagated, before, depth, means
    )
    total.write(run, settings.system, propagation_weight=weight, **tuned)
    shared = float((sizes > 1).mean()) if len(sizes) else 0.0
    return {
        "hits": len(means),
        "propagation_weight": weight,
        "share_with_others_of_their_section": shared,
        "headline": f"weight {weight:g}, {shared:.0%} of {len(means):,} hits with others of their section",
    }


def sections_of(structure: Structure) -> np.ndarray:
    """Returns a number of each passage's section, int64 [m]: its parent node, or a number of its own without one."""
    parent = structure.parent[: structure.passages].astype(np.int64)
    return np.where(parent >= 0, parent, len(structure) + np.arange(len(parent)))


def section_means(run: Run, depth: int, section: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns means float64 [r] and counts int [r] of the scores that are in the same section, for each first hit.

    Args:
        run: each query's first `depth` hits, r in all, have a re-ranker's scores. Only these are counted.
        section: number of each passage's section [m].
    """
    first = run.rank <= depth
    _, group = np.unique(pair_keys(run.query[first], section[run.passage[first]]), return_inverse=True)
    counts = np.bincount(group)
    means = np.bincount(group, weights=run.score[first].astype(np.float64)) / counts
    return means[group], counts[group]


def propagated(run: Run, depth: int, means: np.ndarray, weight: float) -> Run:
    """Returns the run with each query's first `depth` hits ordered by the mixed score; `means` [r]: a mean per hit."""
    return run.reordered(depth, (1 - weight) * run.score[run.rank <= depth].astype(np.float64) + weight * means)
