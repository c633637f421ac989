"""The table of all figures, in a terminal and in Markdown."""

import io

from report_inputs import BASELINE, CANDIDATE, fabricated_metrics
from rich.console import Console
from table_cells import printed

from gnn_encoder.cli.console import Lines
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.report.systems import best_first
from gnn_encoder.report.table import columns, markdown, named_figures, results_table


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


def test_table_fits_a_terminal_and_marks_significance() -> None:
    text = printed(results_table(fabricated_metrics()))
    lines = text.splitlines()
    bm25 = [line for line in lines if line.startswith("BM25")]
    assert len(bm25) == 2
    assert bm25[0].count("*") == len(NAMES)
    assert [line.count("*") for line in lines if line.startswith(BASELINE)] == [0, 0]
    labels = [line[:14].rstrip() for line in lines if "0." in line]
    assert labels[:4] == ["BM25", BASELINE, CANDIDATE, "  + BM25"]
    assert len(labels) == 2 * 4 + 1  # and the caption's p; reciprocal rank fusion is not in the table
    assert "Holm-corrected" in text and "…" not in text
    assert any("MRR@10" in line and "R@1000" in line for line in lines)


def test_measures_that_do_not_fit_have_a_table_below() -> None:
    metrics = fabricated_metrics()
    long = {name: f"PRES(doc)@{1000 + number}" for number, name in enumerate(NAMES)}
    for part in ("results", "p_holm"):
        for systems in metrics[part].values():
            for system, values in systems.items():
                systems[system] = {long[name]: value for name, value in values.items()}
    metrics["measures"] = list(long.values())
    lines = printed(results_table(metrics)).splitlines()
    headers = [line.split() for line in lines if "PRES" in line]
    assert [name for header in headers for name in header] == metrics["measures"]
    assert len(headers) > 1
    assert sum(line.startswith(CANDIDATE) for line in lines) == 2 * len(headers), "each table has all systems"
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
