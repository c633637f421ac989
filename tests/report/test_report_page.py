"""What the page of a report says and marks, and that it is well-formed."""

import re

from report_inputs import BASELINE, CANDIDATE, Structure, fabricated_metrics, render, specs

from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import block
from gnn_encoder.report.page import render_study


def test_page_is_well_formed_and_refers_to_nothing_outside() -> None:
    structure = Structure()
    page = render()
    structure.feed(page)
    assert structure.open == []
    assert {"main", "table", "caption", "figure", "details", "nav"} <= {*structure.seen}
    assert structure.references and all(reference.startswith("#") for reference in structure.references)
    inside = {*re.findall(r'id="([^"]+)"', page)}
    assert {reference[1:] for reference in structure.references} - {"training"} <= inside
    assert "url(" not in page and "@import" not in page
    assert len(re.findall("<script>", page)) == 2, "the library, which `render` took out, and the page's own"
    assert "script-src 'sha256-" in page.replace("&#39;", "'") and "default-src 'none'" in page.replace("&#39;", "'")


def test_page_says_how_many_documents_there_are_and_which_test_it_was() -> None:
    plain, metrics = render(), fabricated_metrics() | {"documents": 1234, "test": "t"}
    assert "documents" not in plain.partition("Intervals:")[2].partition("</p>")[0]
    assert "paired randomization test with 200 permutations, Holm" in " ".join(plain.split())
    page = render(metrics=metrics)
    assert "The passages are in 1,234 documents." in page and "Measures with (doc)" not in page
    assert "in a two-sided paired t-test, Holm" in " ".join(page.split())
    first, *others = metrics["measures"]
    for of in (metrics, *metrics["strata"].values()):
        of["measures"] = ["MAP(D)", *others]
    for kind in ("results", "intervals", "p_values", "p_holm", "better", "worse"):
        for systems in [of for part in (metrics, *metrics["strata"].values()) for of in part[kind].values()]:
            for of in systems.values():
                of["MAP(D)"] = of.pop(first)
    for systems in metrics["detectable"].values():
        for of in systems.values():
            of["MAP(D)"] = of.pop(first)
    assert "Measures with (doc) rank documents" in render(metrics=metrics)


def test_page_shows_data_as_text() -> None:
    metrics = fabricated_metrics()
    name = "</script><script>alert(1)</script>"
    for of in metrics["results"], metrics["intervals"]:
        of["test"][name] = of["test"]["BM25"]
    page = render(query="<script>alert('x')</script>", metrics=metrics)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(&#39;x" in page and "\\u003c/script>" in page
    assert any(row["system"] == name for spec in specs(page) for row in spec.get("data", {}).get("values", []))
    assert "the &lt;b&gt;old&lt;/b&gt; stone" in page
    assert "x" * 400 not in page


def test_page_marks_significant_differences_by_direction() -> None:
    page = render()
    # BM25 and the convex fusion: on test, in the answers' table, and in both strata.
    assert page.count(' class="worse"') == 2 * len(NAMES) + 2 * 3 + 2 * 2 * len(NAMES)
    assert '▼<small class="p">p 0.0' in page
    assert "7 test queries without a positive label left out" in page


def test_page_says_how_sure_and_how_it_was_made() -> None:
    metrics, page = fabricated_metrics(), " ".join(render().split())
    low, high = metrics["intervals"]["test"][BASELINE]["RR@10"]
    assert f'<small class="ci">{low:.3f}–{high:.3f}</small>' in page
    assert "weight 0.35 on GNN-encoder and 0.65 on BM25, tuned by MRR@10 on 300 dev queries" in page
    assert "1 / (60 + rank)" in page
    assert "<th>12.34" not in page and "<td>12.34</td>" in page and "<td>–</td>" in page
    for name in ("Judged@10", "Answer@100", "Holm-corrected", "BM25 + GNN-encoder (RRF)"):
        assert name in page


def test_page_tells_how_it_was_made() -> None:
    page = " ".join(render().split())
    assert "12.5</td><td>0.75</td>" in page and "fifty queries" in page
    assert "<dt>heads</dt><dd><code>4</code>" in page and "<dt>code</dt><dd><code>c0de</code>" in page
    assert "test: means over 200 queries with no relevant passage that is relevant to a training" in page
    assert "(210 labels)" in page and "dev: means over 200 queries with a relevant" in page
    assert "the figures of the labels are those of the queries" in page
    assert "removed from the rankings" not in page
    assert "77 triples" in page and "<td>40.00</td><td>20.17</td>" in page
    assert "25 % of the passages are not" in page and "<td>51.2</td>" in page
    seconds = next(spec for spec in specs(page) if "seconds" in str(spec.get("encoding", {}).get("x")))
    assert [row["step"] for row in seconds["data"]["values"]] == ["generate_queries", "train_gnn"]


def test_page_of_artifacts_that_no_step_made() -> None:
    page = render(made_by={})
    assert "SS-BERT" not in page and 'id="training"' not in page


def test_untuned_weights_are_said_to_be() -> None:
    metrics = fabricated_metrics()
    (convex, *_) = metrics["fusions"].values()
    convex |= {"weight": 0.5, "tuned_on": None}
    assert "not tuned: there are no labelled dev queries" in render(metrics=metrics)
    page = render(metrics=metrics | {"written": ["dev"]})
    assert "not tuned: the dev queries are generated, and quote their passages" in page
    assert "dev, on generated queries: 300" in page


def test_a_page_says_that_its_files_have_only_some_queries() -> None:
    assert "Here are 20 of the 300 queries" in render(browsed=20) and "Here are" not in render()


def test_recurring_queries_and_power_have_their_sections() -> None:
    page, metrics = render(), fabricated_metrics()
    assert "test: means over 200 queries that nearly equal no training query" in page
    smallest = metrics["detectable"]["test"]["BM25"]["RR@10"]
    assert f"<td>{smallest:.3f}</td>" in page and "paired test of\n300 queries" in page
    empty = block({}, ("RR@10",), permutations=1, resamples=1, seed=0, baseline=BASELINE)
    metrics["recurrence"] = {"recurring": empty, "unseen": empty}
    assert "nearly equal no training query" not in render(metrics=metrics)


def test_tried_graphs_are_shown_with_what_speaks_against_them() -> None:
    standings = [
        {"variant": "Dual encoder", "mean": 0.5, "objections": []},
        {"variant": "two <layers>", "mean": 0.7, "objections": ["0.020 below"]},
        {"variant": "one layer", "mean": 0.625, "objections": []},
    ]
    choice = {"variant": "one layer", "measure": "RR@10", "queries": 1234, "training": {}, "standings": standings}
    page = render(metrics={**fabricated_metrics(), "graph_choice": choice})
    assert "<strong>one layer</strong>" in page and "0.625" in page and "1,234 dev queries" in page
    assert "two &lt;layers&gt;</th>" in page and "0.020 below" in page
    untried = [None, {}, {**choice, "standings": []}]
    assert not any("Graphs tried" in render(metrics={**fabricated_metrics(), "graph_choice": none}) for none in untried)


def test_a_study_says_what_its_systems_are_tested_against() -> None:
    none = {"dev": {}, "test": {}}
    metrics = fabricated_metrics() | {"study": "s", "gains": none, "gain_p_holm": none}
    metrics |= {name: {} for name in ("efficiency", "diffusion", "words", "thresholds")}
    page = render_study(metrics, headline="compared", drawn={})
    assert f"the first table against {BASELINE}, for the number of systems" in " ".join(page.split())


def test_the_page_shows_what_a_least_confidence_costs() -> None:
    share = {"coverage": 0.42, "wrong": 0.1, "wrong_of_answered": 0.238, "curve": [(0.5, 0.1), (1.0, 0.4)]}
    metrics = fabricated_metrics() | {"answered": {"system": CANDIDATE, "risk": 0.1, **share}}
    page = render(metrics=metrics)
    assert "With min_confidence 0.9 it answers 42 % of them, and 24 % of these answers are wrong" in page
    assert any(
        spec.get("data", {}).get("values") == [{"x": 0.5, "y": 0.1}, {"x": 1.0, "y": 0.4}] for spec in specs(page)
    )
    assert "min_confidence" not in render(), "the control: without 100 dev queries"
