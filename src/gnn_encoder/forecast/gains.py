"""Forecasts the gain from labelled queries on a data set, and which differences its queries can show."""

from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.known_positives import warm_labels
from gnn_encoder.evaluation.power import deviation
from gnn_encoder.evaluation.significance import bootstrap_intervals, holm, paired_randomization
from gnn_encoder.forecast.frozen_sum import WEIGHTS, labels_of, reciprocal_ranks, training_pairs
from gnn_encoder.forecast.sample import draw
from gnn_encoder.inference.encoding import encode_texts, encode_tokens
from gnn_encoder.inference.tokens import tokens_at
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.tracking.progress import NewProgress

LENGTH = 128
"""Tokens of a text that are read: more would take longer and change the gain little."""
PERMUTATIONS, RESAMPLES = 10_000, 2000


def forecast(dataset: Dataset, backbone: str, most: int, seed: int, progress: NewProgress) -> dict[str, Any]:
    """Encodes a sample with an untrained backbone; returns the facts of `gains_of`, and facts about the sample.

    Args:
        most: most passages that are encoded (`sample.draw`). 0: all.
    """
    sample = draw(dataset, most, seed, progress)
    encoders = DualEncoder.from_backbone(
        backbone, normalize="yes", share_encoders=True, query_length=LENGTH, passage_length=LENGTH
    )
    encoder = encoders.passage_encoder
    asking = np.unique(training_pairs(dataset, sample)[0])
    rows = np.union1d(asking, sample.queries)
    texts, counted = dataset.query_texts(rows), progress("encoding", len(rows), "queries")
    queries = encode_texts(encoders.query_encoder, texts, progress=counted)
    passages = np.empty((len(sample.passages), encoder.width), np.float32)
    tokens, index = tokens_at(
        encoder.tokenizer, dataset.passages, sample.passages, encoder.max_length, prompt=encoder.prompt
    )
    counted = progress("encoding", len(passages), "passages")
    encode_tokens(encoder, tokens.take(index), passages, progress=counted)
    labels = labels_of(dataset, sample, asking, queries[np.searchsorted(rows, asking)])
    values = reciprocal_ranks(sample, passages, queries[np.searchsorted(rows, sample.queries)], labels)
    return {
        "backbone": backbone,
        "split": sample.split,
        "corpus": len(dataset.passages),
        "passages": len(sample.passages),
        **gains_of(values, labels.warm, ~np.isin(sample.queries, dataset.recurring), warm_share(dataset), seed),
    }


def warm_share(dataset: Dataset) -> float | None:
    """Returns the share of the test queries with a relevant passage that a training query is labelled with.

    None: no test query has a positive label.
    """
    labels, warm = warm_labels(dataset, "test")
    queries = np.unique(labels.query)
    return float(np.isin(queries, labels.query[warm]).mean()) if len(queries) else None


def gains_of(
    values: np.ndarray, warm: np.ndarray, unseen: np.ndarray, test_share: float | None, seed: int
) -> dict[str, Any]:
    """Returns the gains of the frozen sums over the plain vectors, per stratum, with intervals and p-values.

    `test` is the forecast for the test queries, of which a share is warm: the mean of the gains of warm and cold
    queries with these shares. It has no gains if a needed stratum has no query.

    Args:
        values: RR@10 [a, 1 + weights] of `reciprocal_ranks`.
        warm: bool [a].
        unseen: bool [a], queries that nearly equal no other training query: the gain without them is of other needs
            that a passage answers, not of the same question again.
        test_share: share of warm test queries; None: there are no test queries.

    Returns:
        `queries` and `plain` {stratum: number, mean of the plain vectors}; `gains` {weight: {stratum: {gain, low, high,
        p, p_holm}}}, corrected for the number of weights; `best`, the weight of the highest gain over all queries;
        `deviation` of that gain.
    """
    differences = values[:, 1:] - values[:, :1]
    strata = {
        name: inside / max(inside.mean(), 1e-12)
        for name, inside in {"all": np.ones(len(warm)), "warm": warm, "cold": ~warm, "unseen": unseen}.items()
        if inside.any() and (name != "unseen" or not inside.all())
    }
    if test_share is not None and (test_share == 0 or warm.any()) and (test_share == 1 or not warm.all()):
        zero = np.zeros(len(warm))
        strata["test"] = test_share * strata.get("warm", zero) + (1 - test_share) * strata.get("cold", zero)
    gains: dict[str, dict[str, dict[str, float]]] = {f"{weight:g}": {} for weight in WEIGHTS}
    for name, factor in strata.items():
        # Queries of another stratum have no influence: they are left out, or count as the shares say.
        used = factor > 0
        weighted = differences[used] * (factor[used] / factor[used].mean())[:, None]
        low, high = bootstrap_intervals(weighted, RESAMPLES, seed)
        p = paired_randomization(weighted, PERMUTATIONS, seed)
        for column, (weight, corrected) in enumerate(zip(gains, holm(p), strict=True)):
            ends = {"low": float(low[column]), "high": float(high[column])}
            tests = {"p": float(p[column]), "p_holm": float(corrected)}
            gains[weight][name] = {"gain": float(weighted[:, column].mean()), **ends, **tests}
    best = max(gains, key=lambda weight: gains[weight]["all"]["gain"])
    return {
        "queries": {name: int((factor > 0).sum()) for name, factor in strata.items() if name != "test"},
        "plain": {name: float((values[:, 0] * factor).mean()) for name, factor in strata.items() if name != "test"},
        "gains": gains,
        "best": float(best),
        "test_warm_share": test_share,
        "deviation": deviation(differences[:, list(gains).index(best)]),
    }
