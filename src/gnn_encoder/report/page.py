"""Writes the report of an evaluation as one HTML page that needs no network.

Charts are Vega-Lite specifications, which the library in the page draws. The hits of all queries are in files beside
the page (`report.queries`); without these, the page shows everything else.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gnn_encoder.artifacts import Manifest
from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.artifacts.report import SETTINGS
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.evaluation.significance import SIGNIFICANT, TESTS
from gnn_encoder.evaluation.similarity import PAPER_TRIPLES, beside_paper
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.explanation.passages import LEGEND
from gnn_encoder.report import charts, systems
from gnn_encoder.report.charts import Spec
from gnn_encoder.report.examples import Example
from gnn_encoder.report.table import is_best, is_significant
from gnn_encoder.settings.measures import of_documents
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.rungs import NAMES
from gnn_encoder.settings.values import StepSettings

SCRIPT, STYLE = "report.js", "report.css"
STEPS = 24
"""Most steps with a bar of their own; the others' times are summed."""


@dataclass(frozen=True)
class Chart:
    """A specification and its caption."""

    spec: Spec
    caption: str


def render_page(
    metrics: dict[str, Any],
    *,
    headline: str,
    drawn: Mapping[str, Spec],
    won: list[Example],
    lost: list[Example],
    manifests: Mapping[str, Manifest],
    history: History,
    browsed: int = 0,
    commands: Mapping[str, str] = {},
    changed: Mapping[str, Mapping[str, Any]] = {},
) -> str:
    """Returns the page.

    Args:
        drawn: charts by name (`report_charts`).
        won, lost: queries of the headline split, with the explanations of hits.
        manifests: manifests of the evaluated artifacts, by name.
        history: records of the steps that wrote the artifacts.
        browsed: number of the headline split's queries in the files beside the page; 0: there are none.
        commands: {title: command} that use the result.
        changed: step → setting → value of the run's settings that differ from the defaults.
    """
    generated = history.get("generate_queries")
    shown = [passage for example in (*won, *lost) for ranking in example.rankings.values() for passage in ranking]
    equal, defaults = systems.distinct(metrics), Settings().model_dump(mode="json")
    split = metrics["headline_split"]
    shown_strata, other_strata = systems.strata(metrics)
    return fill(
        "report.html.j2",
        title=f"{verdict(metrics)['sentence']} – gnn-encoder",
        metrics={"costs": {}, **metrics},
        chosen=systems.chosen(metrics),
        recommended=systems.chosen(metrics) if metrics.get("recommendation") else None,
        headline=headline,
        verdict=verdict(metrics),
        charts=drawn,
        kinds=charts.KINDS,
        parts=systems.blocks(metrics),
        systems=systems.best_first(metrics),
        purposes={
            system: purpose for system in metrics["results"][split] if (purpose := systems.purpose(metrics, system))
        },
        equal=equal,
        small={
            name: {"spec": drawn[f"stratum-{name}"], "meaning": meaning, "queries": part["queries"][split]}
            for name, (meaning, part) in shown_strata.items()
            if f"stratum-{name}" in drawn
        },
        too_few=other_strata,
        drawn=len(systems.drawn(metrics)),
        training={name.removeprefix("training-"): spec for name, spec in drawn.items() if name.startswith("training-")},
        explained=sum(any(p.why or p.parts for r in e.rankings.values() for p in r) for e in (*won, *lost)),
        examples={"won": won, "lost": lost},
        browsed=browsed,
        commands=commands,
        settings={
            step: {name: (value, defaults[step][name]) for name, value in of.items()} for step, of in changed.items()
        },
        manifests=manifests,
        history=history,
        similarity=beside_paper(generated.metrics) if generated else None,
        paper_triples=PAPER_TRIPLES,
        legend=LEGEND,
        explained_by_graph=any(passage.why for passage in shown),
    )


def render_picture(metrics: dict[str, Any]) -> str:
    """Returns a page with the report's first picture alone."""
    return fill(
        "picture.html.j2", metrics=metrics, charts=report_charts(metrics, {}), kinds=charts.KINDS,
        verdict=verdict(metrics),
    )  # fmt: skip


def verdict(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a reader learns first: `sentence`, `facts` by name, and `folded`, on systems with equal figures."""
    split, measure, baseline = metrics["headline_split"], metrics["measures"][0], metrics["baseline"]
    system, name = systems.chosen(metrics), mean_name(metrics["measures"][0])
    means, queries = metrics["results"][split], metrics["queries"][split]
    kind = charts.kind_of(metrics, split, system)
    gain = means[system][measure] - means[baseline][measure]
    against = {
        charts.BETTER: f"significantly above {baseline} ({means[baseline][measure]:.3f})",
        charts.WORSE: f"significantly below {baseline} ({means[baseline][measure]:.3f})",
        charts.EQUAL: f"not significantly different from {baseline} ({means[baseline][measure]:.3f})",
        charts.BASELINE: "the baseline itself",
    }[kind]
    use = "Use " if metrics.get("recommendation") else ""
    low, high = metrics["intervals"][split][system][measure]
    which_queries = of_split(metrics, split).replace(f"{split}, on generated", f"generated {split}")
    which_queries = which_queries if "queries" in which_queries else f"{which_queries} queries"
    facts = {"What it is": purpose} if (purpose := systems.purpose(metrics, system)) else {}
    facts["Measured on"] = f"{queries:,} {which_queries} with the data set's own labels"
    if split in metrics.get("written", ()):
        facts["Measured on"] = f"{queries:,} {which_queries}: a generator wrote them, so people's queries may differ"
    elif split in metrics.get("traffic", {"results": {}})["results"]:
        facts["Measured on"] = f"{queries:,} {which_queries}, all or some of them labelled by clicks in a log"
    if profile := metrics.get("profile"):
        facts["Measured on"] += f"; {profile['passages']:,} passages"
    facts["How sure"] = f"{name} {means[system][measure]:.3f}, 95 % interval {low:.3f}–{high:.3f}"
    p = metrics["p_holm"].get(split, {}).get(system, {}).get(measure)
    if p is not None:
        facts["How sure"] += f"; {gain:+.3f} against {baseline}, Holm-corrected p {p:.2g}"
    least = metrics["detectable"].get(split, {}).get(system, {}).get(measure)
    if least:  # with 0 all queries differ alike, so nothing is known
        facts["Smallest effect"] = (
            f"a true difference of {least:.3f} or more shows in 4 of 5 cases, before Holm's correction"
        )
    if before := [name for name in systems.NO_TRAINING if name in means and name not in (system, baseline)]:
        lower = ((name, means[name][measure], means[name][measure] - means[system][measure]) for name in before)
        facts["Without training"] = ", ".join(f"{name} {mean:.3f} ({less:+.3f})" for name, mean, less in lower)
    share = [metrics[side].get(split, {}).get(system, {}).get(measure) for side in ("better", "worse")]
    if share[0] is not None:
        facts["By query"] = f"better than {baseline} on {share[0]:.0%}, worse on {share[1]:.0%}"
    strata, _ = systems.strata(metrics)
    if strata and system != baseline:
        parts, ahead = [], []
        for stratum, (_, part) in strata.items():
            of = {name: figures[part["measures"][0]] for name, figures in part["results"][split].items()}
            if system in of:
                parts.append(f"{stratum} {of[system] - of[baseline]:+.3f}")
                if of[best := max(of, key=of.__getitem__)] > of[system]:
                    ahead.append(f"{stratum}: {best} {of[best]:.3f} against {of[system]:.3f}")
        facts["By kind of query"] = f"{', '.join(parts)} against {baseline}"
        facts["Another is ahead"] = "; ".join(ahead) or "on none of these kinds"
    if cost := metrics.get("costs", {}).get(system):
        facts["Cost"] = f"{cost['ms']:.1f} ms a question on this machine"
        facts["Cost"] += f", a bundle of {cost['megabytes']:,.0f} MB" if "megabytes" in cost else " to re-rank its hits"
    folded = [f"{one} = {' = '.join(others)}" for one, others in systems.distinct(metrics).items() if others]
    return {
        "sentence": f"{use}{system}: {name} {means[system][measure]:.3f} on {queries:,} {which_queries}, {against}",
        "facts": facts,
        "folded": f"the same figures: {'; '.join(folded)}" if folded else "",
    }


def report_charts(metrics: Mapping[str, Any], history: History) -> dict[str, Spec]:
    """Returns the charts of figures, costs, strata, steps and trainings, by name."""
    split, measure = metrics["headline_split"], metrics["measures"][0]
    name, baseline = mean_name(measure), metrics["results"][split][metrics["baseline"]][measure]
    rows = systems.rows(metrics, split, metrics, systems.best_first(metrics))
    drawn = {"systems": charts.systems_chart(rows, name, baseline, charts.domain_of(rows))}
    if sum("ms" in row for row in rows) > 1:
        drawn["milliseconds"] = charts.cost_chart(rows, "ms", "milliseconds a question", name)
    if sum("megabytes" in row for row in rows) > 1:
        drawn["megabytes"] = charts.cost_chart(rows, "megabytes", "MB of the bundle", name)
    strata, _ = systems.strata(metrics)
    parts = {
        stratum: systems.rows(metrics, split, part, [s for s in systems.drawn(metrics) if s in part["results"][split]])
        for stratum, (_, part) in strata.items()
    }
    if parts:
        domain = charts.domain_of([row for rows_of_stratum in parts.values() for row in rows_of_stratum])
        for stratum, rows_of_stratum in parts.items():
            part = strata[stratum][1]
            mean = part["results"][split][metrics["baseline"]][part["measures"][0]]
            drawn[f"stratum-{stratum}"] = charts.systems_chart(rows_of_stratum, name, mean, domain)
    if answered := metrics.get("answered"):
        drawn["answered"] = charts.line_chart(
            answered["curve"], "share of the dev queries answered", "answered wrongly"
        )
    if history:
        steps = [(title, record.metrics) for title, record in history.items()]
        longest = sorted(steps, key=lambda step: -step[1]["seconds"])[:STEPS]
        shown = [step for step in steps if step in longest]
        seconds_of_steps = [{"step": title, "seconds": round(figures["seconds"], 1)} for title, figures in shown]
        if rest := len(steps) - len(shown):
            seconds = sum(figures["seconds"] for title, figures in steps if (title, figures) not in longest)
            seconds_of_steps.append({"step": f"{rest} other steps", "seconds": round(seconds, 1)})
        memory_of_steps = [{"step": title, "GiB": round(figures["peak_memory_gib"], 2)} for title, figures in shown]
        drawn["seconds"] = charts.time_chart(seconds_of_steps, "seconds", "seconds")
        drawn["memory"] = charts.time_chart(memory_of_steps, "GiB", "GiB")
        tokens = {title: figures.get("tokens_in", 0) + figures.get("tokens_out", 0) for title, figures in steps}
        if any(tokens.values()):
            tokens_of_steps = [{"step": title, "tokens": count} for title, count in tokens.items() if count]
            drawn["tokens"] = charts.time_chart(tokens_of_steps, "tokens", "tokens of a language model")
    return drawn | {f"training-{title}": spec for title, spec in charts.training_charts(history).items()}


def commands(
    folder: Path, history: History, rung: str, rerankers: Sequence[str] = (), explained: bool = False
) -> dict[str, str]:
    """Returns {title: command} that search, explain and serve the result of a run, and repeat the run.

    Args:
        folder: of the report, in ROOT/pipeline/RUN/STEP. Elsewhere ROOT stands for the run's folder.
        rung: the highest rung of a ladder; empty if the run was none.
        rerankers: names of the compared re-rankers. Such a run is only repeated, as it may have no bundle.
        explained: whether the bundle's hits can be explained.
    """
    root = next((str(parent.parent) for parent in folder.absolute().parents if parent.name == "pipeline"), "ROOT")
    bundle = shlex.quote(f"{root}/latest/bundle")
    lines = {}
    if not rerankers:
        lines["Search"] = f"gnn-encoder search 'your question' --bundle {bundle}"
        if explained:
            lines["Explain why its hits are there"] = f"gnn-encoder explain 'your question' --bundle {bundle}"
        lines["Serve over HTTP, with a page"] = f"gnn-encoder serve --bundle {bundle}"
    if dataset := history.get("ingest", Record()).settings.get("dataset"):
        settings = folder.absolute() / SETTINGS if root != "ROOT" else SETTINGS  # beside the page
        until = [word for name, reached in NAMES.items() if reached == rung for word in ("--until", name)]
        compared = ["rerank", "--systems", ",".join(rerankers)] if rerankers else ["run"]
        words = [*compared, "--preset", str(settings), "--dataset", dataset, *until, "--root", root]
        lines["Repeat the run"] = f"gnn-encoder {shlex.join(words)}"
    return lines


def render_ablation(metrics: dict[str, Any], *, headline: str, drawn: list[Chart], settings: StepSettings) -> str:
    """Returns the page of an ablation; `settings` are the settings of the full model."""
    parts = [part for part in systems.blocks(metrics) if part[2] is not metrics]
    values = {"headline": headline, "charts": drawn, "parts": parts, "settings": settings.model_dump()}
    return fill("ablation.html.j2", metrics=metrics, **values)


def render_study(metrics: dict[str, Any], *, headline: str, drawn: Mapping[str, Chart]) -> str:
    """Returns the page of a study of re-rankers (`report.study`); a table without an entry in `metrics` is left out."""
    split, name = metrics["headline_split"], mean_name(metrics["measures"][0])
    names = systems.best_first(metrics)
    rows = systems.rows(metrics, split, metrics, names)
    mean = metrics["results"][split][metrics["baseline"]][metrics["measures"][0]]
    caption = f"{name} on {of_split(metrics, split)} with 95 % intervals; dashed line: {metrics['baseline']}"
    first = Chart(charts.systems_chart(rows, name, mean, charts.domain_of(rows)), caption)
    values = {"headline": headline, "charts": {"systems": first, **drawn}, "parts": systems.blocks(metrics)}
    return fill("study.html.j2", metrics=metrics, systems=names, equal=systems.distinct(metrics), **values)


def fill(template: str, **values: Any) -> str:
    """Fills a template of this package. All values are escaped, and a missing value is an error.

    A page with `charts` gets the library and the script that draw them. Its policy names both by their digests, so that
    no other script in the page runs, and nothing is loaded but scripts beside it.
    """
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact_json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["json"] = script_json
    environment.filters["mean_name"] = mean_name
    folder = Path(__file__).parent
    drawing = "charts" in values
    scripts = (charts.library(), (folder / SCRIPT).read_text("utf-8")) if drawing else ("", "")
    metrics = values.get("metrics", {})
    return environment.get_template(template).render(
        {
            "title": "gnn-encoder",
            "baseline": metrics.get("baseline"),
            "recommended": None,
            "is_best": is_best,
            "is_significant": is_significant,
            "of_split": of_split,
            "mean_name": mean_name,
            "meaning": MEANING,
            "of_documents": of_documents,
            "significant": SIGNIFICANT,
            "tests": TESTS,
            "drawing": drawing,
            "library": Markup(scripts[0]),
            "script": Markup(scripts[1]),
            "style": Markup((folder / STYLE).read_text("utf-8")),
            "policy": policy(scripts if drawing else ()),
            **values,
        }
    )


def policy(scripts: Sequence[str]) -> str:
    """Returns the content security policy of a page with these inline scripts. Vega compiles functions, so eval."""
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    allowed = ["script-src", *digests, "'unsafe-eval'", "'self'", "file:"] if scripts else ["script-src", "'none'"]
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {' '.join(allowed)}"


def script_json(value: Any) -> Markup:
    """Returns JSON that can stand in a script element: no `<` begins a tag."""
    return Markup(json.dumps(value, ensure_ascii=False).replace("<", "\\u003c"))
