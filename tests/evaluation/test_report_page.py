import io
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from gnn_encoder.artifacts import Manifest
from gnn_encoder.evaluation.examples import Example, Found, most_changed
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.plots import gains_plot, systems_plot
from gnn_encoder.evaluation.report import Plot, SplitProfile, render_page
from gnn_encoder.evaluation.results import BASELINE, CANDIDATE, means, p_values
from gnn_encoder.evaluation.table import results_table

VOID = {"meta", "img", "br", "link", "input"}
PNG = b"\x89PNG\r\n\x1a\n"


def fabricated_metrics() -> dict:
    generator = np.random.default_rng(0)
    base = generator.random((300, len(NAMES)))
    values = {"BM25": base * 0.5, BASELINE: base, CANDIDATE: np.clip(base + 0.001, 0, 1)}
    return {
        "measures": list(NAMES),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": "test",
        "results": {"dev": means(values), "test": means(values)},
        "p_values": {split: p_values(values, 200, 0) for split in ("dev", "test")},
        "queries": {"dev": 300, "test": 300},
        "unlabelled_queries": {"dev": 0, "test": 7},
        "digests": {"dev": "d" * 64, "test": "e" * 64},
        "permutations": 200,
        "seed": 0,
    }


class Structure(HTMLParser):
    """Checks that every element is closed where it must be, and collects what is referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.references += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def render(query: str = "what is a river") -> str:
    found = [Found(1, "p1", "stone", "the <b>old</b> stone " + "x" * 1000, True)]
    example = Example("q1", query, {BASELINE: 0.5, CANDIDATE: 1.0}, {BASELINE: found, CANDIDATE: found})
    return render_page(
        fabricated_metrics(),
        headline="GNN-encoder MRR@10 0.5",
        passages=1234,
        profile=[SplitProfile("train", 10, 9, 12), SplitProfile("dev", 0, 0, 0)],
        plots=[Plot(PNG, "a plot")],
        won=[example],
        lost=[],
        manifests={"dataset": Manifest("dataset", 1, step="ingest", rows={"corpus": 1234}, digest="abc")},
        settings={"depth": 1000},
    )


def test_page_is_well_formed_and_refers_to_nothing_outside() -> None:
    structure = Structure()
    page = render()
    structure.feed(page)
    assert structure.open == []
    assert {"main", "table", "caption", "figure", "details"} <= structure.seen
    assert structure.references
    assert all(reference.startswith("data:image/png;base64,") for reference in structure.references)
    assert "url(" not in page
    assert "@import" not in page


def test_page_shows_data_as_text() -> None:
    page = render(query="<script>alert('x')</script>")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "the &lt;b&gt;old&lt;/b&gt; stone" in page
    assert "x" * 400 not in page


def test_page_marks_significant_differences_by_direction() -> None:
    page = render()
    assert page.count('class="worse"') == 2 * len(NAMES)  # BM25, dev and test
    assert "▲</td>" not in page  # a mark is followed by its p-value
    assert "▼<small>p 0.0" in page
    assert "7 without a positive label left out" in page


def test_plots_are_pngs_and_repeatable() -> None:
    metrics = fabricated_metrics()
    gains = np.random.default_rng(1).normal(0, 0.3, 50).round(1)
    for make in (lambda: systems_plot(metrics, "test"), lambda: gains_plot(gains, "RR@10", CANDIDATE, BASELINE)):
        image = make()
        assert image.startswith(PNG)
        assert image == make()
    assert gains_plot(np.zeros(3), "RR@10", CANDIDATE, BASELINE).startswith(PNG)


def test_table_fits_a_terminal_and_marks_significance() -> None:
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(results_table(fabricated_metrics()))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    bm25 = [line for line in lines if line.startswith("BM25")]
    assert len(bm25) == 2
    assert bm25[0].count("*") == len(NAMES)
    assert [line.count("*") for line in lines if line.startswith(BASELINE)] == [0, 0]
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]
    assert any("MRR@10" in line and "R@1000" in line for line in lines)


@pytest.mark.parametrize(
    ("gains", "won", "lost"),
    [([0.1, -0.5, 0.0, 0.9], [3, 0], [1]), ([0.0, 0.0], [], []), ([0.2, 0.2, 0.2], [0, 1], [])],
)
def test_most_changed(gains: list[float], won: list[int], lost: list[int]) -> None:
    best, worst = most_changed(np.array(gains), 2)
    assert (best.tolist(), worst.tolist()) == (won, lost)
