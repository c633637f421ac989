"""The plan of a training without a preset: it fits the budget, and is a valid preset."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plan_inputs import RATES, facts

from gnn_encoder.errors import UserError
from gnn_encoder.pipelines.train import train as train_graph
from gnn_encoder.planning.budget import budget_seconds
from gnn_encoder.planning.plan import FEWEST, LENGTHS, OTHER_LABELS, PER_QUERY, RESERVE, Plan, plan_run
from gnn_encoder.settings.presets import parse_settings


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
        data, budget = facts(passages, train, tokens), 60.0 * minutes
        try:
            plan = plan_run(data, RATES, budget, "minilm")
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
        {"train_dpr", "train_dual_encoder", "train_gnn", "choose_graph", "dense_retrieve"}
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
    with pytest.raises(UserError, match="13,000 passages and 200,400 dev and test queries need about"):
        planned_with(200_000)


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


@pytest.mark.parametrize(
    ("passages", "shared", "neighbours"),
    [(2_000, 0.0, 3), (120_000, 0.0, 0.2), (120_000, 0.5, 1.5), (2_000, 0.5, 3), (2_400_000, 0.01, 0.01)],
)
def test_neighbours_take_time_in_the_training_of_the_gnn(passages: int, shared: float, neighbours: float) -> None:
    """2,400 queries with ten retrieved edges each, and at most three neighbours of a passage."""
    data = facts(passages, train=2_400, shared=shared)
    plan = plan_run(data, RATES, 36_000.0, "minilm")
    settings = parse_settings(plan.settings)
    of_an_epoch = plan.calls["train_gnn"] / settings.train_gnn.epochs
    of_an_epoch -= plan.calls["train_dual_encoder"] / settings.train_dual_encoder.epochs
    expected = 2 * data.labels * neighbours * data.mean_query(128) / RATES.training
    assert of_an_epoch == pytest.approx(expected, rel=0.01)


def test_labels_passages_count_with_their_own_length() -> None:
    """A passage of each example is a label's, the other is any; a pair of each, too."""
    data, length = facts(tokens=60), 256
    plan = plan_run(data, RATES, 36_000.0, "minilm")
    assert plan.settings["shared"]["passage_length"] == length
    query = data.query_tokens.mean()
    mean = {"any": np.minimum(data.passage_tokens, length).mean()}
    mean |= {"labelled": np.minimum(data.labelled_tokens, length).mean()}
    expected = data.labels * (query + mean["labelled"] + mean["any"]) / RATES.training + 1000 * mean["any"] / 30_000.0
    assert plan.calls["train_dpr"] == pytest.approx(expected)
    pairs = [np.minimum(query + tokens, 160).mean() for tokens in (data.labelled_tokens, data.passage_tokens)]
    scored = 2 * 20 * 60 * pairs[1] / RATES.encoding  # dev candidates, after the epoch and at the end
    assert plan.calls["train_cross_encoder"] == pytest.approx(data.labels * sum(pairs) / RATES.training + scored)
    read = data.passages * mean["any"], 2_400 * query, 900 * query  # passages, and queries of train, dev and test
    assert plan.calls["dense_retrieve"] == pytest.approx(sum(read) / RATES.encoding)
    assert plan.calls["encode_nodes"] == pytest.approx(sum(read[:2]) / RATES.encoding)
    scored = 2_400 * 8 * pairs[1] + 0.5 * data.labels * pairs[0]
    assert plan.calls["score_candidates"] == pytest.approx(scored / RATES.encoding)


def test_trials_of_graphs_take_longer_with_more_passages() -> None:
    few, many = (
        plan_run(facts(n, shared=0.0), RATES, 36_000.0, "minilm").calls["choose_graph"] for n in (2_000, 200_000)
    )
    assert many > 1.1 * few


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
