"""The systems and kinds of queries that a report shows, in pictures and tables."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from report_inputs import BASELINE, CANDIDATE, fabricated_metrics, render, specs

from gnn_encoder.report import charts
from gnn_encoder.report.charts import BASELINE as AS_BASELINE
from gnn_encoder.report.charts import cost_chart, gains_chart, systems_chart
from gnn_encoder.report.page import verdict
from gnn_encoder.report.picture import systems_picture
from gnn_encoder.report.systems import (
    best_first,
    blocks,
    distinct,
    field_strata,
    is_explained,
    length_strata,
    of_parts,
    strata,
)


def test_the_first_picture_has_every_distinct_system_and_says_how_each_differs() -> None:
    metrics = fabricated_metrics()
    for part in ("results", "intervals", "p_holm"):
        for of in metrics[part].values():
            of["Copy"] = of["BM25"]
    metrics["recommendation"] = {"system": CANDIDATE, "sentence": "Recommended: it", "standings": []}
    assert distinct(metrics)["BM25"] == ["Copy"] and "Copy" not in distinct(metrics)
    alike = {**metrics, "baseline": "BM25", "recommendation": {"system": "Copy"}}
    assert distinct(alike)["Copy"] == ["BM25"] and "BM25" not in best_first(alike), "the recommended one stands for all"
    page = render(metrics=metrics)
    assert "the same figures: BM25 = Copy" in page and "<small>the same figures: Copy</small>" in page
    first, *_ = specs(page)
    rows = {row["system"]: row for row in first["data"]["values"]}
    assert set(rows) == {"BM25", BASELINE, f"★ {CANDIDATE}", "BM25 + GNN-encoder", "BM25 + GNN-encoder (RRF)"}
    assert [row["mean"] for row in rows.values()] == sorted((row["mean"] for row in rows.values()), reverse=True)
    assert rows["BM25"]["kind"] == charts.WORSE and rows[BASELINE]["kind"] == AS_BASELINE
    assert [rows["BM25"]["low"], rows["BM25"]["high"]] == metrics["intervals"]["test"]["BM25"]["RR@10"]
    assert first["layer"][0]["data"]["values"] == [{"baseline": metrics["results"]["test"][BASELINE]["RR@10"]}]
    title = re.search("<h1>(.*?)</h1>", page)
    assert title and title[1].startswith(f"Use {CANDIDATE}: MRR@10 0.") and "300 test queries" in title[1]


def test_a_stratum_is_drawn_if_its_queries_can_say_something() -> None:
    metrics = fabricated_metrics()
    enough, few = strata(metrics)
    assert list(enough) == ["cold", "recurring", "unseen"] and few == []
    for of in metrics["recurrence"].values():
        of["queries"]["test"] = 49
    metrics["strata"]["cold"]["queries"]["test"] = 299
    assert strata(metrics) == ({}, ["cold (nearly all)", "recurring (49)", "unseen (49)"])
    assert "recurring (49)" in render(metrics=metrics)
    assert [name for name, _, _ in blocks(metrics)][:3] == ["all queries", "warm", "cold"]


def test_lengths_are_thirds_with_the_means_of_their_queries() -> None:
    lengths, values = np.arange(90), np.linspace(0, 1, 90)
    parts = length_strata(lengths)
    assert [int(part.sum()) for part in parts.values()] == [30, 30, 30]
    metrics = {"resamples": 50, "seed": 0, "baseline": "a"}
    blocks = of_parts(parts, {"a": values, "b": values**2}, "test", "RR@10", metrics)
    assert blocks["long"]["results"]["test"]["a"]["RR@10"] == pytest.approx(values[60:].mean())
    assert length_strata(np.full(9, 4)) == {}
    metrics = fabricated_metrics()
    said = "Queries by length and by a field: paired t-test, corrected for the systems there."
    assert said not in " ".join(render().split())
    metrics["lengths"] = of_parts(parts, {BASELINE: values, "BM25": values**2}, "test", "RR@10", metrics)
    assert said in " ".join(render(metrics=metrics).split())


def test_values_of_a_field_and_dates_divide_the_queries() -> None:
    values = ["a", "b", "", "a", *"cdefghijk"]
    parts = field_strata("kind", values)
    assert list(parts) == [f"kind: {value}" for value in "abcdefgh"], "the most frequent ones"
    assert np.flatnonzero(parts["kind: a"]).tolist() == [0, 3] and field_strata("", [""] * 5) == {}
    dates = ["2024-01-31", "", "2023-12-31T23:59:59Z", "2024-01-01T01:00:00+02:00", "2025-07-01"]
    parts = field_strata("asked", dates)
    assert {name: np.flatnonzero(part).tolist() for name, part in parts.items()} == {"old": [2, 3], "new": [0, 4]}
    assert list(field_strata("asked", ["2024-01-31", "soon", "soon"])) == ["asked: soon", "asked: 2024-01-31"]
    assert field_strata("text", ["who", "why", "how"]) == {}, "nothing is divided"
    assert field_strata("asked", ["2024-01-31"] * 3) == {}
    parts = field_strata("asked", ["2025-01-01", "2024-01-01", "2025-01-01"])
    assert {name: np.flatnonzero(part).tolist() for name, part in parts.items()} == {"old": [1], "new": [0, 2]}
    metrics, figures = fabricated_metrics(), np.random.default_rng(0).random(300)
    parts = field_strata("kind", ["<b>"] * 100 + ["wine labels"] * 200)
    metrics["fields"] = of_parts(parts, {BASELINE: figures, CANDIDATE: figures**2}, "test", "RR@10", metrics)
    assert {"kind: <b>", "kind: wine labels"} <= strata(metrics)[0].keys() and "kind: &lt;b&gt;" in render(
        metrics=metrics
    )


def test_the_picture_has_all_different_systems_in_the_reports_order() -> None:
    metrics = fabricated_metrics()
    metrics["recommendation"] = {"system": CANDIDATE}
    drawn = systems_picture(metrics)
    assert drawn == systems_picture(metrics)
    texts = [
        "".join(node.itertext()) for node in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]
    systems = [f"★ {system}" if system == CANDIDATE else system for system in best_first(metrics)]
    assert [text for text in texts if text in systems] == systems
    assert f"MRR@10 on test, 95 % intervals; dashed: {BASELINE}" in texts


def test_costs_have_their_front() -> None:
    rows = [
        {"system": name, "mean": mean, "ms": ms, "kind": charts.EQUAL, "recommended": name == "c"}
        for name, mean, ms in (("a", 0.5, 1.0), ("b", 0.4, 2.0), ("c", 0.7, 9.0), ("d", 0.7, 10.0))
    ]
    line, _, *texts = cost_chart([*rows, {"system": "e", "mean": 0.9}], "ms", "ms", "MRR@10")["layer"]
    assert [row["system"] for row in line["data"]["values"]] == ["a", "c"]
    assert [text["data"]["values"][0]["system"] for text in texts] == ["c", "a"]
    cheap = [{**row, "recommended": row["system"] == "a"} for row in rows]
    (text,) = cost_chart(cheap, "ms", "ms", "MRR@10")["layer"][2:]
    assert text["data"]["values"][0]["system"] == "a" and text["mark"]["align"] == "left", "it has no room on its left"


def test_gains_are_counted() -> None:
    bars = gains_chart(np.array([1.0, 0.5, -0.25, 0.0, 1.0]), "MRR@10")["data"]["values"]
    assert {bar["from"]: bar["queries"] for bar in bars if bar["queries"]} == {-0.3: 1, 0.5: 1, 0.9: 2}
    assert systems_chart([], "MRR@10", 0.5, [0, 1])["data"]["values"] == []


def test_labels_from_clicks_are_called_so() -> None:
    metrics = fabricated_metrics()
    assert verdict(metrics)["facts"]["Measured on"].startswith("300 test queries with the data set's own labels")
    metrics["traffic"] = {"results": {"test": {}}, "queries": {"test": 300}}
    assert verdict(metrics)["facts"]["Measured on"].startswith(
        "300 test queries, all or some of them labelled by clicks"
    )
    metrics["traffic"] = {"results": {"dev": {}}, "queries": {"dev": 300}}
    assert "own labels" in verdict(metrics)["facts"]["Measured on"]


def test_the_facts_name_what_needs_no_training_and_where_another_is_ahead() -> None:
    metrics = fabricated_metrics()
    metrics["recommendation"] = {"system": CANDIDATE, "sentence": "Recommended: it", "standings": []}
    means = {system: of["RR@10"] for system, of in metrics["results"]["test"].items()}
    facts = verdict(metrics)["facts"]
    assert facts["Without training"] == f"BM25 {means['BM25']:.3f} ({means['BM25'] - means[CANDIDATE]:+.3f})"
    best, of = "BM25 + GNN-encoder (RRF)", metrics["strata"]["cold"]["results"]["test"]
    ahead = f"cold: {best} {of[best]['RR@10']:.3f} against {of[CANDIDATE]['RR@10']:.3f}"
    assert facts["Another is ahead"].startswith(f"{ahead}; recurring: {best} ")
    for part in (metrics["strata"]["cold"], *metrics["recurrence"].values()):
        part["results"]["test"][CANDIDATE]["RR@10"] = 1.0
    assert verdict(metrics)["facts"]["Another is ahead"] == "on none of these kinds"


def test_only_hits_with_parts_or_neighbours_are_explained() -> None:
    metrics = {"fusions": {f"BM25 + {dense}": {"dense": dense} for dense in (BASELINE, CANDIDATE, "Query sum")}}
    names = ("BM25", BASELINE, CANDIDATE, "Query sum", "Query adapter", "Linear fusion", "of another package")
    explained = [name for name in (*names, *metrics["fusions"]) if is_explained(metrics, name)]
    plain = {BASELINE, f"BM25 + {BASELINE}", "of another package"}
    assert set(explained) == {*names, *metrics["fusions"]} - plain
