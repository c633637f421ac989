import io
import json
import re
import shlex
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console, RenderableType

from gnn_encoder.artifacts import Dataset, Manifest, Qrels, Report, drafting
from gnn_encoder.artifacts.history import Record
from gnn_encoder.artifacts.tables import CONVEX, RECIPROCAL
from gnn_encoder.cli.console import Lines
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import block, detectable_differences
from gnn_encoder.evaluation.similarity import NAMES as SIMILARITIES
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.report import charts
from gnn_encoder.report.charts import BASELINE as AS_BASELINE
from gnn_encoder.report.charts import cost_chart, gains_chart, library, systems_chart
from gnn_encoder.report.cost import reranking_costs
from gnn_encoder.report.examples import Example, RankedPassage, examples, most_changed
from gnn_encoder.report.page import commands, render_page, render_study, report_charts, verdict
from gnn_encoder.report.picture import systems_picture
from gnn_encoder.report.systems import (
    best_first,
    blocks,
    distinct,
    field_strata,
    is_explained,
    length_strata,
    of_parts,
    rerankers,
    strata,
)
from gnn_encoder.report.table import columns, markdown, named_figures, results_table
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.settings import outcome
from gnn_encoder.settings.presets import load_settings, preset_names, yaml_of

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"
VOID = {"meta", "img", "br", "link", "input"}


def fabricated_metrics() -> dict:
    generator = np.random.default_rng(0)
    base = generator.random((300, len(NAMES)))
    convex, reciprocal = "BM25 + GNN-encoder", "BM25 + GNN-encoder (RRF)"
    parts = {"lexical": "BM25", "dense": CANDIDATE}
    values = {"BM25": base * 0.5, BASELINE: base, CANDIDATE: np.clip(base + 0.001, 0, 1)}
    values |= {convex: base * 0.999, reciprocal: base * 1.01}
    statistics = {"permutations": 200, "resamples": 100, "seed": 0, "test": "randomization"}
    answered = {"test": {system: figures[:50, :3] for system, figures in values.items()}}
    judged = {split: {system: figures[:, :1] for system, figures in values.items()} for split in ("dev", "test")}
    first = {system: figures[:200, :1] for system, figures in values.items()}
    part = {system: figures[:200] for system, figures in values.items()}
    took = {"encode_ms": 12.344, "search_ms": 0.5, "passage_encode_ms": None}
    return {
        **block({"dev": values, "test": values}, NAMES, baseline=BASELINE, **statistics),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": "test",
        "documents": None,
        "unlabelled_queries": {"dev": 0, "test": 7},
        "digests": {"dev": "d" * 64, "test": "e" * 64},
        "fusions": {
            convex: {
                "method": CONVEX, **parts, "weight": 0.35,
                "tuned_on": "dev", "tuned_by": "RR@10", "tuned_queries": 300,
            },
            reciprocal: {"method": RECIPROCAL, **parts, "k": 60},
        },
        "labels": {"Query sum": {"labels": "weight 0.1", "tuned_on": "dev", "tuned_by": "RR@10"}},
        "judged": block(judged, ("Judged@10",), baseline=BASELINE, **{**statistics, "permutations": 0}),
        "strata": {
            "warm": {**block({"dev": part}, NAMES, baseline=BASELINE, **statistics), "labels": {"dev": 250}},
            "cold": {
                **block({"dev": part, "test": part}, NAMES, baseline=BASELINE, **statistics),
                "labels": {"dev": 205, "test": 210},
            },
        },
        "recurrence": {
            name: block({"test": first}, ("RR@10",), baseline=BASELINE, **{**statistics, "permutations": 0})
            for name in ("recurring", "unseen")
        },
        "detectable": {s: detectable_differences(first, ("RR@10",), baseline=BASELINE) for s in ("dev", "test")},
        "answers": block(answered, ("Answer@5", "Answer@20", "Answer@100"), baseline=BASELINE, **statistics),
        "latency": {
            "queries": 200, "hits": 10, "precision": "fp32", "device": "cpu",
            "systems": {BASELINE: took, CANDIDATE: {**took, "passage_propagate_ms": 1.0}},
        },
        "profile": {
            "passages": 1234,
            "splits": {"train": {
                "queries": 10, "labelled": 9, "labels": 12, "warm_queries": 3, "warm_labels": 9, "recurring": 2,
            }},
            "words": {"passages": {"mean": 51.2, "median": 40.0, "most": 99}},
            "degrees": {"mean": 1.5, "median": 1.0, "most": 7},
            "isolated": 0.25,
            "labels_with_neighbors": {"train": 1.0},
        },
        "learned": {"MiM": {"order": 0.25}, "LiM": {"λ": 0.307, "order": 0.125}},
        **statistics,
    }  # fmt: skip


def history() -> dict[str, Record]:
    took = {"seconds": 12.5, "peak_memory_gib": 0.75, "headline": "fifty queries"}
    likeness = dict(zip(SIMILARITIES, (40.0, 30.0, 20.0, 10.0), strict=True))
    trained = {"loss": [(1, 2.0), (2, 1.0)], "dev_pool/RR_at_10": [(1, 0.5)]}
    return {
        "generate_queries": Record({"beams": 1}, {"dataset": "abc"}, metrics={**took, **likeness, "triples": 77}),
        "train_gnn": Record({"heads": 4}, metrics=took, code_digest="c0de", curves=trained),
    }


class Structure(HTMLParser):
    """Checks that every element is closed where it must be, and collects what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


DRAWN = ("lengths", "degrees", "gains")
"""Charts that the step draws itself, of what is not in the metrics."""


def render(
    query: str = "what is a river", metrics: dict | None = None, made_by: dict[str, Record] | None = None,
    browsed: int = 300, changed: Mapping[str, Mapping[str, Any]] = {},
) -> str:  # fmt: skip
    """The page without its library, so that a test reads what is said."""
    found = [
        RankedPassage(
            1, 0, "p1", "stone", "the <b>old</b> stone " + "x" * 1000, True, parts=(Contribution("words", 0.5),)
        )
    ]
    example = Example("q1", query, {BASELINE: 0.5, CANDIDATE: 1.0}, {BASELINE: found, CANDIDATE: found})
    metrics, made = metrics or fabricated_metrics(), history() if made_by is None else made_by
    page = render_page(
        metrics,
        headline="GNN-encoder MRR@10 0.5",
        drawn={**report_charts(metrics, made), **{name: {"mark": name} for name in DRAWN}},
        won=[example],
        lost=[],
        manifests={"dataset": Manifest("dataset", 1, step="ingest", rows={"corpus": 1234}, digest="abc")},
        history=made,
        browsed=browsed,
        commands={"Search": "gnn-encoder search 'x'"},
        changed=changed,
    )
    assert page.count(library()) == 1
    return page.replace(library(), "")


def specs(page: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


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


def test_the_picture_has_all_different_systems_in_the_reports_order(tmp_path: Path) -> None:
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


def test_a_table_has_the_systems_best_first() -> None:
    metrics = fabricated_metrics()
    shown, means = columns(metrics), metrics["results"]["test"]
    assert shown["system"] == best_first(metrics) and len(shown) == 1 + len(NAMES)
    assert shown["MRR@10"] == [means[system]["RR@10"] for system in shown["system"]]
    assert named_figures(metrics)["MRR@10 on test: BM25"] == means["BM25"]["RR@10"]
    first, _, *rows = markdown(metrics).splitlines()
    assert first == "| system | &emsp;MRR@10 | &emsp;nDCG@10 | &emsp;MAP | &emsp;R@5 |" and len(rows) == len(
        shown["system"]
    )
    assert f"| BM25 | &emsp;{means['BM25']['RR@10']:.3f} |" in markdown(metrics)


def test_a_remark_is_below_the_first_of_the_tables_that_have_it() -> None:
    output = io.StringIO()
    screen = Lines(Console(file=output, width=80))
    for remarks in (["dev: read this"], ["dev: read this", "test: and this"]):
        screen._print(screen._with_new_remarks({**fabricated_metrics(), "remarks": remarks}))
    assert [output.getvalue().count(words) for words in ("read this", "and this", "nDCG@10")] == [1, 1, 2]


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


@pytest.mark.parametrize("preset", preset_names())
def test_settings_that_differ_repeat_the_run_also_of_steps_that_did_not_run(preset: str, tmp_path: Path) -> None:
    wanted = [
        "train_gnn.heads=3", "index_bm25.k1=0.9", "encode.query_prompt='query: '", "encode.passage_prompt='3e-5'",
        "bm25_retrieve.eval_depth=2000", "first_stage.eval_depth=1000", "ingest.packages=[\"a\", \"b\"]",
        'choose_graph.variants={"one layer": {"train_gnn.layers": 1}}', "fuse_parts.kinds=[]", "promote.floors={}",
        "evaluate.measures=[\"nDCG@10\", \"RR@10\"]", "train_dual_encoder.matryoshka=[64, 32]", "ingest.dataset=data",
    ]  # fmt: skip
    settings = load_settings(preset, wanted)
    graph = ladder(settings, "labels")
    (page,) = (node.settings for node in graph.of("report") if node.label == "labels")
    assert isinstance(page, outcome.Report) and not graph.of("fuse_parts") and not graph.of("train_gnn")
    with drafting(tmp_path / "pipeline" / "20260101-000000" / "report-labels" / "report", "report") as draft:
        Report.write(draft, metrics={}, plots={}, page="", changed=yaml_of(page.changed))
    ingested = {"ingest": Record({"dataset": "data"})}
    printed = commands(draft.target, ingested, "labels")["Repeat the run"]
    program, command, *words = shlex.split(printed)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert load_settings(options["--preset"], ["ingest.dataset=data"]) == settings != load_settings(preset)
    assert (program, command, options["--until"], options["--dataset"]) == ("gnn-encoder", "run", "labels", "data")
    assert options["--root"] == str(tmp_path)
    of_preset = commands(draft.target, ingested, "")
    assert "--until" not in of_preset["Repeat the run"]
    assert of_preset["Search"].endswith(f"--bundle {tmp_path}/latest/bundle")
    assert list(commands(draft.target, ingested, "", (), True))[1].startswith("Explain") and len(of_preset) == 3
    listed = render(changed=page.changed)
    assert "train_gnn.heads" in listed and "bm25_retrieve.train_depth" not in listed.partition("All settings")[0]


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


def test_gains_are_counted() -> None:
    bars = gains_chart(np.array([1.0, 0.5, -0.25, 0.0, 1.0]), "MRR@10")["data"]["values"]
    assert {bar["from"]: bar["queries"] for bar in bars if bar["queries"]} == {-0.3: 1, 0.5: 1, 0.9: 2}
    assert systems_chart([], "MRR@10", 0.5, [0, 1])["data"]["values"] == []


def test_table_fits_a_terminal_and_marks_significance() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(results_table(fabricated_metrics()))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    bm25 = [line for line in lines if line.startswith("BM25")]
    assert len(bm25) == 2
    assert bm25[0].count("*") == len(NAMES)
    assert [line.count("*") for line in lines if line.startswith(BASELINE)] == [0, 0]
    labels = [line[:14].rstrip() for line in lines if "0." in line]
    assert labels[:4] == ["BM25", BASELINE, CANDIDATE, "  + BM25"]
    assert len(labels) == 2 * 4 + 1  # and the caption's p; reciprocal rank fusion is not in the table
    assert "Holm-corrected" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert any("MRR@10" in line and "R@1000" in line for line in lines)


def test_measures_that_do_not_fit_have_a_table_below() -> None:
    metrics = fabricated_metrics()
    long = {name: f"PRES(doc)@{1000 + number}" for number, name in enumerate(NAMES)}
    for part in ("results", "p_holm"):
        for systems in metrics[part].values():
            for system, values in systems.items():
                systems[system] = {long[name]: value for name, value in values.items()}
    metrics["measures"] = list(long.values())
    lines = printed(metrics, results_table)
    headers = [line.split() for line in lines if "PRES" in line]
    assert [name for header in headers for name in header] == metrics["measures"]
    assert len(headers) > 1
    assert sum(line.startswith(CANDIDATE) for line in lines) == 2 * len(headers), "each table has all systems"
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def printed(metrics: dict, tables: Callable[[dict], RenderableType]) -> list[str]:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(tables(metrics))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("gains", "won", "lost"),
    [([0.1, -0.5, 0.0, 0.9], [3, 0], [1]), ([0.0, 0.0], [], []), ([0.2, 0.2, 0.2], [0, 1], [])],
)
def test_most_changed(gains: list[float], won: list[int], lost: list[int]) -> None:
    best, worst = most_changed(np.array(gains), 2)
    assert (best.tolist(), worst.tolist()) == (won, lost)


def test_a_page_says_that_its_files_have_only_some_queries() -> None:
    assert "Here are 20 of the 300 queries" in render(browsed=20) and "Here are" not in render()


def test_a_passage_is_relevant_from_the_measure_s_level_on(
    tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = Qrels(*(np.array(of, np.int32) for of in ([7, 7], [0, 1], [1, 2])))
    monkeypatch.setattr(Dataset, "judged", lambda *_: graded)
    hits, figures = {"a": np.array([[0, 1, 2]])}, {"a": np.ones(1)}
    for level, expected in ((1, [True, True, False]), (2, [False, True, False])):
        (example,) = examples(tiny_dataset, "test", np.array([0]), figures, hits, level)
        assert [passage.relevant for passage in example.rankings["a"]] == expected


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


def test_a_comparison_of_rerankers_has_its_costs_and_the_command_that_repeats_it() -> None:
    def steps(rate: float) -> dict[str, Record]:
        took = {"pairs": 100, "pairs_per_second": rate}
        return {"rerank: SS-BERT(h)": Record({"system": "SS-BERT(h)", "depth": 50}, metrics=took)}

    weighed = steps(200.0) | {"evaluate_passages: SS-BERT(d)": Record(metrics={"pairs_per_second": 3.0})}
    assert reranking_costs(steps(200.0)) == {"SS-BERT(h)": {"ms": 250.0}} and reranking_costs(steps(0.0)) == {}
    assert reranking_costs(weighed) == {"SS-BERT(h)": {"ms": 250.0}, "SS-BERT(d)": {"ms": 250.0}}
    metrics = {"headline_split": "test", "baseline": "BM25", "candidate": "ColBERT"}
    metrics |= {"results": {"test": {"BM25": {}, "ColBERT": {}, "SS-BERT(h)": {}}}}
    assert rerankers(metrics) == ["ss_bert_h", "colbert"]
    assert rerankers({**metrics, "baseline": "another"}) == []
    printed = commands(Path("report"), {"ingest": Record({"dataset": "data"})}, "", rerankers(metrics))
    command = "gnn-encoder rerank --systems ss_bert_h,colbert --preset settings.yaml --dataset data --root ROOT"
    assert printed == {"Repeat the run": command}


def test_only_hits_with_parts_or_neighbours_are_explained() -> None:
    metrics = {"fusions": {f"BM25 + {dense}": {"dense": dense} for dense in (BASELINE, CANDIDATE, "Query sum")}}
    names = ("BM25", BASELINE, CANDIDATE, "Query sum", "Query adapter", "Linear fusion", "of another package")
    explained = [name for name in (*names, *metrics["fusions"]) if is_explained(metrics, name)]
    plain = {BASELINE, f"BM25 + {BASELINE}", "of another package"}
    assert set(explained) == {*names, *metrics["fusions"]} - plain


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
