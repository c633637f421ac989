"""The plan of a run without a preset: it fits the budget, is a valid preset, and is kept for the next start."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from beir_folder import write_beir
from conftest import write_tiny_backbone
from torch import nn
from typer.testing import CliRunner

from gnn_encoder.artifacts import Dataset
from gnn_encoder.cli.app import app
from gnn_encoder.errors import UserError
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.pipelines.train import train as train_graph
from gnn_encoder.planning import auto
from gnn_encoder.planning import rates as measuring
from gnn_encoder.planning.auto import PROMPT_TOKENS, _writing, planned_climb
from gnn_encoder.planning.budget import budget_seconds
from gnn_encoder.planning.facts import DataFacts, data_facts
from gnn_encoder.planning.plan import FEWEST, LENGTHS, OTHER_LABELS, PER_QUERY, RESERVE, Plan, plan_run
from gnn_encoder.planning.plan_file import PlannedClimb
from gnn_encoder.planning.rates import Rates, measure_rates
from gnn_encoder.planning.rung_times import GUARD, Candidate, affordable, reranking_seconds, rung_ends
from gnn_encoder.settings.presets import load_settings, parse_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, RUNGS, TRAINING, WORDS
from gnn_encoder.settings.shared import LargeModelTraining, LongPassages
from gnn_encoder.settings.written import WriteQueries

Planned = Callable[..., PlannedClimb]
RATES = Rates("a machine", 30_000.0, 6_000.0)


def facts(
    passages: int = 13_000, train: int = 2_400, tokens: int = 120, shared: float = 0.5, dev: int = 400
) -> DataFacts:
    lengths = np.sort(np.random.default_rng(0).geometric(1 / tokens, 500) + 2)
    queries = {"train": train, "dev": dev, "test": 500}
    return DataFacts(passages, queries, round(1.2 * train), shared, lengths, np.arange(5, 35))


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("0.5h", 1800)])
def test_a_budget(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "30s", "-1h", "1m1h", "999999h", "0m"])
def test_no_budget(text: str) -> None:
    with pytest.raises(UserError, match="--budget"):
        budget_seconds(text)


def test_a_plan_fits_its_budget_and_is_a_preset() -> None:
    for passages, train, tokens, minutes in product(
        (500, 13_000, 60_000), (50, 2_400, 80_000), (20, 300), (10, 30, 240)
    ):
        given, budget = facts(passages, train, tokens), 60.0 * minutes
        try:
            plan = plan_run(given, RATES, budget, "minilm")
        except UserError as error:
            assert "larger --budget" in str(error) and passages == 60_000
            continue
        assert 0 < sum(plan.seconds.values()) <= RESERVE * budget
        settings = parse_settings(plan.settings)
        assert settings.train_dual_encoder.passage_length in LENGTHS
        kept = settings.ingest.max_trained_queries or train
        assert kept == train or FEWEST <= kept < train
        assert len(train_graph(settings)["choose_graph"].settings.tried)  # type: ignore[attr-defined]


def test_calls_take_the_time_of_the_parts_that_are_not_shared() -> None:
    plan = plan_run(facts(), RATES, 3600.0, "minilm")
    titles = {node.title for node in train_graph(parse_settings(plan.settings)).nodes}
    assert (
        {"train_dpr", "train_dual_encoder", "train_gnn", "choose_graph", "rank: Untrained"}
        <= plan.calls.keys()
        <= titles
    )
    assert sum(plan.calls.values()) == pytest.approx(
        sum(plan.seconds.values()) - plan.seconds["starts, BM25 and evaluation"]
    )
    assert plan.calls["train_dual_encoder"] > plan.calls["train_dpr"], "of several epochs, and of one"


def test_more_time_is_never_less_training() -> None:
    before = (0, 0, 0, 0)
    for minutes in (15, 20, 30, 60, 120, 480):
        settings = parse_settings(plan_run(facts(), RATES, 60.0 * minutes, "minilm").settings)
        queries = settings.ingest.max_trained_queries or 10**9
        dual = settings.train_dual_encoder
        now = (queries, dual.passage_length, dual.epochs, settings.train_gnn.epochs)
        assert now[:2] >= before[:2] and (now[1] > before[1] or now[2:] >= before[2:]), minutes
        before = now
    assert before == (10**9, 256, 20, 3)


def test_a_machine_twice_as_fast_needs_half_of_the_time_for_texts() -> None:
    slow = plan_run(facts(), RATES, 3600.0, "minilm")
    fast = plan_run(facts(), replace(RATES, encoding=60_000.0, training=12_000.0), 3600.0, "minilm")
    assert slow.settings["shared"] == fast.settings["shared"]
    assert fast.seconds["encoding the corpus"] == pytest.approx(slow.seconds["encoding the corpus"] / 2)
    assert fast.settings["train_dual_encoder"]["epochs"] > slow.settings["train_dual_encoder"]["epochs"]


def test_each_query_of_dev_and_test_takes_time_and_leaves_less_for_training() -> None:
    def planned_with(test: int) -> Plan:
        return plan_run(replace(facts(), queries={"train": 2_400, "dev": 400, "test": test}), RATES, 1800.0, "minilm")

    few, many, part = planned_with(500), planned_with(8_500), "starts, BM25 and evaluation"
    assert many.seconds[part] - few.seconds[part] == pytest.approx(8_000 * PER_QUERY)
    assert many.seconds["the dual encoder"] < few.seconds["the dual encoder"]
    with pytest.raises(UserError, match="13,000 passages and 40,400 dev and test queries need about"):
        planned_with(40_000)


def test_what_the_labels_decide() -> None:
    alone = plan_run(facts(shared=0.0), RATES, 3600.0, "minilm")
    assert {v["build_graph.edges"] for v in alone.settings["choose_graph"]["variants"].values()} == {"retrieved"}
    both = plan_run(facts(), RATES, 3600.0, "minilm").settings["choose_graph"]["variants"]
    assert len(both) > 3 and "labelled edges, one layer" in both
    costly = plan_run(facts(train=20_000), replace(RATES, encoding=8_000.0), 7200.0, "minilm")
    assert all("build_graph.edges" not in changes for changes in costly.settings["choose_graph"]["variants"].values())
    blind = plan_run(facts(dev=0), RATES, 3600.0, "minilm").settings["train_dual_encoder"]
    assert blind["epochs"] == 1 and "patience" not in blind
    hurried = plan_run(facts(train=20_000), RATES, 600.0, "minilm").settings["train_dual_encoder"]
    assert hurried["epochs"] == 1 and hurried["patience"] and hurried["keep"] == "best"  # DPR is kept if it is better
    with pytest.raises(UserError, match="no labelled training query"):
        plan_run(facts(train=0), RATES, 3600.0, "minilm")


def test_the_calls_of_a_language_model_are_said_with_their_cost() -> None:
    prices = {"price_in": 1.0, "price_out": 10.0}
    settings = WriteQueries(generator="http://127.0.0.1:9/v1#m", max_calls=3_002, answer_tokens=100, **prices)
    assert _writing(settings, facts()).startswith("3,000 calls for 1,000 passages, about ")
    tokens = 3_000 * (PROMPT_TOKENS + facts().mean_passage(750))
    assert f"about {tokens:,.0f} tokens in, at most 300,000 out, at most " in _writing(settings, facts())
    assert f"at most {tokens / 1e6 + 3:,.2f} at the given price" in _writing(settings, facts())
    assert settings.passages_of(100) == (100, 3) and settings.passages_of(10_000, kinds=1) == (3_002, 1)
    assert WriteQueries(generator="titles", max_calls=5).passages_of(100) == (100, 0), "nothing is called"


def test_facts_are_counted(tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    found = data_facts(tiny_dataset, str(tiny_backbone), 0)
    assert (found.passages, found.queries, found.labels) == (100, {"train": 60, "dev": 20, "test": 20}, 60)
    assert found.shared == 0.0  # each passage has one query
    assert len(found.passage_tokens) == 100 and found.mean_passage(8) <= 8 < found.mean_passage(64)


def test_rates_are_tokens_over_seconds(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at this clock is a second later. The texts are encoded, and batches trained on, three times after the
    # first; then the clock is read once more. A GPU works on for two seconds after the first and the last batch.
    clock = count()
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=partial(next, clock)))
    monkeypatch.setattr(measuring, "_wait", lambda: (next(clock), next(clock)))
    monkeypatch.setattr(measuring, "SECONDS", 2.5)
    found = measure_rates(tiny_dataset, str(tiny_backbone), 0)
    lengths = data_facts(tiny_dataset, str(tiny_backbone), 0).passage_tokens
    assert lengths.min() == lengths.max()
    assert found.encoding == pytest.approx(3 * measuring.TEXTS * lengths[0] / 4)
    assert found.training == pytest.approx(3 * measuring.BATCH * lengths[0] / (4 + 2))
    assert "memory" in found.machine


def test_a_model_with_few_positions_is_measured_too(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    backbone = write_tiny_backbone(tmp_path / "bert", positions=8)
    assert data_facts(tiny_dataset, str(backbone), 0).passage_tokens.min() > 8
    found = measure_rates(tiny_dataset, str(backbone), 0)
    assert found.encoding > 0 and found.training > 0


def test_the_measured_training_has_the_dropout_of_the_planned_ones(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropouts: set[float] = set()

    def look(model: nn.Module, *_: object) -> float:
        dropouts.update(module.p for module in model.modules() if isinstance(module, nn.Dropout))
        return 100.0

    monkeypatch.setattr(measuring, "_encoding", look)
    monkeypatch.setattr(measuring, "_training", look)
    measure_rates(tiny_dataset, str(tiny_backbone), 0)
    assert dropouts == {plan_run(facts(), RATES, 3600.0, "minilm").settings["shared"]["dropout"]}


def test_the_measured_training_is_that_of_the_settings(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[set[str]] = []
    checkpointed: list[bool] = []

    def look(model: DualEncoder, *_: object) -> float:
        backbone = model.passage_encoder.backbone
        trained.append({name for name, value in backbone.named_parameters() if value.requires_grad})
        checkpointed.append(backbone.is_gradient_checkpointing)
        return 100.0

    monkeypatch.setattr(measuring, "_encoding", lambda *_: 100.0)
    monkeypatch.setattr(measuring, "_training", look)
    for settings in (LargeModelTraining(lora_rank=4), LargeModelTraining(gradient_checkpointing=True)):
        measure_rates(tiny_dataset, str(tiny_backbone), 0, settings)
    assert trained[0] and all("lora_" in name for name in trained[0])
    assert not any("lora_" in name for name in trained[1])
    assert checkpointed == [False, True]


def test_an_encoding_takes_the_tokens_of_all_windows() -> None:
    lengths = np.array([5, 100, 101, 190, 1000])
    texts = [["word"] * length for length in lengths]
    windows = LongPassages(long_passages="windows", window_overlap=10)
    read = 0
    for text in texts:
        start = 0
        read += len(text[:100])
        while start + 100 < len(text):
            start += 90
            read += len(text[start : start + 100])
    plain = replace(facts(), passage_tokens=lengths)
    given = replace(plain, reading=windows)
    assert given.mean_read(100) == pytest.approx(read / 5)
    assert given.mean_passage(100) == plain.mean_read(100) == pytest.approx(405 / 5)
    late = replace(plain, reading=LongPassages(long_passages="late"))
    assert late.mean_read(100) == pytest.approx((405 + lengths.sum()) / 5)
    seconds = [Candidate("a", "a", some, RATES).seconds(100) for some in (plain, given)]
    assert seconds[1] - seconds[0] == pytest.approx(13_000 * (read - 405) / 5 / RATES.encoding)
    calls = [plan_run(some, RATES, 36_000.0, "minilm").calls for some in (plain, given)]
    assert calls[1]["build_graph"] > calls[0]["build_graph"] and calls[1]["encode_nodes"] == calls[0]["encode_nodes"]


@pytest.mark.parametrize(
    ("trained", "taken", "said"), [([10.0, 50.0], 50.0, 1), ([10.0, 10.0, 10.0], 10.0, 2), ([50.0], 50.0, 0)]
)
def test_unlikely_rates_are_measured_again(
    trained: list[float], taken: float, said: int, tiny_dataset: Dataset, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    left = iter(trained)
    monkeypatch.setattr(measuring, "_encoding", lambda *_: 200.0)
    monkeypatch.setattr(measuring, "_training", lambda *_: next(left))
    assert measure_rates(tiny_dataset, str(tiny_backbone), 0).training == taken
    assert not list(left) and capsys.readouterr().err.count("measured again") == said


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

    def plan(budget: float, encoding: float = 30_000.0, training: float = 6_000.0, *own: str) -> PlannedClimb:
        shown.clear()
        rates = Rates("a machine", encoding, training)
        monkeypatch.setattr(auto, "measure_rates", lambda data, backbone, seed, trains: rates)
        given = [f"ingest.dataset={tmp_path / 'data'}", f"shared.backbone={tiny_backbone}", *own]
        return planned_climb(given, highest[0], budget, tmp_path, shown.__setitem__)

    return plan


@pytest.mark.parametrize(
    ("budget", "encoding", "until", "named"),
    [
        (60.0, 0.5, WORDS, [AS_IT_IS, LABELS]),
        (60.0, 30_000.0, AS_IT_IS, [LABELS]),
        (120.0, 30_000.0, LABELS, [TRAINING]),
        (1800.0, 30_000.0, TRAINING, []),
    ],
)
def test_a_climb_ends_with_the_last_rung_that_fits(
    budget: float, encoding: float, until: str, named: list[str], planned: Planned, shown: dict[str, str]
) -> None:
    found = planned(budget, encoding)
    assert found.until == until and shown["tables"].count("after") == RUNGS.index(until) + 1
    assert [rung for rung in RUNGS if f"{rung} (about --budget" in found.missing] == named
    settings = load_settings(str(found.file))
    assert (settings.index_bm25.k1, settings.encode.encoder) == (0.9, settings.train_dual_encoder.backbone)
    assert ("train_gnn" in found.seconds) is (until == TRAINING)
    assert ("encode" in found.seconds) is (until != WORDS)


@pytest.mark.parametrize(
    ("budget", "rungs", "above"),
    [
        (1800.0, [TRAINING, RERANKING], TRAINING),
        (170.0, [RERANKING], LABELS),  # too short for a training
        (100.0, [], ""),
    ],
)
def test_reranking_is_planned_where_it_fits(
    budget: float, rungs: list[str], above: str, planned: Planned, shown: dict[str, str],
    highest: list[str],
) -> None:  # fmt: skip
    highest[0] = RERANKING
    found = planned(budget)
    settings = load_settings(str(found.file))
    assert [*ladder(settings, found.until).rungs] == [WORDS, AS_IT_IS, LABELS, *rungs]
    assert shown["tables"].count("after") == 3 + len(rungs)
    assert ("re-ranking (about --budget" in found.missing) is (not rungs)
    assert ("training (about --budget" in found.missing) is (TRAINING not in rungs)
    if rungs:
        assert (settings.weigh_reranker.above, settings.train_reranker.depth) == (above, 100)
        assert {"first_stage", "train_reranker: Re-ranked", "rerank: Re-ranked"} <= found.seconds.keys()


def test_the_time_of_a_reranking_is_pairs_over_rates() -> None:
    data = facts(train=1_000)
    took, more, drawn = (reranking_seconds(data, RATES, 160, *sizes) for sizes in ((50, 0), (100, 0), (50, 500)))
    tokens, asked = min(data.mean_query(64) + data.mean_passage(160), 160), data.queries["dev"] + data.queries["test"]
    assert took["rerank: Re-ranked"] == pytest.approx(50 * asked * tokens / RATES.encoding)
    assert took["train_reranker: Re-ranked"] == pytest.approx(2 * data.labels * tokens / RATES.training)
    assert more["rerank: Re-ranked"] == 2 * took["rerank: Re-ranked"]
    assert drawn["train_reranker: Re-ranked"] == took["train_reranker: Re-ranked"] / 2
    slower = reranking_seconds(data, replace(RATES, training=0.0), 160, 50, 0)
    assert slower["train_reranker: Re-ranked"] == pytest.approx(8 * data.labels * tokens / RATES.encoding)


def test_passages_are_cut_where_a_rung_would_not_fit() -> None:
    many, budgets = facts(passages=20_000, tokens=200), (3600.0, 300.0, 260.0, 120.0)
    encoders = [Candidate("minilm", "minilm", many, RATES)]
    lengths = [affordable(encoders, RUNGS, budget, 256)[1] for budget in budgets]
    assert lengths[0] == 256 and lengths == sorted(lengths, reverse=True) and len(set(lengths)) > 2
    for length, budget, rung in zip(lengths, budgets, (LABELS, LABELS, LABELS, AS_IT_IS), strict=True):
        assert rung_ends(encoders, length)[rung] <= GUARD * budget
    assert affordable(encoders, RUNGS, 260.0, 256, fixed=True)[1] == 256


def test_encoders_are_left_out_from_the_last_before_passages_are_cut() -> None:
    many = facts(passages=20_000, tokens=200)
    encoders = [
        Candidate(name, name, many, Rates("", rate, 1.0)) for name, rate in (("a", 3e4), ("b", 1e4), ("c", 3e4))
    ]
    known = {}
    for budget in (3600.0, 800.0, 600.0, 300.0, 120.0, 10.0):
        kept, length = affordable(encoders, RUNGS, budget, 256)
        known[budget] = ("".join(one.name for one in kept), length)
        if budget > 120:
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
    found = planned(1800.0, 30_000.0, 6_000.0, others)
    settings = load_settings(str(found.file))
    assert (settings.encode.encoder, settings.encode.others) == (str(tiny_backbone), (str(short),))
    assert settings.encode.passage_length == settings.encode.query_length == 32, "what each reads"
    assert shown["encoders"] == "bert, short; the best on dev, together with BM25, goes on"
    assert "encodes 30,000 (bert), 30,000 (short) tokens a second" in shown["machine"]
    assert {"encode: bert", "encode: short"} < found.seconds.keys() and "encode" not in found.seconds
    assert found.until == TRAINING and settings.train_dpr.backbone == str(tiny_backbone)

    few = planned(75.0, 600.0, 6_000.0, others)
    assert load_settings(str(few.file)).encode.others == () and "encode" in few.seconds
    said = re.fullmatch(r"bert; short would not fit \(about --budget (\d+)m\)", shown["encoders"])
    assert said and load_settings(str(planned(60.0 * int(said[1]), 600.0, 6_000.0, others).file)).encode.others
    again = planned(75.0, 600.0, 6_000.0, others)
    assert (again.file, set(shown)) == (few.file, {"plan"}) and planned(75.0, 600.0, 6_000.0).file != few.file

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
    found = planned(1800.0, 30_000.0, 6_000.0, f"encode.others=['{first}', '{second}']")
    settings = load_settings(str(found.file))
    assert settings.encode.others == (f"{first}#only", second) and found.until == LABELS
    assert shown["training"] == "none: the weights of one encoder are elsewhere"
    assert (
        shown["encoder"] == "only at http://here/v1, 8 numbers a vector; small at http://there/v1, 8 numbers a vector"
    )
    assert "for each of them; each text is sent once" in shown["to pay"]
    assert {"encode: bert", "encode: only", "encode: small"} <= found.seconds.keys()


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


def test_a_budget_draws_what_is_trained_on_and_keeps_the_labels() -> None:
    whole = plan_run(facts(), RATES, 3600.0, "minilm")
    assert whole.settings["ingest"] == {} and OTHER_LABELS not in whole.seconds
    assert "encode_with_labels" not in whole.settings and "queries" not in whole.settings["build_graph"]
    for train, minutes, shared, held in (
        (20_000, 30, 0.5, "all"),
        (20_000, 15, 0.5, "trained"),
        (20_000, 30, 0.0, "trained"),
    ):
        plan = plan_run(facts(train=train, shared=shared), RATES, 60.0 * minutes, "minilm")
        settings = parse_settings(plan.settings)
        assert settings.ingest.max_train_queries == 0 and FEWEST <= settings.ingest.max_trained_queries < train
        assert settings.build_graph.queries == held and plan.seconds[OTHER_LABELS] > 0
        assert sum(plan.seconds.values()) <= RESERVE * 60 * minutes
        assert ("it holds all labels" in plan.reasons["graph"]) == (held == "all")
        assert plan.reasons["training"].endswith("queries, which is what fits")
    more = plan_run(facts(train=80_000), RATES, 1800.0, "minilm")
    assert parse_settings(more.settings).encode_with_labels.clusters == (4,), "fewer uses of the labels are tried"
    with pytest.raises(UserError, match=r"a limit ingest\.max_train_queries"):
        plan_run(facts(train=2_000_000), RATES, 600.0, "minilm")


def test_the_users_own_draw_is_not_reduced() -> None:
    drawn = plan_run(replace(facts(train=20_000), drawn=900), RATES, 1800.0, "minilm")
    assert drawn.settings["ingest"] == {"max_trained_queries": 900}
    assert drawn.reasons["training"].endswith("; on 900 queries, as the settings say")
    with pytest.raises(UserError, match="larger --budget"):
        plan_run(replace(facts(train=20_000), drawn=15_000), RATES, 1800.0, "minilm")
