"""The systems of an evaluation as a reader meets them: equal ones folded into one, and strata."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.evaluation.results import block
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.report import table
from gnn_encoder.report.charts import kind_of
from gnn_encoder.settings.measures import OF_LABELS
from gnn_encoder.settings.reranking_systems import SYSTEMS as RERANKERS
from gnn_encoder.settings.systems import GNN_ENCODER, LEXICAL, SYSTEMS, UNTRAINED

LEAST = 50
"""Fewest queries of a stratum whose figures are drawn."""
WHOLE = 0.97
"""A stratum with a larger share of the queries has the figures of all of them."""
DRAWN = 8
"""Most systems drawn in a stratum."""
LENGTHS = {"short": "queries of few words", "middle": "queries of middle length", "long": "queries of many words"}
OLD_NEW = {"old": "queries of the older half, by their dates", "new": "queries of the newer half, by their dates"}
NO_TRAINING = (LEXICAL, UNTRAINED, f"{LEXICAL} + {UNTRAINED}")
"""Systems that anybody has without labels."""
NO_STRATA = (
    "all queries",
    "by traffic",
    "answers",
    "labelled hits",
    *(n.replace("_", " ") for n in MEANING if OF_LABELS in n),
)
"""Parts of the metrics that are no strata of queries; a value of a field may end as those of labels do."""
MOST_VALUES = 8
"""Most values of a field whose queries are a stratum."""


def chosen(metrics: Mapping[str, Any]) -> str:
    """Returns the recommended system; if nothing recommends, the candidate."""
    return table.recommended(metrics) or str(metrics["candidate"])


def rerankers(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the names of the compared re-rankers, the candidate last; empty if one has none for `--systems`."""
    named = {system.title: name for name, system in RERANKERS.items()}
    titles = [title for title in metrics["results"][metrics["headline_split"]] if title != metrics["baseline"]]
    titles.sort(key=metrics["candidate"].__eq__)
    return [named[title] for title in titles] if set(titles) <= set(named) else []


def purpose(metrics: Mapping[str, Any], system: str) -> str:
    """Returns what a system is, in words; empty if nobody says."""
    if fusion := metrics["fusions"].get(system):
        method = "a weighted sum of the scores" if fusion["method"] == CONVEX else "a sum of reciprocal ranks"
        return f"{fusion['lexical']} and {fusion['dense']} together: {method}."
    return SYSTEMS[system].purpose if system in SYSTEMS else ""


def is_explained(metrics: Mapping[str, Any], system: str) -> bool:
    """Whether `explain` has more to say on a hit of the system's bundle than its score."""
    vectors = metrics["fusions"].get(system, {}).get("dense", system)
    row = SYSTEMS.get(vectors)
    return row is not None and bool(row.labels or row.fusion or vectors in (LEXICAL, GNN_ENCODER))


def distinct(metrics: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns all systems with different figures, each with those that have the same ones (`table.distinct`)."""
    return table.distinct(metrics, metrics["results"][metrics["headline_split"]])


def rows(
    metrics: Mapping[str, Any], split: str, part: Mapping[str, Any], systems: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns what a chart of systems shows of some of them, in a part of the metrics."""
    measure, best = part["measures"][0], table.recommended(metrics)
    shown = []
    for system in systems:
        low, high = part["intervals"][split][system][measure]
        kind = kind_of({**part, "baseline": metrics["baseline"]}, split, system)
        mean = part["results"][split][system][measure]
        cost = metrics.get("costs", {}).get(system, {})
        name = f"★ {system}" if system == best else system
        interval = {"low": low, "high": high}
        shown.append({"system": name, "mean": mean, **interval, "kind": kind, "recommended": system == best, **cost})
    return shown


def drawn(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the systems drawn in a stratum: the recommended one, the baseline, the candidate and the best."""
    best = best_first(metrics)
    first = [chosen(metrics), metrics["baseline"], metrics["candidate"]]
    return sorted([system for system in dict.fromkeys([*first, *best]) if system in best][:DRAWN], key=best.index)


def best_first(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the systems with different figures, the best first."""
    means, measure = metrics["results"][metrics["headline_split"]], metrics["measures"][0]
    return sorted(distinct(metrics), key=lambda system: -means[system][measure])


def blocks(metrics: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Returns the parts of the metrics that are tables of systems: a name, the meaning of its rows, and the part."""
    return [(name, meaning, part) for name, meaning, part in _blocks(metrics) if part["results"]]


def _blocks(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    yield "all queries", "labelled queries", metrics
    for name, part in metrics["strata"].items():
        yield name.replace("_", " "), MEANING[name], part
    for name, part in metrics.get("recurrence", {}).items():
        which = "a" if name == "recurring" else "no"
        yield name, f"queries that nearly equal {which} training query", part
    for name, part in metrics.get("lengths", {}).items():
        yield name, LENGTHS[name], part
    for name, part in metrics.get("fields", {}).items():
        yield name, OLD_NEW.get(name, "queries with this value"), part
    if "traffic" in metrics:
        yield "by traffic", "queries, each weighted by its clicks in the log", metrics["traffic"]
    if metrics.get("answers"):
        meaning = "queries with answers: share with an answer in the text of the first k passages, by DPR's rule"
        yield "answers", meaning, metrics["answers"]
    if "judged" in metrics:
        meaning = "queries: share of the first hits with a label. Where it is low, good passages may count as wrong"
        yield "labelled hits", meaning, metrics["judged"]


def strata(metrics: Mapping[str, Any]) -> tuple[dict[str, tuple[str, Mapping[str, Any]]], list[str]]:
    """Returns {name: (meaning, part)} of the strata of queries that can say something, and the others in words."""
    split, shown, others = metrics["headline_split"], dict[str, tuple[str, Mapping[str, Any]]](), []
    whole = metrics["queries"][split]
    for name, meaning, part in blocks(metrics):
        queries = part["queries"].get(split, 0)
        if name in NO_STRATA or not queries:
            continue
        if LEAST <= queries <= WHOLE * whole:
            shown[name] = meaning, part
        else:
            others.append(f"{name} ({'nearly all' if queries > WHOLE * whole else f'{queries:,}'})")
    return shown, others


def length_strata(lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Returns {short, middle, long: bool [n]}, thirds by words [n]; without differences there are none."""
    low, high = np.quantile(lengths, [1 / 3, 2 / 3])
    parts = (lengths <= low, (lengths > low) & (lengths <= high), lengths > high)
    return dict(zip(LENGTHS, parts, strict=True)) if all(part.any() for part in parts) else {}


def field_strata(field: str, values: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns {stratum: bool [n]} by the queries' values [n] of a field; empty: a query without a value.

    Dates of ISO 8601 make two strata, `old` and `new`; of other values, the most frequent ones make one each. A field
    without a value of two queries, such as an id or the text, divides nothing.
    """
    has_value, moments = np.array([bool(value) for value in values]), np.array([_moment(value) for value in values])
    if has_value.any() and np.isfinite(moments[has_value]).all():
        middle = np.median(moments[has_value])
        # If more than half of the queries have the last date, these are the new ones.
        is_new = moments > middle if (moments > middle).any() else moments >= middle
        parts = {"old": has_value & ~is_new, "new": is_new}
        return parts if all(part.any() for part in parts.values()) else {}
    counts = Counter(value for value in values if value).most_common(MOST_VALUES)
    divides = any(count > 1 for _, count in counts)
    return {f"{field}: {value}": np.array([one == value for one in values]) for value, _ in counts if divides}


def _moment(value: str) -> float:
    """Returns seconds since 1970 of a date in ISO 8601, in UTC unless it says otherwise; NaN for another text."""
    try:
        date = datetime.fromisoformat(value)
    except ValueError:
        return math.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def of_parts(
    parts: Mapping[str, np.ndarray],
    figures: Mapping[str, np.ndarray],
    split: str,
    measure: str,
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns {part: a block of one measure} of parts of the queries, with p-values of the paired t-test.

    `parts`: {name: bool [n]}, `figures`: {system: the measure [n]}.
    """
    options = {"permutations": 1, "resamples": metrics["resamples"], "seed": metrics["seed"], "test": "t"}
    return {
        name: block(
            {split: {system: values[inside, None] for system, values in figures.items()}},
            (measure,),
            baseline=metrics["baseline"],
            **options,
        )
        for name, inside in parts.items()
    }
