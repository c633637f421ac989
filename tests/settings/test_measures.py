"""Names of measures."""

import ir_measures
import pytest

from gnn_encoder.settings.measures import DEFAULT, Parts, checked, checked_list, cutoff, of_documents, split_names


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("AP", ("AP", "", 1, 0)),
        ("RR(rel=2)@5", ("RR", "", 2, 5)),
        ("nDCG(doc)@10", ("nDCG", "doc", 1, 10)),
        ("R(doc,rel=2)@100", ("R", "doc", 2, 100)),
        ("PRES@100", ("PRES", "", 1, 100)),
        ("Rprec(doc)", ("Rprec", "doc", 1, 0)),
        ("MAP(D)", ("MAP", "D", 1, 0)),
        ("PREC(D,rel=3)@20", ("PREC", "D", 3, 20)),
        ("Judged@10", ("Judged", "", 1, 10)),
    ],
)
def test_a_name_is_taken_apart(name: str, parts: tuple[str, str, int, int]) -> None:
    assert Parts.of_name(name) == parts
    assert cutoff(name) == parts[3]
    assert bool(of_documents([name])) == bool(parts[1])


@pytest.mark.parametrize(
    "name",
    [
        "", "R", "P", "rr@10", "RR@-1", "nDCG(rel=2)@10",
        "MAP", "MAP@5", "MRR@10", "PRES", "PRES(D)@5", "PREC", "MAP(doc)", "AP(D)", "R(doc)", "R()@5",
        "R(,rel=2)@5", "R(doc,)@5", "R(docrel=2)@5", "R(rel=2,doc)@5", "R(rel=0)@5", "R@0", "R@05", "nDCG(rel=2)",
        "nDCG(doc,rel=2)", "Judged", "Judged(doc)@5", "Rprec@5", "R(doc)@100 ", "R(doc)(rel=2)@5", "R@1e3",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no measure known here: write RR@k"):
        checked(name)


@pytest.mark.parametrize("name", ["RR", "RR(rel=2)@10", "nDCG@3", "AP@7", "AP(rel=3)", "Rprec", "P@1", "Success@5"])
def test_a_measure_of_passages_is_one_of_ir_measures(name: str) -> None:
    assert checked(name) == name == str(ir_measures.parse_measure(name))


def test_the_same_measure_of_a_ranking_has_a_plain_name() -> None:
    names = ("R(doc,rel=2)@100", "AP(doc)", "RR(rel=1)@10", "nDCG(doc)@5")
    assert [Parts.of_name(name).plain for name in names] == ["R(rel=2)@100", "AP", "RR@10", "nDCG@5"]
    assert [Parts.of_name(name).plain for name in DEFAULT] == list(DEFAULT)


def test_a_comma_within_brackets_splits_nothing() -> None:
    assert split_names("AP,R(doc,rel=2)@5  MAP(D)\n") == ["AP", "R(doc,rel=2)@5", "MAP(D)"]
    assert checked_list(split_names("PRES(doc)@100, PREC(D)")) == ("PRES(doc)@100", "PREC(D)")
    assert split_names("AP(rel=2 R@5") == ["AP(rel=2", "R@5"]
