"""Computes means, intervals and p-values of a report from the per-query measures of every system."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.artifacts.tables import RECIPROCAL
from gnn_encoder.evaluation.measures import NAMES, mean_name
from gnn_encoder.evaluation.power import detectable, deviation
from gnn_encoder.evaluation.significance import bootstrap_intervals, holm, paired_randomization, paired_t

KINDS = {"p": "p_values", "better": "better", "worse": "worse"}
"""Part of a metric's name in MLflow → key of a `block`."""
PerQuery = Mapping[str, np.ndarray]
"""System → values [queries, measures]."""
OfEach = dict[str, dict[str, float]]
"""{system: {measure: value}}."""


def in_table(metrics: dict[str, Any], split: str) -> list[str]:
    """Returns a split's systems in the terminal's table and in the plot: all except reciprocal rank fusions."""
    fusions = metrics["fusions"]
    return [s for s in metrics["results"][split] if s not in fusions or fusions[s]["method"] != RECIPROCAL]


def of_split(metrics: Mapping[str, Any], split: str) -> str:
    """Returns a split's name in tables and sentences: `test`, or `test, on generated queries`."""
    return f"{split}, on generated queries" if split in metrics.get("written", ()) else split


def means(values: PerQuery, names: Sequence[str] = NAMES) -> OfEach:
    """Returns {system: {measure: mean over queries}}."""
    return _named(list(values), np.array([figures.mean(axis=0) for figures in values.values()]), names)


def intervals(
    values: PerQuery, resamples: int, seed: int, names: Sequence[str] = NAMES
) -> dict[str, dict[str, list[float]]]:
    """Returns {system: {measure: [low, high]}}, 95 % intervals of the means."""
    ends = np.stack(bootstrap_intervals(np.concatenate(list(values.values()), axis=1), resamples, seed), axis=1)
    return _named(list(values), ends.reshape(len(values), len(names), 2), names)


def p_values(
    values: PerQuery,
    permutations: int,
    seed: int,
    names: Sequence[str] = NAMES,
    *,
    baseline: str,
    test: str = "randomization",
) -> OfEach:
    """Returns uncorrected {system: {measure: p}} of every system against the baseline, which has no entry.

    `test` is one of `significance.TESTS`; the t-test needs no permutations and no seed.
    """
    others = [system for system in values if system != baseline]
    if not others:
        return {}
    differences = np.concatenate([values[system] - values[baseline] for system in others], axis=1)
    p = paired_t(differences) if test == "t" else paired_randomization(differences, permutations, seed)
    return _named(others, p.reshape(len(others), len(names)), names)


def corrected(p: OfEach) -> OfEach:
    """Returns the p-values after Holm's correction for the number of systems, separately for each measure."""
    if not p:
        return {}
    (names, *_) = (tuple(of_system) for of_system in p.values())
    return _named(list(p), holm(np.array([list(of_system.values()) for of_system in p.values()])), names)


def detectable_differences(values: PerQuery, names: Sequence[str] = NAMES, *, baseline: str) -> OfEach:
    """Returns {system: {measure: the smallest difference from the baseline that so many queries show}} (`power`)."""
    others = [system for system in values if system != baseline]
    differences = [
        [detectable(deviation(column), len(column)) for column in (values[system] - values[baseline]).T]
        for system in others
    ]
    return _named(others, np.array(differences), names) if others else {}


def shares(values: PerQuery, names: Sequence[str] = NAMES, *, baseline: str) -> dict[str, OfEach]:
    """Returns {`better` or `worse`: {system: {measure: share}}} of every system except the baseline.

    A share is the fraction of queries on which the system's value is above, or below, the baseline's value.
    """
    others = [system for system in values if system != baseline]
    if not others:
        return {"better": {}, "worse": {}}
    # Rounded, so that values that are equal but for rounding are equal.
    differences = np.stack([np.round(values[system] - values[baseline], 12) for system in others])
    return {
        "better": _named(others, (differences > 0).mean(axis=1), names),
        "worse": _named(others, (differences < 0).mean(axis=1), names),
    }


def block(
    values: Mapping[str, PerQuery],
    names: Sequence[str],
    *,
    permutations: int,
    resamples: int,
    seed: int,
    baseline: str,
    test: str = "randomization",
    paired: Mapping[str, PerQuery] | None = None,
) -> dict[str, Any]:
    """Returns the means of some measures in every split, with their statistics, for one table of a report.

    With 0 permutations there are no p-values and no shares (for measures that do not say which system is better).
    `paired`: values with the same means, of which p-values and shares are; by default `values`.
    """
    paired = values if paired is None else paired
    p: dict[str, OfEach] = {
        split: p_values(systems, permutations, seed, names, baseline=baseline, test=test) if permutations else {}
        for split, systems in paired.items()
    }
    changed = {
        split: shares(systems, names, baseline=baseline) if permutations else {} for split, systems in paired.items()
    }
    return {
        "measures": list(names),
        "queries": {split: len(next(iter(systems.values()))) for split, systems in values.items()},
        "results": {split: means(systems, names) for split, systems in values.items()},
        "intervals": {split: intervals(systems, resamples, seed, names) for split, systems in values.items()},
        "p_values": p,
        "p_holm": {split: corrected(systems) for split, systems in p.items()},
        **{share: {split: of.get(share, {}) for split, of in changed.items()} for share in ("better", "worse")},
    }


def per_query_table(
    dataset: Dataset,
    queries: Mapping[str, np.ndarray],
    values: Mapping[str, PerQuery],
    names: Sequence[str] = NAMES,
    **facts: Mapping[str, np.ndarray],
) -> pa.Table:
    """Returns a table with a row per split, system and query, and a column per measure.

    `facts` are further columns of the queries, {split: [n]}, which stand before the measures.
    """
    parts = []
    for split, systems in values.items():
        rows = pa.array(queries[split], pa.int32())
        ids = dataset.queries.column("query_id").take(rows)
        for system, figures in systems.items():
            columns = {"split": [split] * len(rows), "query_id": ids, "query": rows, "system": [system] * len(rows)}
            columns |= {name: pa.array(of_queries[split]) for name, of_queries in facts.items()}
            parts.append(pa.table({**columns, **dict(zip(names, figures.T, strict=True))}))
    return pa.concat_tables(parts)


def split_digest(dataset: Dataset, split: str) -> str:
    """Returns the hex SHA-256 of the corpus and of a split's queries and labels, on which the split's measures depend:
    also labels of passages that the corpus lacks, and passages that are no hit of a query with the same id.

    The digest leaves out other splits, so that two models trained on different queries can be compared.
    """
    qrels = dataset.split_qrels(split)
    order = np.lexsort((qrels.passage, qrels.query))
    digest = hashlib.sha256(dataset.manifest.files[CORPUS].sha256.encode())
    texts = dataset.query_texts(qrels.query[order])
    for text, passage, relevance in zip(texts, qrels.passage[order], qrels.relevance[order], strict=True):
        digest.update(f"{text}\0{passage}\0{relevance}\n".encode())
    judged, ids = dataset.judged(split), dataset.judged_ids()
    missing = judged.where(judged.passage >= len(dataset.passages))
    names = ids.take(pa.array(missing.passage)).to_pylist()
    texts = dataset.query_texts(missing.query)
    lines = [
        f"{text}\0missing\0{name}\0{relevance}\n"
        for text, name, relevance in zip(texts, names, missing.relevance, strict=True)
    ]
    queries = dataset.query_rows(split)
    alike = queries[dataset.identical[queries] >= 0]
    texts = dataset.query_texts(alike)
    lines += [f"{text}\0left out\0{row}\n" for text, row in zip(texts, dataset.identical[alike], strict=True)]
    digest.update("".join(sorted(lines)).encode())
    return digest.hexdigest()


def flat(metrics: dict[str, Any]) -> dict[str, float]:
    """Returns the figures under one name each, for MLflow.

    Means as `test/GNN-encoder/RR@10`, those of a stratum as `test/GNN-encoder/cold/RR@10`; uncorrected p-values as
    `test/GNN-encoder/p/RR@10`, and the shares of queries with a better or worse value than the baseline's as
    `test/GNN-encoder/worse/RR@10`. Of strata, p-values and shares are of the first measure only:
    `test/GNN-encoder/cold/p/RR@10`. The first measure of recurring and unseen queries as of strata; the smallest
    differences that the queries can show as `test/GNN-encoder/detectable/RR@10`. Means by a log's traffic as
    `test/GNN-encoder/traffic/RR@10`. `metrics.json` has all.
    """
    first = metrics["measures"][:1]
    figures = [("", facts["results"], None) for facts in (metrics, metrics["judged"], metrics["answers"]) if facts]
    figures += [(f"{kind}/", metrics[key], None) for kind, key in KINDS.items()]
    for name, facts in metrics["strata"].items():
        figures += [(f"{name}/", facts["results"], None)]
        figures += [(f"{name}/{kind}/", facts[key], first) for kind, key in KINDS.items()]
    figures += [(f"{name}/", facts["results"], None) for name, facts in metrics["recurrence"].items()]
    figures += [("traffic/", metrics["traffic"]["results"], None)] if "traffic" in metrics else []
    figures += [("detectable/", metrics["detectable"], None)]
    return {
        f"{split}/{system}/{kind}{measure}": value
        for kind, splits, shown in figures
        for split, systems in splits.items()
        for system, measures in systems.items()
        for measure, value in measures.items()
        if shown is None or measure in shown
    }


def headline_of(metrics: dict[str, Any]) -> str:
    """Returns one sentence with the first measure of the candidate and of the baseline."""
    split, measure = metrics["headline_split"], metrics["measures"][0]
    baseline, candidate = metrics["baseline"], metrics["candidate"]
    systems, p = metrics["results"][split], metrics["p_holm"][split].get(candidate, {}).get(measure, 1.0)
    return (
        f"{candidate} {mean_name(measure)} {systems[candidate][measure]:.3f} "
        f"({baseline.lower()} {systems[baseline][measure]:.3f}, Holm-corrected p {p:.2g})"
        f"{of_split(metrics, split).removeprefix(split)}"
    )


def _named(systems: list[str], figures: np.ndarray, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {system: dict(zip(names, row, strict=True)) for system, row in zip(systems, figures.tolist(), strict=True)}
