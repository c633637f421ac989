"""Agreement with human labels against scikit-learn, and comparisons that the human labels correct."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from gnn_encoder.judging.agreement import agreement, cohen_kappa, compared, finite
from gnn_encoder.judging.grading import Judgement

QUERIES, DEPTH = 400, 5
SYSTEMS = {"strong": 0.6, "middle": 0.4, "weak": 0.2}


def test_kappa_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    one = random.integers(4, size=300)
    other = np.where(random.random(300) < 0.6, one, random.integers(4, size=300))
    assert cohen_kappa(one, other) == pytest.approx(cohen_kappa_score(one, other))
    assert cohen_kappa(one, one) == 1
    assert cohen_kappa(np.ones(5), np.ones(5)) is None


def judgement(query: str, passage: str, grade: int) -> Judgement:
    return Judgement(query, "text", passage, grade, "", "test")


def test_agreement_counts_pairs_with_both_kinds_of_labels() -> None:
    grades = {("a", "1"): 3, ("a", "2"): 1, ("a", "3"): 2, ("b", "1"): 0, ("c", "1"): 3}
    judgements = [judgement(*pair, grade) for pair, grade in grades.items()]
    human = {("a", "1"): 3, ("a", "2"): 2, ("a", "3"): 0, ("b", "1"): 0, ("z", "9"): 1}
    agreed = agreement(judgements, human, 2)
    assert agreed and not agreed.assumed
    assert (agreed.pairs, agreed.equal, agreed.too_kind, agreed.too_strict) == (4, 0.5, 0.25, 0.25)
    assert agreed.kappa == pytest.approx(cohen_kappa_score([1, 1, 0, 0], [1, 0, 1, 0]))
    assert agreed.graded_equal == 0.5
    assert agreed.graded_kappa == pytest.approx(cohen_kappa_score([3, 2, 0, 0], [3, 1, 2, 0]))
    # Labels that name relevant passages alone: other hits of these queries count as not relevant.
    agreed = agreement(judgements, {("a", "1"): 1, ("b", "5"): 1}, 2)
    assert agreed and agreed.assumed and agreed.graded_equal is None
    assert (agreed.pairs, agreed.equal, agreed.too_kind) == (4, 0.75, 0.25)
    assert agreement(judgements, {("z", "9"): 1}, 2) is None


def data(random: np.random.Generator) -> tuple[dict[str, list[list[str]]], list[str], list[Judgement], dict]:
    """Hits of three systems, and a judge that calls half of what is irrelevant relevant, for the weak one most."""
    queries = [f"q{i}" for i in range(QUERIES)]
    hits = {
        system: [
            [f"{q}-right" if random.random() < share and k == 0 else f"{q}-{system}-{k}" for k in range(DEPTH)]
            for q in queries
        ]
        for system, share in SYSTEMS.items()
    }
    kind = {"strong": 0.05, "middle": 0.3, "weak": 0.6}
    pool = {(q, p) for of_system in hits.values() for q, of in zip(queries, of_system, strict=True) for p in of}
    judgements = []
    for query, passage in sorted(pool):
        chance = kind.get(passage.split("-")[1], 0.95)
        judgements.append(judgement(query, passage, 3 if random.random() < chance else 1))
    return hits, queries, judgements, {(q, f"{q}-right"): 1 for q in queries}


def test_human_labels_correct_a_judge_that_has_a_favourite() -> None:
    random = np.random.default_rng(3)
    hits, queries, judgements, human = data(random)
    inside = of_judge = narrower = 0
    for _ in range(100):
        known = set(random.choice(queries, 80, replace=False))
        some = {pair: label for pair, label in human.items() if pair[0] in known}
        comparison = compared(hits, queries, judgements, some, 2, ["RR@5"])
        assert (comparison.queries, comparison.labelled) == (QUERIES, 80)
        gain = comparison.gains["RR@5"]["weak"]
        full = np.mean([f"{q}-right" in w for q, w in zip(queries, hits["weak"], strict=True)])
        full -= np.mean([f"{q}-right" in s for q, s in zip(queries, hits["strong"], strict=True)])
        inside += gain.corrected.low <= full <= gain.corrected.high
        of_judge += gain.judged.low <= full <= gain.judged.high
        narrower += gain.corrected.high - gain.corrected.low <= gain.human.high - gain.human.low + 1e-12
    assert inside >= 90 and narrower == 100
    assert of_judge == 0, "the control: this judge alone is wrong"


def test_measures_are_of_the_pool_and_a_hit_without_a_grade_is_not_relevant() -> None:
    hits = {"one": [["a", "b"], ["c"]], "other": [["b", "a"], []]}
    judgements = [judgement("q1", "a", 1), judgement("q1", "b", 3), judgement("q2", "x", 3)]
    comparison = compared(hits, ["q1", "q2"], judgements, {}, 2, ["RR@10", "nDCG@10"])
    judged = {system: mean.judged.estimate for system, mean in comparison.means["RR@10"].items()}
    assert judged == {"one": 0.25, "other": 0.5}
    assert comparison.labelled == 0 and comparison.tau["RR@10"] is None
    facts = json.loads(json.dumps(finite(asdict(comparison))))
    assert facts["means"]["RR@10"]["one"]["human"]["estimate"] is None
    # People found nothing relevant for q2: that is a figure, too.
    human = {("q1", "b"): 1, ("q2", "c"): 0}
    comparison = compared(hits, ["q1", "q2"], judgements, human, 2, ["RR@10"])
    assert comparison.labelled == 2
    assert [mean.human.estimate for mean in comparison.means["RR@10"].values()] == [0.25, 0.5]
    # With a lower threshold both hits of q1 are relevant.
    lower = compared(hits, ["q1", "q2"], judgements, {}, 1, ["RR@10"])
    assert lower.means["RR@10"]["one"].judged.estimate == 0.5
