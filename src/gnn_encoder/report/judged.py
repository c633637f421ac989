"""Tables and lines about systems that a language model and people have judged."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.prediction_powered import Interval
from gnn_encoder.judging.agreement import Agreement, Compared
from gnn_encoder.judging.people import Decided
from gnn_encoder.report.table import figures_table


def comparison_table(figures: Compared) -> Table:
    """Returns a block for each measure: a system's mean by the judge, by people, and by both, and its gain."""
    with_people = bool(figures.labelled)
    table = figures_table(("judge", *(("people", "corrected", "λ") if with_people else ()), "gain"))
    table.columns[0].overflow = "fold"
    for measure, means in figures.means.items():
        table.add_row(f"[dim]{mean_name(measure)}[/dim]")
        for system, mean in means.items():
            cells = [f"{mean.judged.estimate:.3f}"]
            if with_people:
                cells += [f"{mean.human.estimate:.3f}", _interval(mean.corrected), f"{mean.weight:.2f}"]
            if gain := figures.gains[measure].get(system):
                mark = "*" if gain.corrected.excludes_zero else " "
                value = _interval(gain.corrected, "+") if with_people else f"{gain.judged.estimate:+.3f}"
                cells.append(f"{value}{mark}")
            table.add_row(Text(system), *cells)
        table.add_section()
    return table


def comparison_lines(agreed: Agreement | None, figures: Compared, relevant: int) -> list[str]:
    """Returns what the table's columns mean, and how far the judge agrees with people."""
    first = next(iter(next(iter(figures.means.values()))))
    lines = [f"{figures.queries:,} queries; grades from {relevant} are relevant"]
    if not figures.labelled:
        return [
            *lines,
            "no query has a label by people: these figures are the judge's alone, and its errors are in them",
        ]
    lines += [
        f"people: {figures.labelled:,} of these queries have a label",
        "corrected: by both, with the weight λ of the judge, whose errors are taken off; ±: 95 % interval",
        f"* the interval of the gain over {first} is without 0",
    ]
    if agreed:
        basis = "hits; those without a label count as not relevant" if agreed.assumed else "labelled hits"
        lines += _agreement_lines(agreed, basis)
    taus = [f"{measure} {tau:.2f}" for measure, tau in figures.tau.items() if tau is not None]
    return [*lines, f"Kendall's τ of the systems' order, people and judge: {', '.join(taus)}"] if taus else lines


def people_lines(decided: Decided, grades: int, agreed: Agreement | None, systems: Sequence[str]) -> list[str]:
    """Returns what people's grades, so many, say of the systems; gains are over the first of them."""
    lines = [
        f"people gave {grades:,} grades on the page of `serve`; {decided.judged:,} of the {decided.deciding:,} queries "
        "whose labels make a difference are judged in full, each counted by its chance"
    ]
    lines += _agreement_lines(agreed, "graded hits, most of decisive queries") if agreed else []
    over = f" over {systems[0]}" if len(systems) > 1 else ""
    for measure, gains in decided.gains.items():
        for system, gain in gains.items():
            ways = f"people alone {_interval(gain.human, '+')}, λ {gain.weight:.2f}"
            known = f"corrected {_interval(gain.corrected, '+')} ({ways})"
            is_known = math.isfinite(gain.corrected.high)
            lines.append(f"{mean_name(measure)} {system}{over}: {known if is_known else 'not known yet'}")
    return lines


def _agreement_lines(agreed: Agreement, basis: str) -> list[str]:
    kappa = "κ is not defined" if agreed.kappa is None else f"κ {agreed.kappa:.2f}"
    lines = [
        f"agreement with people on {agreed.pairs:,} {basis}: {100 * agreed.equal:.0f} % equal, {kappa}; relevant to "
        f"the judge alone {100 * agreed.too_kind:.0f} %, to people alone {100 * agreed.too_strict:.0f} %"
    ]
    if agreed.graded_equal is not None and agreed.graded_kappa is not None:
        equal = f"{100 * agreed.graded_equal:.0f} % are equal"
        lines.append(f"of the grades 0 to 3, {equal}, κ {agreed.graded_kappa:.2f}")
    return lines


def _interval(interval: Interval, sign: str = "") -> str:
    return f"{interval.estimate:{sign}.3f} ±{interval.high - interval.estimate:.3f}"
