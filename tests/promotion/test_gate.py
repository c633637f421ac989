"""The rule over numbers alone: each condition decides, and the reason names it."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from gnn_encoder.evaluation.significance import paired_t
from gnn_encoder.promotion.gate import ChampionComparison, Costs, Paired, decide
from gnn_encoder.settings.outcome import Promote

OLD, NEW = Costs(query_ms=10.0, index_bytes=1000.0), Costs(query_ms=14.0, index_bytes=1400.0)


def paired(
    queries: int, gain: float, p: float, value: float = 0.45, recall: float = 0.895, p_recall: float = 0.6
) -> Paired:
    new, old = {"RR@10": value, "R@1000": recall}, {"RR@10": value - gain, "R@1000": 0.90}
    return Paired(queries, new, old, {"RR@10": p, "R@1000": p_recall}, {"RR@10": 0.4}, {"RR@10": 0.2})


def against(
    gain: float = 0.05, p: float = 0.01, cold: Paired | None = None, recall: float = 0.895, p_recall: float = 0.01,
    **costs: float,
) -> ChampionComparison:  # fmt: skip
    strata = {"all": paired(100, gain, p, recall=recall, p_recall=p_recall)} | ({"cold": cold} if cold else {})
    return ChampionComparison("3", 0, dataclasses.replace(NEW, **costs), OLD, strata)


def plain(value: float, cold: Paired | None = None) -> dict[str, Paired]:
    return {"all": paired(100, value - 0.30, 0.01, value)} | ({"cold": cold} if cold else {})


BETTER = against()


@pytest.mark.parametrize(
    ("changes", "value", "reasons", "decision", "because"),
    [
        ({}, 0.45, BETTER, "promote", "+0.0500 (p 0.01) against version 3, the champion"),
        ({}, 0.45, None, "promote", "there was no champion"),
        ({}, 0.29, None, "keep", "against the dual encoder at least +0.0000"),
        ({}, 0.45, "the champion cannot be read", "keep", "against the dual encoder; the champion cannot be read"),
        ({}, 0.29, BETTER, "keep", "against the dual encoder at least +0.0000"),
        ({"minimum_gain": -0.1}, 0.29, BETTER, "promote", "-0.0100 against the dual encoder"),
        ({"smallest_effect": 0.06}, 0.45, BETTER, "keep", "against the champion at least +0.0600"),
        ({}, 0.45, against(p=0.06), "keep", "p of at most 0.05"),
        ({"significance": 0.07}, 0.45, against(p=0.06), "promote", "(p 0.06)"),
        ({}, 0.45, against(gain=-0.05), "keep", "-0.0500 (p 0.01)"),
        (
            {},
            0.45,
            against(recall=0.88),
            "keep",
            "R@1000 falls by 0.0200 (p 0.005) against the champion, where at most 0.01",
        ),
        ({"floors": {}}, 0.45, against(recall=0.0), "promote", "+0.0500"),
        ({"floors": {"R@1000": 0.001}}, 0.45, BETTER, "keep", "R@1000 falls by 0.0050"),
        ({}, 0.45, against(recall=0.88, p_recall=0.11), "promote", ""),
        ({"floor_significance": 1.0}, 0.45, against(recall=0.88, p_recall=0.11), "keep", "R@1000 falls"),
        (
            {},
            0.45,
            against(query_ms=16.0),
            "keep",
            "1.60 times as long (16.0 ms, the champion 10.0 ms), where at most 1.5",
        ),
        ({}, 0.45, against(index_bytes=1600.0), "keep", "a passage takes 1.60 times the index"),
        ({"largest_latency_ratio": 2.0, "largest_index_ratio": 2.0}, 0.45, against(query_ms=16.0), "promote", ""),
        ({"largest_latency_ms": 20.0}, 0.45, against(query_ms=16.0), "promote", ""),
        (
            {"largest_latency_ms": 15.0},
            0.45,
            against(query_ms=15.4),
            "keep",
            "a question takes 15.4 ms as the bundle is served, where at most 15 ms are allowed",
        ),
    ],
)
def test_the_rule(
    changes: dict[str, Any], value: float, reasons: ChampionComparison | str | None, decision: str, because: str
) -> None:
    verdict = decide(Promote(**changes), "test", plain(value), reasons)
    assert verdict.decision == decision
    assert because in verdict.reason
    assert verdict.reason.startswith("test MRR@10 0.") and "\n" not in verdict.reason


COLD_OBJECTION = "MRR@10 of the 30 cold queries falls by 0.0200 (p 0.02) against {}, where at most 0.005 is allowed"


@pytest.mark.parametrize(
    ("changes", "gain", "p", "objects"),
    [
        ({}, -0.02, 0.04, True),
        ({}, -0.02, 0.3, False),  # chance explains it
        ({"floor_significance": 1.0}, -0.02, 0.3, True),
        ({}, -0.004, 0.001, False),  # significant, but within the floor
        ({}, 0.02, 0.001, False),
        ({"floors": {}}, -0.02, 0.04, False),
        ({"floors": {"warm/RR@10": 0.0, "old/RR@10": 0.0}}, -0.02, 0.04, False),  # strata without a query
        ({"floors": {"cold/P@5": 0.0}}, -0.02, 0.04, False),  # not measured
        ({"floors": {"cold/RR@10": 0.03}}, -0.02, 0.04, False),
    ],
)
@pytest.mark.parametrize("of_champion", [True, False])
def test_the_cold_stratum_has_a_floor(
    of_champion: bool, changes: dict[str, Any], gain: float, p: float, objects: bool
) -> None:
    """Against both: the gain of all queries is the same, and decides nothing here."""
    cold = paired(30, gain, p)
    comparison = against(cold=cold) if of_champion else BETTER
    verdict = decide(Promote(**changes), "test", plain(0.45, None if of_champion else cold), comparison)
    assert verdict.decision == ("keep" if objects else "promote")
    assert f"({gain:+.4f} on the 30 cold queries, p {p:.2g})" in verdict.reason, "said in any case"
    if (gain, p, objects) == (-0.02, 0.04, True):
        assert COLD_OBJECTION.format("the champion" if of_champion else "the dual encoder") in verdict.reason


@pytest.mark.parametrize(
    ("queries", "whole", "changes", "counts"),
    [
        (56, 1877, {}, False),
        (199, 1991, {}, False),
        (199, 1990, {}, True),
        (29, 300, {}, False),
        (30, 300, {}, True),
        (200, 2001, {}, True),
        (56, 1877, {"smallest_stratum": 0, "smallest_stratum_share": 0.0}, True),
        (56, 1877, {"smallest_stratum": 56, "smallest_stratum_share": 0.02}, True),
    ],
)
@pytest.mark.parametrize("stratum", ["cold", "warm_labels"])
def test_a_small_stratum_does_not_hold_the_first_bundle_back(
    stratum: str, queries: int, whole: int, changes: dict[str, Any], counts: bool
) -> None:
    """A gain of 0.2 over all queries, and a fall of a few."""
    settings = Promote.model_validate({"floors": {f"{stratum}/RR@10": 0.005, "R@1000": 0.01}, **changes})
    strata = {"all": paired(whole, 0.2, 0.0001), stratum: paired(queries, -0.02, 0.04)}
    of = f"MRR@10 of the {queries} {stratum.replace('_', ' ')} queries"
    verdict = decide(settings, "test", strata, None)
    assert verdict.decision == ("keep" if counts else "promote")
    assert (f"{of} falls by 0.0200 (p 0.02) against the dual encoder" in verdict.reason) == counts
    remark = (
        f"the floor of {of} (-0.0200, p 0.04) was not counted: without a champion, a stratum needs 200 queries or 10%"
    )
    assert (f"{remark} of all {whole:,}" in verdict.reason) == (not counts)
    for champion in (BETTER, "the champion cannot be read"):
        verdict = decide(settings, "test", strata, champion)
        assert verdict.decision == "keep" and f"{of} falls" in verdict.reason and "not counted" not in verdict.reason


def test_floors_of_all_queries_and_of_what_is_not_measured_are_no_small_strata() -> None:
    """Fifty queries are fewer than a stratum needs, but all queries are no stratum."""
    settings = Promote(floors={"R@1000": 0.001, "cold/P@5": 0.0, "old/RR@10": 0.0})
    verdict = decide(settings, "test", {"all": paired(50, 0.2, 0.0001, p_recall=0.01)}, None)
    assert verdict.decision == "keep" and "R@1000 falls by 0.0050" in verdict.reason
    assert "not counted" not in verdict.reason


def test_the_floor_follows_the_measure() -> None:
    assert Promote().floors == {"R@1000": 0.01, "cold/RR@10": 0.005}
    assert Promote(measure="nDCG@10").floors == {"R@1000": 0.01, "cold/nDCG@10": 0.005}


def test_every_objection_is_told() -> None:
    bad = against(p=0.9, gain=-0.01, recall=0.5, cold=paired(30, -0.3, 0.001), query_ms=99.0, index_bytes=9999.0)
    reason = decide(Promote(), "test", plain(0.2), bad).reason
    assert reason.count("asked for") == 3 and reason.count("allowed") == 4


def test_a_floor_holds_as_often_as_it_says() -> None:
    """The default floor against random differences of 100 cold queries, as MRR@10 has them: most of them 0."""
    generator, settings = np.random.default_rng(0), Promote()
    share = {0.0: 0, 0.1: 0}
    beyond = 0
    for true in share:
        for _ in range(200):
            changed = generator.random(100) < 0.4
            differences = np.where(changed, generator.normal(0, 0.35, 100), 0.0) - true
            cold = paired(100, float(differences.mean()), float(paired_t(differences[:, None])[0]))
            verdict = decide(settings, "test", plain(0.45, cold), BETTER)
            share[true] += verdict.decision == "keep"
            beyond += true == 0 and differences.mean() < -0.005
    assert share[0.0] < 20 and share[0.1] > 190, share
    assert beyond > 60, "the control: without the test, chance alone would object this often"


def test_costs_are_not_compared_with_those_of_words_alone() -> None:
    costly = against(query_ms=100.0, index_bytes=10_000.0)
    assert decide(Promote(), "test", plain(0.45), costly).decision == "keep"
    comparison = dataclasses.replace(costly, of_one_kind=False)
    assert decide(Promote(), "test", plain(0.45), comparison).decision == "promote"
    fall = dataclasses.replace(against(recall=0.88), of_one_kind=False)
    assert decide(Promote(), "test", plain(0.45), fall).decision == "keep", "what it finds is"


def test_a_limit_in_milliseconds_holds_between_words_and_vectors_and_without_a_champion() -> None:
    settings = Promote(largest_latency_ms=50.0)
    costly = dataclasses.replace(against(query_ms=100.0), of_one_kind=False)
    assert decide(settings, "test", plain(0.45), costly).decision == "keep"
    for milliseconds, decision in ((51.0, "keep"), (49.0, "promote"), (None, "promote")):
        assert decide(settings, "test", plain(0.45), None, query_ms=milliseconds).decision == decision
    assert decide(Promote(), "test", plain(0.45), None, query_ms=51.0).decision == "promote", "control: no limit"


def test_falls_of_strata_are_corrected_for_their_number() -> None:
    """Each of four strata has half a chance in twenty-five; the smallest of their p-values is multiplied by four."""
    names = ("cold", "warm", "cold_labels", "warm_labels")
    settings = Promote.model_validate({"floors": {f"{name}/RR@10": 0.005 for name in names}})
    for p, kept in ((0.04, False), (0.024, True)):
        strata = {name: paired(300, -0.02 if name == "cold" else 0.01, p if name == "cold" else 0.9) for name in names}
        verdict = decide(settings, "test", {"all": paired(1200, 0.2, 0.0001), **strata}, None)
        assert (verdict.decision == "keep") is kept, verdict.reason
        alone = decide(settings, "test", {"all": paired(1200, 0.2, 0.0001), "cold": strata["cold"]}, None)
        assert alone.decision == "keep", "control: one stratum needs no correction"
