"""The parsimony rule: its four conditions, and how often it takes a truly worse system."""

import numpy as np
import pytest

from gnn_encoder.evaluation.recommendation import Rule, recommend, sentence
from gnn_encoder.evaluation.significance import paired_t

ORDER = ("BM25", "Dual encoder", "BM25 + Dual encoder", "GNN-encoder")
DEFAULT = Rule()


def p_value(differences):
    return float(paired_t(differences[:, None])[0])


def chosen(values, strata=None, rule=DEFAULT):
    return recommend(values, ORDER, "Dual encoder", strata or {}, p_value, rule)


@pytest.fixture
def generator():
    return np.random.default_rng(3)


def test_the_simplest_of_equal_systems_is_recommended(generator):
    same = generator.random(100)
    advice = chosen({"GNN-encoder": same, "Dual encoder": same, "BM25": same - 0.2})
    assert advice.system == "Dual encoder"
    assert advice.best == "Dual encoder"
    assert [standing.system for standing in advice.standings] == ["BM25", "Dual encoder", "GNN-encoder"]


def test_a_difference_beyond_the_margin_counts_although_chance_explains_it(generator):
    plain = generator.random(50)
    better = plain + generator.normal(0, 1.0, 50)
    better += 0.02 - (better - plain).mean()  # a gain of exactly 0.02, which 50 queries cannot show
    values = {"Dual encoder": plain, "GNN-encoder": better}
    assert p_value(better - plain) > 0.5
    assert chosen(values).system == "GNN-encoder"
    assert chosen(values, rule=Rule(margin=0.03)).system == "Dual encoder"  # control


def test_a_certain_difference_within_the_margin_counts(generator):
    plain = generator.random(50)
    values = {"Dual encoder": plain, "GNN-encoder": plain + 0.004 + generator.normal(0, 0.001, 50)}
    advice = chosen(values)
    assert advice.system == "GNN-encoder"
    assert "significantly below" in advice.standing("Dual encoder").objections[0]
    assert chosen(values, rule=Rule(significance=0.0)).system == "Dual encoder"  # control


def test_weights_of_queries_leave_the_size_of_a_fall(generator):
    """Weighted by 4 and 0.25, a fall of 0.1 and one of 0.002 in a stratum stay what they are."""
    plain, cold = generator.random(100), np.arange(100) < 20
    weights = np.where(cold, 4.0, 0.25)
    worse = plain - np.where(cold, 0.002, 0.1) + generator.normal(0, 1e-5, 100)
    strata, values = {"warm": ~cold, "cold": cold}, {"Dual encoder": weights * plain, "BM25": weights * worse}
    advice = recommend(values, ORDER, "Dual encoder", strata, p_value, DEFAULT, weights=weights)
    falls = [objection for objection in advice.standing("BM25").objections if "queries" in objection]
    assert len(falls) == 1 and falls[0].startswith("0.100 below Dual encoder on 80 warm")
    control = recommend(values, ORDER, "Dual encoder", strata, p_value, DEFAULT)
    falls = [objection for objection in control.standing("BM25").objections if "queries" in objection]
    assert [objection[:5] for objection in falls] == ["0.025", "0.008"]


def test_a_loss_in_a_stratum_excludes_the_best_system(generator):
    plain, cold = generator.random(200), np.arange(200) < 80
    better = plain + np.where(cold, -0.05, 0.1) + generator.normal(0, 0.05, 200)
    values, strata = {"Dual encoder": plain, "GNN-encoder": better}, {"warm": ~cold, "cold": cold}
    advice = chosen(values, strata)
    assert (advice.system, advice.best, advice.highest.system) == ("Dual encoder", "Dual encoder", "GNN-encoder")
    assert "80 cold queries" in advice.standing("GNN-encoder").objections[0]
    assert "but is" in sentence(advice, "MRR@10", 200)
    assert chosen(values, {"warm": ~cold}).system == "GNN-encoder"  # control
    assert chosen(values, strata, Rule(floor_significance=0.0)).system == "GNN-encoder"  # control


def test_of_the_systems_that_fall_in_no_stratum_the_best_sets_the_bar(generator):
    """An excluded system does not make a better one than the dual encoder look too bad to be recommended."""
    plain, cold = generator.random(200), np.arange(200) < 80
    noise = generator.normal(0, 0.02, (2, 200))
    values = {
        "Dual encoder": plain,
        "BM25 + Dual encoder": plain + 0.08 + noise[0],
        "GNN-encoder": plain + np.where(cold, -0.05, 0.25) + noise[1],
    }
    advice = chosen(values, {"warm": ~cold, "cold": cold})
    assert advice.system == advice.best == "BM25 + Dual encoder"
    text = sentence(advice, "MRR@10", 200)
    assert "; GNN-encoder has" in text and "80 cold queries" in text and "the best of" not in text
    assert chosen(values).system == "GNN-encoder"  # control


def test_a_reranked_system_has_to_be_significantly_better_than_its_first_stage(generator):
    plain, noise = generator.random(50), generator.normal(0, 1.0, 50)
    for gain, taken in ((0.02, False), (0.6, True)):  # 50 queries show only the second
        values = {"Dual encoder": plain, "GNN-encoder": plain + noise - noise.mean() + gain}
        advice = recommend(values, ORDER, "Dual encoder", {}, p_value, DEFAULT, {"GNN-encoder": "Dual encoder"})
        assert (advice.system == "GNN-encoder") is taken and advice.highest.system == "GNN-encoder"
        assert chosen(values).system == "GNN-encoder", "a control: another system needs no significance"
    same = {"Dual encoder": plain, "GNN-encoder": plain}
    advice = recommend(same, ORDER, "Dual encoder", {}, p_value, DEFAULT, {"GNN-encoder": "Dual encoder"})
    assert (
        "not significantly above Dual encoder, whose hits it re-ranks" in advice.standing("GNN-encoder").objections[0]
    )


def test_every_system_equals_a_plain_reading_of_the_rule(generator):
    for _ in range(200):
        n = int(generator.integers(5, 60))
        values = {name: np.round(generator.random(n) * generator.random(), 2) for name in ORDER}
        cold = generator.random(n) < 0.5
        advice, fine = chosen(values, {"cold": cold}), []
        for name in ORDER:
            fall = np.array([b - a for a, b, c in zip(values[name], values["Dual encoder"], cold, strict=True) if c])
            if not (len(fall) and fall.mean() > 0.005 and p_value(fall) <= 0.1):
                fine.append(name)
        best = max(fine, key=lambda name: sum(values[name]))
        expected = best
        for name in reversed(fine):
            loss = sum(b - a for a, b in zip(values[name], values[best], strict=True)) / n
            if not (loss > 0.005 or (loss > 0 and p_value(values[best] - values[name]) <= 0.05)):
                expected = name
        assert advice.system == expected


def test_how_often_a_truly_worse_system_is_taken(generator):
    """The shares in the module's docstring: differences of queries are normal with a standard deviation of 0.28."""

    def share(queries, gain, rule):
        taken = 0
        for _ in range(400):
            values = {"Dual encoder": np.zeros(queries), "GNN-encoder": generator.normal(gain, 0.28, queries)}
            taken += chosen(values, rule=rule).system == "Dual encoder"
        return taken / 400

    alone = Rule(margin=1.0)
    for queries, of_test, of_both, equal in (
        (20, 0.92, 0.35, 0.53),
        (100, 0.81, 0.19, 0.57),
        (400, 0.42, 0.04, 0.64),
        (2000, 0.0, 0.0, 0.78),
    ):
        assert share(queries, 0.03, alone) == pytest.approx(of_test, abs=0.08)
        assert share(queries, 0.03, Rule()) == pytest.approx(of_both, abs=0.08)
        assert share(queries, 0.0, Rule()) == pytest.approx(equal, abs=0.08)


def test_the_sentence_has_the_numbers(generator):
    plain = np.full(100, 0.5)
    values = {"Dual encoder": plain, "GNN-encoder": plain + np.tile([0.1, -0.092], 50)}
    text = sentence(chosen(values), "MRR@10", 100)
    assert text.startswith("Recommended: Dual encoder (MRR@10 0.500 on 100 dev queries), the simplest")
    assert "GNN-encoder (0.504" in text
    assert "the best of 2 systems" in sentence(chosen({**values, "Dual encoder": plain + 1}), "MRR@10", 100)
