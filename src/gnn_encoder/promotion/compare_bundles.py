"""Bundles measured on one data set, and each compared with the first."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import Comparison, comparison_of
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.promotion.bundle_figures import bundle_figures
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.outcome import Evaluate


def compare_bundles(bundles: Mapping[str, Path], data: Dataset, split: str, measures: Sequence[str]) -> Comparison:
    """Ask bundles the labelled queries of a split, one bundle in memory at a time.

    Args:
        bundles: name → folder.

    Raises:
        UserError: one is no bundle, or the split has no labelled query.
    """
    labelled = labelled_queries(data.split_qrels(split))
    if not len(labelled):
        raise UserError(f"{data.path} has no {split} query with a positive label: there is nothing to find")
    values = {}
    for name, folder in bundles.items():
        values[name] = bundle_figures(Searcher(Bundle.read(folder)), data, split, measures, Evaluate())
    return comparison_of(values, measures, len(data.query_rows(split)) - len(labelled), {})
