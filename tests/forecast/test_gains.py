"""Gains per stratum, what they say about the test queries, and the lines of `data check`."""

import json
from pathlib import Path

import numpy as np
import pytest
from beir_folder import lines, write_beir
from command_line import call

from gnn_encoder.forecast.gains import gains_of
from gnn_encoder.forecast.text import _advice


def values(warm_gain: float, cold_gain: float) -> tuple[np.ndarray, np.ndarray]:
    """300 warm and 100 cold queries with noise; the middle weight gains as given, the others half as much."""
    generator, warm = np.random.default_rng(0), np.arange(400) < 300
    plain = generator.random(400)
    gain = np.where(warm, warm_gain, cold_gain) + 0.1 * generator.standard_normal(400)
    return np.stack([plain, plain + gain / 2, plain + gain, plain + gain / 2], axis=1), warm


def test_strata_are_means_and_test_has_its_own_share_of_warm_queries() -> None:
    figures, warm = values(0.2, -0.1)
    unseen = np.arange(400) % 2 == 0
    gains = gains_of(figures, warm, unseen, 0.5, seed=0)
    difference = figures[:, 2] - figures[:, 0]
    best = gains["gains"]["0.3"]
    assert gains["best"] == 0.3
    assert gains["queries"] == {"all": 400, "warm": 300, "cold": 100, "unseen": 200}
    assert gains["plain"]["cold"] == pytest.approx(figures[~warm, 0].mean())
    means = {"all": difference, "warm": difference[warm], "cold": difference[~warm], "unseen": difference[unseen]}
    for name, of in means.items():
        assert best[name]["gain"] == pytest.approx(of.mean())
        assert best[name]["low"] < of.mean() < best[name]["high"]
        assert best[name]["p"] <= best[name]["p_holm"] < 0.01
    expected = (means["warm"].mean() + means["cold"].mean()) / 2
    assert best["test"]["gain"] == pytest.approx(expected)
    assert abs(expected - difference.mean()) > 0.05  # the share matters
    assert best["test"]["low"] < expected < best["test"]["high"]
    assert gains["deviation"] == pytest.approx(difference.std(ddof=1))


@pytest.mark.parametrize(("share", "expected"), [(0.0, None), (1.0, "warm"), (0.3, None), (None, None)])
def test_without_cold_queries_nothing_is_said_about_them(share: float | None, expected: str | None) -> None:
    figures, warm = values(0.2, 0.0)
    gains = gains_of(figures[warm], warm[warm], warm[warm], share, seed=0)
    assert "cold" not in gains["queries"] and "unseen" not in gains["queries"]
    best = gains["gains"]["0.3"]
    assert best.get("test") == (best[expected] if expected else None)


@pytest.mark.parametrize(
    ("warm_gain", "cold_gain", "words"),
    [
        (0.2, 0.1, "labelled queries help"),
        (0.2, -0.1, "labelled queries help, and cold queries get worse; queries on new passages are always cold"),
        (0.0, 0.0, "labelled queries are not shown to help"),
        (-0.1, -0.1, "labelled queries are not shown to help, and cold queries get worse"),
    ],
)
def test_the_sentence_says_what_the_figures_say(warm_gain: float, cold_gain: float, words: str) -> None:
    figures, warm = values(warm_gain, cold_gain)
    said = _advice(gains_of(figures, warm, warm | True, 0.5, seed=0))
    assert said.startswith(words) and ("cold" in said) == ("cold" in words)
    cold = _advice(gains_of(figures[~warm], warm[~warm], ~warm[~warm], 0.0, seed=0))
    assert cold.startswith("no query is warm, so labelled queries cannot help")
    assert ("get worse" in cold) == ("get worse" in said)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Training queries in pairs on 15 passages. q30 asks what q0 asks with one word more, q31 of its own passage."""
    queries = [{"_id": f"q{i}", "text": f"the old river of word{i} and stone{i % 15}"} for i in range(30)]
    queries += [
        {"_id": "q30", "text": "the very old river of word0 and stone0"},
        {"_id": "q31", "text": "about a cloud in the garden"},
    ]
    passages = [{"_id": f"d{i}", "text": f"a stone{i} is in the river"} for i in range(40)]
    qrels = {
        "train": [(f"q{i}", f"d{i % 15}", 1) for i in range(30)],
        "dev": [("q30", "d0", 1)],
        "test": [("q31", "d30", 1)],
    }
    return write_beir(tmp_path / "d", lines(passages), lines(queries), qrels)


def test_data_check_says_what_the_queries_can_show(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("data", "check", str(folder))
    printed = capsys.readouterr().out
    for line in (
        "warm       train 100%, dev 100%, test 0% of the queries, train 100%, dev 100%, test 0% of the labels:",
        "recurring  train 0, dev 1, test 0 queries nearly equal another one of train; within splits: dev 0, test 0",
        "power      smallest difference in MRR@10 that a test likely finds: 0.840 on dev (1 queries), "
        "0.840 on test (1 queries)",
        "forecast   add --forecast to estimate what labelled queries gain (minutes)",
    ):
        assert line in printed.splitlines()
    call("data", "check", str(folder), "--similarity", "0.95")
    assert "recurring  train 0, dev 0, test 0 queries" in capsys.readouterr().out


@pytest.mark.parametrize("sample", [0, 34])
def test_data_check_forecasts_with_any_encoder(
    folder: Path, sample: int, tiny_backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--forecast", "--backbone", str(tiny_backbone), "--sample", str(sample)]
    call("data", "check", str(folder), *options)
    printed = capsys.readouterr().out
    corpus = "34 of 40 passages" if sample else "all 40 passages"
    assert f"MRR@10 of 30 train queries, each without its own labels; untrained {tiny_backbone}; {corpus}" in printed
    assert ("gains are rather too small" in printed) == bool(sample)
    assert "all (30)       warm (30)" in printed and "+ 0.3 × queries" in printed and "--forecast" not in printed
    call("data", "check", str(folder), *options, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["forecast"]["queries"] == {"all": 30, "warm": 30}
    assert facts["warm_queries"] == {"train": 1.0, "dev": 1.0, "test": 0.0}
    assert facts["recurring"]["dev"] == {"train": 1, "dev": 0, "test": 0}
    assert facts["power"]["deviation"] == facts["forecast"]["deviation"] and facts["power"]["test"] is not None
