"""A challenger and the champion measured alike: both bundles search for the present queries.

The champion's earlier figures are not read. It is asked the present queries, and its hits are judged by the present
labels. So queries and labels are the same by construction, whatever has changed since the champion was trained, and
both bundles are timed on one machine, in turn.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.evaluation.results import means, p_values
from gnn_encoder.promotion.bundle_figures import bundle_figures
from gnn_encoder.promotion.gate import ChampionComparison, Standing
from gnn_encoder.retrieval.latency import bundle_path, measure_latency
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.tracking.progress import Progress

CHALLENGER, CHAMPION = "challenger", "champion"


def compare_with_champion(
    data: Dataset,
    split: str,
    challenger: Searcher,
    champion: Searcher,
    version: str,
    measures: Sequence[str],
    settings: Evaluate,
    progress: Callable[[str, int], Progress],
) -> ChampionComparison:
    """Compare both on the labelled queries of a split.

    Args:
        version: the champion's.
        settings: those of the challenger's evaluation, whose precision, depth, permutations and seed are used.
        progress: reports a stage, by its name and its number of queries.
    """
    queries, searchers = labelled_queries(data.split_qrels(split)), {CHAMPION: champion, CHALLENGER: challenger}
    values: dict[str, np.ndarray] = {
        name: bundle_figures(searcher, data, split, measures, settings, progress(name, len(queries)))
        for name, searcher in searchers.items()
    }
    mean = means(values, measures)
    p = p_values(values, settings.permutations, settings.seed, measures, baseline=CHAMPION)
    paths = {name: bundle_path(searcher) for name, searcher in searchers.items()}
    took = measure_latency(paths, data.query_texts(queries))["systems"]
    standings = {
        name: Standing(
            mean[name],
            took[name]["encode_ms"] + took[name]["search_ms"],
            searcher.bundle.index_path.stat().st_size / max(len(searcher.bundle.passages), 1),
        )
        for name, searcher in searchers.items()
    }
    there = pc.is_in(champion.bundle.passages.ids(), value_set=data.passages.ids().combine_chunks())
    gone = len(there) - int(pc.sum(there).as_py() or 0)
    return ChampionComparison(version, len(queries), gone, standings[CHALLENGER], standings[CHAMPION], p[CHALLENGER])
