"""The plan of a climb: the rungs and encoders that fit the budget; it is kept for the next start."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from beir_folder import write_beir
from conftest import write_tiny_backbone
from plan_inputs import RATES, facts
from typer.testing import CliRunner

from gnn_encoder.cli.app import app
from gnn_encoder.errors import UserError
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.planning import auto
from gnn_encoder.planning.auto import PROMPT_TOKENS, _writing, planned_climb
from gnn_encoder.planning.plan_file import PlannedClimb
from gnn_encoder.planning.rates import Rates
from gnn_encoder.planning.rung_times import GUARD, Candidate, affordable, reranking_seconds, rung_ends
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, RUNGS, TRAINING, WORDS
from gnn_encoder.settings.written import WriteQueries

Planned = Callable[..., PlannedClimb]


def test_the_calls_of_a_language_model_are_said_with_their_cost() -> None:
    prices = {"price_in": 1.0, "price_out": 10.0}
    settings = WriteQueries(generator="http://127.0.0.1:9/v1#m", max_calls=3_002, answer_tokens=100, **prices)
    assert _writing(settings, facts()).startswith("3,000 calls for 1,000 passages, about ")
    tokens = 3_000 * (PROMPT_TOKENS + facts().mean_passage(750))
    assert f"about {tokens:,.0f} tokens in, at most 300,000 out, at most " in _writing(settings, facts())
    assert f"at most {tokens / 1e6 + 3:,.2f} at the given price" in _writing(settings, facts())
    assert settings.passages_of(100) == (100, 3) and settings.passages_of(10_000, kinds=1) == (3_002, 1)
    assert WriteQueries(generator="titles", max_calls=5).passages_of(100) == (100, 0), "nothing is called"


@pytest.fixture
def shown() -> dict[str, str]:
    return {}


@pytest.fixture
def highest() -> list[str]:
    return [TRAINING]


@pytest.fixture
def planned(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, str], highest: list[str]
) -> Planned:
    """Plans a climb over a small folder, on a machine that encodes and trains so many tokens a second."""
    write_beir(tmp_path / "data")

    def plan(budget: float, encoding: float = 30_000.0, training: float = 6_000.0, *more: str) -> PlannedClimb:
        shown.clear()
        rates = Rates("a machine", encoding, training)
        monkeypatch.setattr(auto, "measure_rates", lambda data, backbone, seed, trains: rates)
        changes = [f"ingest.dataset={tmp_path / 'data'}", f"shared.backbone={tiny_backbone}", *more]
        return planned_climb(changes, highest[0], budget, tmp_path, shown.__setitem__)

    return plan


@pytest.mark.parametrize(
    ("budget", "encoding", "until", "named"),
    [
        (60.0, 0.5, WORDS, [AS_IT_IS, LABELS]),
        (30.0, 30_000.0, AS_IT_IS, [LABELS]),
        (120.0, 30_000.0, LABELS, [TRAINING]),
        (1800.0, 30_000.0, TRAINING, []),
    ],
)
def test_a_climb_ends_with_the_last_rung_that_fits(
    budget: float, encoding: float, until: str, named: list[str], planned: Planned, shown: dict[str, str]
) -> None:
    climb = planned(budget, encoding)
    assert climb.until == until and shown["tables"].count("after") == RUNGS.index(until) + 1
    assert [rung for rung in RUNGS if f"{rung} (about --budget" in climb.missing] == named
    settings = load_settings(str(climb.file))
    assert (settings.index_bm25.k1, settings.encode.encoder) == (0.9, settings.train_dual_encoder.backbone)
    assert ("train_gnn" in climb.seconds) is (until == TRAINING)
    assert ("encode" in climb.seconds) is (until != WORDS)


@pytest.mark.parametrize(
    ("budget", "rungs", "above"),
    [
        (1800.0, [TRAINING, RERANKING], TRAINING),
        (170.0, [RERANKING], LABELS),  # too short for a training
        (70.0, [], ""),
    ],
)
def test_reranking_is_planned_where_it_fits(
    budget: float, rungs: list[str], above: str, planned: Planned, shown: dict[str, str],
    highest: list[str],
) -> None:  # fmt: skip
    highest[0] = RERANKING
    climb = planned(budget)
    settings = load_settings(str(climb.file))
    assert [*ladder(settings, climb.until).rungs] == [WORDS, AS_IT_IS, LABELS, *rungs]
    assert shown["tables"].count("after") == 3 + len(rungs)
    assert ("re-ranking (about --budget" in climb.missing) is (not rungs)
    assert ("training (about --budget" in climb.missing) is (TRAINING not in rungs)
    if rungs:
        assert (settings.weigh_reranker.above, settings.train_reranker.depth) == (above, 100)
        assert {"first_stage", "train_reranker: Re-ranked", "rerank: Re-ranked"} <= climb.seconds.keys()


def test_the_time_of_a_reranking_is_pairs_over_rates() -> None:
    data = facts(train=1_000)
    took, more, drawn = (reranking_seconds(data, RATES, 160, *sizes) for sizes in ((50, 0), (100, 0), (50, 500)))
    of_passages, of_labels = (
        np.mean([min(160, data.query_tokens.mean() + length) for length in lengths])
        for lengths in (data.passage_tokens, data.labelled_tokens)
    )
    tokens, both, queries = of_passages, of_passages + of_labels, data.queries["dev"] + data.queries["test"]
    assert of_labels > 1.05 * of_passages
    assert took["rerank: Re-ranked"] == pytest.approx(50 * queries * tokens / RATES.encoding)
    watched = 2 * 60 * 20 * tokens / RATES.encoding  # after the epoch, and at the end
    assert took["train_reranker: Re-ranked"] == pytest.approx(data.labels * both / RATES.training + watched)
    assert more["rerank: Re-ranked"] == 2 * took["rerank: Re-ranked"]
    half = (took["train_reranker: Re-ranked"] - watched) / 2
    assert drawn["train_reranker: Re-ranked"] == pytest.approx(half + watched)
    searched = reranking_seconds(replace(data, passages=2 * data.passages), RATES, 160, 50, 0)
    assert searched["first_stage"] > took["first_stage"]
    slower = reranking_seconds(data, replace(RATES, training=0.0), 160, 50, 0)
    trained = slower["train_reranker: Re-ranked"] - watched
    assert trained == pytest.approx(4 * data.labels * both / RATES.encoding)


def test_passages_are_cut_where_a_rung_would_not_fit() -> None:
    many, budgets = facts(passages=20_000, tokens=200), (3600.0, 160.0, 120.0, 85.0)
    encoders = [Candidate("minilm", "minilm", many, RATES)]
    lengths = [affordable(encoders, RUNGS, budget, 256)[1] for budget in budgets]
    assert lengths[0] == 256 and lengths == sorted(lengths, reverse=True) and len(set(lengths)) > 2
    for length, budget, rung in zip(lengths, budgets, (LABELS, LABELS, LABELS, AS_IT_IS), strict=True):
        assert rung_ends(encoders, length)[rung] <= GUARD * budget
    assert affordable(encoders, RUNGS, 160.0, 256, fixed=True)[1] == 256


def test_encoders_are_left_out_from_the_last_before_passages_are_cut() -> None:
    many = facts(passages=20_000, tokens=200)
    encoders = [
        Candidate(name, name, many, Rates("", rate, 1.0)) for name, rate in (("a", 3e4), ("b", 1e4), ("c", 3e4))
    ]
    known = {}
    for budget in (3600.0, 600.0, 300.0, 160.0, 85.0, 10.0):
        kept, length = affordable(encoders, RUNGS, budget, 256)
        known[budget] = ("".join(one.name for one in kept), length)
        if budget > 85:
            assert rung_ends(kept, length)[LABELS] <= GUARD * budget
            one_more = encoders[: len(kept) + 1]
            assert len(kept) == 3 or rung_ends(one_more, 256)[LABELS] > GUARD * budget
    assert [names for names, _ in known.values()] == ["abc", "ab", "a", "a", "a", "a"]
    assert [length == 256 for _, length in known.values()] == [True, True, True, False, False, True]
    alone, both = (rung_ends(encoders[:count], 256) for count in (1, 2))
    assert both[WORDS] == alone[WORDS] and both[AS_IT_IS] - alone[AS_IT_IS] > encoders[1].seconds(256)
    tokens = many.passages * many.mean_passage(256) + 3_300 * many.mean_query(64)
    assert encoders[1].seconds(256) == pytest.approx(tokens / 1e4)


def test_the_plan_of_several_encoders(
    tmp_path: Path, tiny_backbone: Path, planned: Planned, shown: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = write_tiny_backbone(tmp_path / "short", positions=32)
    others = f"encode.others=['{short}']"
    whole = planned(1800.0, 30_000.0, 6_000.0, others)
    settings = load_settings(str(whole.file))
    assert (settings.encode.encoder, settings.encode.others) == (str(tiny_backbone), (str(short),))
    assert settings.encode.passage_length == settings.encode.query_length == 32, "what each reads"
    assert shown["encoders"] == "bert, short; the best on dev, together with BM25, goes on"
    assert "encodes 30,000 (bert), 30,000 (short) tokens a second" in shown["machine"]
    assert {"encode: bert", "encode: short"} < whole.seconds.keys() and "encode" not in whole.seconds
    assert whole.until == TRAINING and settings.train_dpr.backbone == str(tiny_backbone)

    few = planned(40.0, 600.0, 6_000.0, others)
    assert load_settings(str(few.file)).encode.others == () and "encode" in few.seconds
    said = re.fullmatch(r"bert; short would not fit \(about --budget (\d+)m\)", shown["encoders"])
    assert said and load_settings(str(planned(60.0 * int(said[1]), 600.0, 6_000.0, others).file)).encode.others
    again = planned(40.0, 600.0, 6_000.0, others)
    assert (again.file, set(shown)) == (few.file, {"plan"}) and planned(40.0, 600.0, 6_000.0).file != few.file

    measured: list[str] = []
    speeds = {str(tiny_backbone): Rates("", 3e4, 9e3), str(short): Rates("", 1e4, 4e3)}
    monkeypatch.setattr(auto, "measure_rates", lambda data, name, *_: measured.append(name) or speeds[name])
    training: list[Rates] = []
    planned_run = auto.plan_run
    monkeypatch.setattr(
        auto, "plan_run", lambda facts, rates, *more: training.append(rates) or planned_run(facts, rates, *more)
    )
    climb = ["ingest.seed=2", f"ingest.dataset={tmp_path / 'data'}", f"shared.backbone={tiny_backbone}", others]
    planned_climb(climb, TRAINING, 1800.0, tmp_path, shown.__setitem__)
    assert measured == [str(tiny_backbone), str(short)] and training == [speeds[str(short)]], "any may be trained"


def test_each_address_is_asked_and_has_to_be_paid(
    tmp_path: Path, planned: Planned, shown: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(name: str) -> AddressEncoder:
        return AddressEncoder(name.partition("#")[0], name.partition("#")[2] or "only", 8, False)

    monkeypatch.setattr(AddressEncoder, "at", at)
    first, second = "http://here/v1", "http://there/v1#small"
    climb = planned(1800.0, 30_000.0, 6_000.0, f"encode.others=['{first}', '{second}']")
    settings = load_settings(str(climb.file))
    assert settings.encode.others == (f"{first}#only", second) and climb.until == LABELS
    assert shown["training"] == "none: the weights of one encoder are elsewhere"
    assert (
        shown["encoder"] == "only at http://here/v1, 8 numbers a vector; small at http://there/v1, 8 numbers a vector"
    )
    assert "for each of them; each text is sent once" in shown["to pay"]
    assert {"encode: bert", "encode: only", "encode: small"} <= climb.seconds.keys()


def test_a_plan_is_kept_for_the_next_start(tmp_path: Path, planned: Planned, shown: dict[str, str]) -> None:
    first = planned(1800.0)
    assert {"machine", "data", "passages", "training", "graph", "time", "tables", "plan"} == set(shown)
    assert f"# machine: {shown['machine']}" in first.file.read_text("utf-8")
    assert {"train_dpr", "train_gnn", "encode"} < first.seconds.keys() and min(first.seconds.values()) >= 0
    assert load_settings(str(first.file)).train_gnn.batch_size == 32
    written, again = first.file.stat().st_mtime_ns, planned(1800.0, 1.0, 1.0)
    assert (again.file, again.until, set(again.seconds)) == (first.file, first.until, set(first.seconds))
    assert first.file.stat().st_mtime_ns == written and set(shown) == {"plan"}
    assert planned(1200.0).file != first.file != planned(1800.0, 30_000.0, 6_000.0, "ingest.seed=1").file
    with (tmp_path / "data" / "queries.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "new", "text": "another one"}\n')
    assert planned(1800.0).file != first.file


def test_without_data_there_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["run", "--root", str(tmp_path)])
    assert isinstance(result.exception, UserError) and "no data: give --dataset" in str(result.exception)
    result = CliRunner().invoke(app, ["run", "--root", str(tmp_path), "--dataset", "x", "--budget", "soon"])
    assert "--budget soon" in str(result.exception)
