"""Measures TREC runs of any systems with qrels, and compares each system with the first."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.documents import Membership
from gnn_encoder.evaluation.measures import labelled_queries, mean_name, per_query
from gnn_encoder.evaluation.results import PerQuery, block
from gnn_encoder.evaluation.significance import SIGNIFICANT, TESTS
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.evaluation.trec import Ids, lines_of, read_qrels, read_run
from gnn_encoder.retrieval.identical import run_without

STATISTICS: dict[str, Any] = {"permutations": 10_000, "resamples": 2000, "seed": 0}
ENDINGS = {".gz", ".txt", ".trec", ".run", ".tsv"}
"""Endings of file names. The name of a system is the file name without endings."""


def compare(
    runs: Sequence[Path],
    qrels: Path,
    measures: Sequence[str],
    membership: Membership | None = None,
    test: str = "randomization",
    ignore_identical_ids: bool = False,
) -> dict[str, Any]:
    """Reads runs and qrels and returns `comparison_of` the runs, with one run in memory at a time.

    A file without any line is the run of a system that found nothing.

    Args:
        membership: says which document each passage is in, for measures of documents.
        ignore_identical_ids: leave out hits with the query's own id, as BEIR does. trec_eval does not.
    """
    query_ids, passage_ids = Ids(), Ids()
    labels = read_qrels(qrels, query_ids, passage_ids)
    queries = labelled_queries(labels)
    if not len(queries):
        raise UserError(f"{qrels} has no positive label, so nothing can be measured")
    values, without_hits, remarks = {}, {}, []
    for path, name in zip(runs, system_names(runs), strict=True):
        run = read_run(path, query_ids, passage_ids)
        if not len(run.query) and any(lines_of(path)):
            raise UserError(f"{path} has no hit for any query of {qrels}: are the query ids the same?")
        identical = np.array([passage_ids.get(query, -1) for query in query_ids], np.int64)
        if alike := int((identical[run.query] == run.passage).sum()):
            done = "counted as in trec_eval; --ignore-identical-ids leaves them out, as BEIR does"
            if ignore_identical_ids:
                run, done = run_without(run, identical), "left out"
            remarks.append(f"{name}: {alike:,} hits have their query's id, {done}")
        passages = passage_ids.column()
        documents = membership.of(passages, f"{path} and {qrels}") if membership else None
        values[name] = per_query(run, labels, queries, passages, measures, documents)
        without_hits[name] = int((~np.isin(queries, run.query)).sum())
    count = len(membership.documents.ids) if membership else None
    unlabelled = len(query_ids) - len(queries)
    return comparison_of(values, measures, unlabelled, without_hits, count, test, remarks=remarks)


def comparison_of(
    values: PerQuery,
    measures: Sequence[str],
    unlabelled: int,
    without_hits: dict[str, int],
    documents: int | None = None,
    test: str = "randomization",
    strata: Mapping[str, PerQuery] | None = None,
    remarks: Sequence[str] = (),
) -> dict[str, Any]:
    """Compares every system with the first; returns the facts of `block` for one split, and the last six arguments.

    Args:
        values: values [queries, measures] of queries with a positive label; a query without a hit counts 0.
        unlabelled: number of queries without a positive label, which are left out.
        without_hits: system → number of the queries without a hit.
        documents: number of documents; None: unknown.
        test: one of `significance.TESTS`.
        strata: stratum → values of its queries; in the result, the facts of a `block`.
        remarks: lines for the notes.
    """

    def facts(values: PerQuery) -> dict[str, Any]:
        block_facts = block({"": values}, measures, **STATISTICS, baseline=next(iter(values)), test=test)
        return {name: fact if name == "measures" else fact[""] for name, fact in block_facts.items()}

    others = {"unlabelled": unlabelled, "without_hits": without_hits, "documents": documents, "test": test}
    others["remarks"] = list(remarks)
    return facts(values) | others | {"strata": {name: facts(part) for name, part in (strata or {}).items()}}


def system_names(runs: Sequence[Path]) -> list[str]:
    """Returns the file names without endings, or the whole paths if two names are equal."""
    short = []
    for path in runs:
        while path.suffix in ENDINGS and path.stem:
            path = path.with_suffix("")
        short.append(path.name)
    names = short if len(set(short)) == len(short) else [str(path) for path in runs]
    if len(set(names)) < len(names):
        raise UserError("a run is named twice: name each file once")
    return names


def comparison_table(comparison: dict[str, Any]) -> Table:
    """Returns the table: a block per measure, a row per system, best means bold, `*` for significant differences.

    Blocks of the first measure in strata of the queries follow; a stratum of all queries is left out.
    """
    first, *others = comparison["results"]
    measures = comparison["measures"]
    blocks = [(mean_name(measure), measure, comparison) for measure in measures] + [
        (f"{mean_name(measures[0])}, {part['queries']:,} {name.replace('_', ' ')} queries", measures[0], part)
        for name, part in comparison["strata"].items()
        if part["queries"] < comparison["queries"]
    ]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for header in ("mean", "95 % interval", *(("gain", "p", "p (Holm)") if others else ())):
        table.add_column(header, justify="right", no_wrap=True)
    for title, measure, part in blocks:
        table.add_row(f"[dim]{title}[/dim]")
        results = part["results"]
        best = max(values[measure] for values in results.values())
        for system, values in results.items():
            low, high = part["intervals"][system][measure]
            mean = f"{values[measure]:.4f}"
            cells = [f"[bold]{mean}[/bold]" if values[measure] == best else mean, f"{low:.4f}–{high:.4f}"]
            if system != first:
                p = part["p_holm"][system][measure]
                gain = values[measure] - results[first][measure]
                mark = "*" if p < SIGNIFICANT else " "
                cells += [f"{gain:+.4f}", f"{part['p_values'][system][measure]:.4f}", f"{p:.4f}{mark}"]
            table.add_row(Text(system), *cells)
        table.add_section()
    return table


def notes(comparison: dict[str, Any]) -> list[str]:
    """Returns the notes below the table, one per line."""
    first, *others = comparison["results"]
    left_out = f"; {comparison['unlabelled']:,} without one left out" if comparison["unlabelled"] else ""
    lines = [f"{comparison['queries']:,} queries with a positive label{left_out}; intervals: bootstrap over queries"]
    if comparison["documents"] is not None:
        lines.append(f"{comparison['documents']:,} documents")
    if others:
        many = "comparisons" if len(others) > 1 else "comparison"
        lines.append(
            f"* differs from {first}: p < {SIGNIFICANT}, {TESTS[comparison['test']]}, "
            f"Holm-corrected for {len(others)} {many}"
        )
    lines += [
        f"{n.replace('_', ' ')}: {MEANING[n]}"
        for n, part in comparison["strata"].items()
        if part["queries"] < comparison["queries"]
    ]
    for system, count in comparison["without_hits"].items():
        if count:
            lines.append(f"{system}: no hit for {count:,} queries, which count 0")
    return [*lines, *comparison["remarks"]]
