"""Made-up figures of a report, and the page of them."""

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Manifest
from gnn_encoder.artifacts.history import Record
from gnn_encoder.artifacts.tables import CONVEX, RECIPROCAL
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import block, detectable_differences
from gnn_encoder.evaluation.similarity import NAMES as SIMILARITIES
from gnn_encoder.report.charts import library
from gnn_encoder.report.examples import Example, RankedPassage
from gnn_encoder.report.page import render_page, report_charts
from gnn_encoder.retrieval.scorers import Contribution

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"


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


DRAWN = ("lengths", "degrees", "gains")
"""Charts that the step draws itself, of what is not in the metrics."""


def render(
    query: str = "what is a river", metrics: dict | None = None, made_by: dict[str, Record] | None = None,
    browsed: int = 300, changed: Mapping[str, Mapping[str, Any]] = {},
) -> str:  # fmt: skip
    """The page without its library, so that a test reads what is said."""
    ranked = [
        RankedPassage(
            1, 0, "p1", "stone", "the <b>old</b> stone " + "x" * 1000, True, parts=(Contribution("words", 0.5),)
        )
    ]
    example = Example("q1", query, {BASELINE: 0.5, CANDIDATE: 1.0}, {BASELINE: ranked, CANDIDATE: ranked})
    metrics, steps = metrics or fabricated_metrics(), history() if made_by is None else made_by
    page = render_page(
        metrics,
        headline="GNN-encoder MRR@10 0.5",
        drawn={**report_charts(metrics, steps), **{name: {"mark": name} for name in DRAWN}},
        won=[example],
        lost=[],
        manifests={"dataset": Manifest("dataset", 1, step="ingest", rows={"corpus": 1234}, digest="abc")},
        history=steps,
        browsed=browsed,
        commands={"Search": "gnn-encoder search 'x'"},
        changed=changed,
    )
    assert page.count(library()) == 1
    return page.replace(library(), "")


def specs(page: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]


VOID = {"meta", "img", "br", "link", "input"}


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
