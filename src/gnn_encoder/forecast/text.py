"""The lines of `gnn-encoder data check`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gnn_encoder.evaluation.power import ASSUMED, POWER
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.settings.foundation import Ingest

if TYPE_CHECKING:
    from gnn_encoder.data.validation import DataReport

INDENT = "\n" + " " * 11
"""Between the lines of one entry."""


def check_lines(
    report: "DataReport", settings: Ingest, gains: dict[str, Any] | None, power: Mapping[str, float | None]
) -> dict[str, str]:
    """Returns {name: value} of a data set's report.

    Args:
        gains: the facts of a forecast; None: there is none.
        power: split -> the smallest difference that its queries can show; None: it has no labelled query.
    """
    lines = {"source": f"{report.source} ({report.format})", "passages": f"{report.passages:,}"}
    has_queries, trains = any(report.queries.values()), bool(report.labelled["train"])
    if not has_queries:
        lines["queries"] = "none"
    for split, count in report.queries.items() if has_queries else ():
        unlabelled = report.without_positive[split]
        lines[split] = f"{count:,} queries, {report.labels[split]:,} labels, {unlabelled:,} without a positive"
    if report.warm_queries and trains:
        queries, labels = (
            ", ".join(f"{split} {share:.0%}" for split, share in shares.items())
            for shares in (report.warm_queries, report.shared_labels)
        )
        lines["warm"] = f"{queries} of the queries, {labels} of the labels:{INDENT}" + (
            "another training query is labelled with the passage, so labelled queries can help"
        )
    if has_queries:
        recurring = ", ".join(f"{split} {others['train']:,}" for split, others in report.recurring.items())
        within = ", ".join(f"{split} {report.recurring[split][split]:,}" for split in ("dev", "test"))
        least = settings.recurrence_similarity
        alike = f"Jaccard similarity of words {least:g} or more" if least else "equal texts"
        lines["recurring"] = (
            f"{recurring} queries nearly equal another one of train; within splits: {within}{INDENT}({alike})"
        )
        lines["isolated"] = f"{report.isolated_passages:,} passages that no positive label names"
    lines["words"] = f"{report.passage_words:.1f} a passage" + (f", {report.query_words:.1f} a query" * has_queries)
    lines |= report.structure.lines() if report.structure else {}
    lines |= report.facts
    if differences := [
        f"{value:.3f} on {split} ({report.labelled[split]:,} queries)" for split, value in power.items() if value
    ]:
        source = "measured by the forecast" if gains else "an assumption; --forecast measures it"
        deviation = f"{gains['deviation'] if gains else ASSUMED:.2f}"
        lines["power"] = (
            f"smallest difference in MRR@10 that a test likely finds: {', '.join(differences)}{INDENT}"
            f"(p < {SIGNIFICANT} in {POWER:.0%} of tests; standard deviation of a query's difference: "
            f"{deviation}, {source})"
        )
    if gains:
        lines["forecast"] = INDENT.join(_forecast(gains))
    elif trains:
        lines["forecast"] = "add --forecast to estimate what labelled queries gain (minutes)"
    return lines


def _forecast(facts: dict[str, Any]) -> Iterator[str]:
    """Yields the table of a forecast, and what it says about the test queries."""
    queries, best = facts["queries"], f"{facts['best']:g}"
    corpus = f"all {facts['corpus']:,} passages"
    if facts["passages"] < facts["corpus"]:
        corpus = f"{facts['passages']:,} of {facts['corpus']:,} passages"
    without = ", each without its own labels" if facts["split"] == "train" else ""
    yield f"MRR@10 of {queries['all']:,} {facts['split']} queries{without}; untrained {facts['backbone']}; {corpus}"
    if facts["passages"] < facts["corpus"]:
        yield "(the relevant ones, BM25's first hits, and a draw that counts for the rest: gains are rather too small)"
    yield " " * 18 + "".join(f"{f'{name} ({count:,})':<15}" for name, count in queries.items()).rstrip()
    yield f"{'text alone':<18}" + "".join(f"{facts['plain'][name]:<15.3f}" for name in queries).rstrip()
    for weight, strata in facts["gains"].items():
        cells = (f"{_gain(strata[name]) + '*' * (strata[name]['p_holm'] < SIGNIFICANT):<15}" for name in queries)
        yield f"{f'+ {weight} × queries':<18}{''.join(cells)}".rstrip()
    yield f"+ w × queries: the sum of the vectors of the passage's training queries; * p < {SIGNIFICANT}, corrected"
    if "unseen" in queries:
        yield "unseen: without recurring queries"
    yield _advice(facts)
    expected = facts["gains"][best].get("test")
    if expected:
        share = f"{facts['test_warm_share']:.0%} of its queries are warm"
        yield f"expected on test with {best} × queries: {_gain(expected)}, because {share}"


def _advice(facts: dict[str, Any]) -> str:
    """Returns a sentence on what the best weight says."""
    best = facts["gains"][f"{facts['best']:g}"]
    helps = best["all"]["gain"] > 0 and best["all"]["p_holm"] < SIGNIFICANT
    text = "labelled queries help" if helps else "labelled queries are not shown to help"
    if "warm" not in facts["queries"]:
        text = "no query is warm, so labelled queries cannot help"
    cold = best.get("cold", {"gain": 0.0, "p_holm": 1.0})
    if cold["gain"] < 0 and cold["p_holm"] < SIGNIFICANT:
        text += ", and cold queries get worse; queries on new passages are always cold"
    return text


def _gain(estimate: Mapping[str, float]) -> str:
    """Returns a gain with half of the width of its interval."""
    return f"{estimate['gain']:+.3f}±{(estimate['high'] - estimate['low']) / 2:.3f}"
