"""The rule over numbers alone: each condition decides, and the reason names it."""

import dataclasses
from typing import Any

import pytest

from gnn_encoder.promotion.gate import ChampionComparison, Standing, decide
from gnn_encoder.settings.outcome import Promote

OLD = Standing({"RR@10": 0.40, "R@1000": 0.90}, query_ms=10.0, index_bytes=1000.0)
NEW = Standing({"RR@10": 0.45, "R@1000": 0.895}, query_ms=14.0, index_bytes=1400.0)
BETTER = ChampionComparison("3", 100, 0, NEW, OLD, {"RR@10": 0.01, "R@1000": 0.6})


def against(p: float = 0.01, **standing: Any) -> ChampionComparison:
    means = {**NEW.means, **standing.pop("means", {})}
    return dataclasses.replace(
        BETTER, challenger=dataclasses.replace(NEW, means=means, **standing), p_values={"RR@10": p, "R@1000": 0.6}
    )


@pytest.mark.parametrize(
    ("changes", "value", "found", "decision", "because"),
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
        ({}, 0.45, against(means={"RR@10": 0.35}), "keep", "-0.0500 (p 0.01)"),
        ({}, 0.45, against(means={"R@1000": 0.88}), "keep", "R@1000 falls by 0.0200, where at most 0.01"),
        ({"floors": {}}, 0.45, against(means={"R@1000": 0.0}), "promote", "+0.0500"),
        ({"floors": {"R@1000": 0.001}}, 0.45, BETTER, "keep", "R@1000 falls by 0.0050"),
        ({}, 0.45, against(query_ms=16.0), "keep", "a question takes 1.60 times as long, where at most 1.5"),
        ({}, 0.45, against(index_bytes=1600.0), "keep", "a passage takes 1.60 times the index"),
        ({"largest_latency_ratio": 2.0, "largest_index_ratio": 2.0}, 0.45, against(query_ms=16.0), "promote", ""),
    ],
)
def test_the_rule(
    changes: dict[str, Any], value: float, found: ChampionComparison | str | None, decision: str, because: str
) -> None:
    verdict = decide(Promote(**changes), "test", value, 0.30, found)
    assert verdict.decision == decision
    assert because in verdict.reason
    assert verdict.reason.startswith("test MRR@10 0.") and "\n" not in verdict.reason


def test_every_objection_is_told() -> None:
    bad = against(p=0.9, means={"RR@10": 0.39, "R@1000": 0.5}, query_ms=99.0, index_bytes=9999.0)
    reason = decide(Promote(), "test", 0.2, 0.3, bad).reason
    assert reason.count("asked for") == 3 and reason.count("allowed") == 3
