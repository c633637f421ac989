"""Decides whether a retraining is needed, and describes the result of a retraining in Markdown.

The result of a run depends on data, settings and code. `promote` tags the registered version with the digests of the
three. If the champion or the newest version has the same digests, the result of the run is known already: that model is
in service, or was kept back or rolled back.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnn_encoder.artifacts.report import Decision
from gnn_encoder.errors import Missing, UserError, without_password
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.flow.arguments import ORIGIN, StepArguments
from gnn_encoder.flow.graph import Graph
from gnn_encoder.promotion.gate import KEEP, PROMOTE
from gnn_encoder.promotion.registry import CHAMPION, DECISION, REASON, RUNG, Registry, Version
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.tracking.pipeline_run import impatient


class Job(Protocol):
    """A pipeline that can run: `Training` or `Climb` of `engines`, or `kubeflow.submission.ClusterJob`."""

    @property
    def settings(self) -> Settings:
        """The settings of the pipeline's steps."""

    @property
    def graph(self) -> Graph:
        """The calls of the pipeline's steps."""

    def models(self) -> Registry:
        """Returns the registry of the pipeline's model."""

    def arguments(self, registry: str = "") -> dict[str, StepArguments]:
        """Returns the arguments of the calls by title. With another text for `registry`, `promote` decides again."""


@dataclass(frozen=True)
class Plan:
    """A retraining to run, or the reason why none is needed."""

    arguments: Mapping[str, StepArguments]
    """The arguments of the pipeline's steps."""
    origin: Mapping[str, str]
    """The digests of data, settings and code."""
    same: Version | None
    """A version with the same digests; then no retraining is needed."""
    news: str
    """A sentence that names the changes, or says that nothing has changed."""
    known: frozenset[str]
    """Numbers of the versions that are already registered."""


def plan(job: Job) -> Plan:
    """Compares the digests of the job with those of the registered versions; a climb's count from its last rung on."""
    name, versions, champions = job.settings.promote.model_name, list[Version](), frozenset[str]()
    with contextlib.suppress(Missing), impatient():  # no run in this root yet
        versions, champions = job.models().versions(), job.models().champions()
    known = frozenset(version.number for version in versions)
    newest = next(iter(versions), None)
    champion = next((version for version in versions if CHAMPION in version.aliases), None)
    # A decision about another champion must not be reused.
    arguments = job.arguments(f"after {newest.number}" if newest else "")
    last_decision = job.graph.of("promote")[-1]
    digests, rung = arguments[last_decision.title].source_digests, last_decision.label
    origin = {part: digests[part] for part in ORIGIN}
    # A process can end after it has registered a version that passed the gate, and before it moves the aliases.
    undone = newest if newest and newest.tags.get(DECISION) == PROMOTE and newest.number not in champions else None
    if undone is champion:  # a user has set the alias
        undone = None
    for version in filter(None, (champion, None if undone else newest)):
        if not _changed(origin, version) and version.tags.get(RUNG, "") == rung:
            news = f"nothing to do: data, settings and code are those of {_described(version)}"
            return Plan(arguments, origin, version, news, known)
    news = f"no version of {name} is registered yet"
    if undone:
        news = f"version {undone.number} passed the gate, but its promotion did not end"
    elif last := champion or newest:
        differing = ", ".join(part.removeprefix("run.") for part in _changed(origin, last))
        news = f"changed since {_described(last)}: {differing}"
        if not differing:
            news = f"{_described(last)}, is of a rung below {rung}"
    return Plan(arguments, origin, None, news, known)


def registered_facts(plan: Plan, models: Registry) -> dict[str, Any]:
    """Returns the facts of the `Decision` on the version that a plan's run registered, as logged to MLflow.

    Of a climb's versions it is the last one that was promoted, otherwise the last one.
    """
    store = without_password(models.uri)
    fresh = [version for version in models.versions() if version.number not in plan.known]
    fresh = [version for version in fresh if not _changed(plan.origin, version)]
    registered = next((version for version in fresh if version.tags.get(DECISION) != KEEP), next(iter(fresh), None))
    if not registered:
        raise UserError(
            f"the run succeeded, but no new version of {models.name} is in {store}: KFP reused an earlier run's "
            "promote from its cache (caching: false in the cluster file), or the steps use another MLflow"
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Decision.logged_facts(models.logged(registered, "decision", folder))
    except (UserError, OSError) as error:
        decided = f"{registered.tags.get(DECISION)}: {registered.tags.get(REASON)}"
        raise UserError(
            f"version {registered.number} is registered ({decided}), but not its decision's figures: {error}"
        ) from None


def _changed(origin: Mapping[str, str], version: Version) -> list[str]:
    return [part for part, digest in origin.items() if version.tags.get(part) != digest]


def _described(version: Version) -> str:
    if CHAMPION in version.aliases:
        return f"version {version.number}, the champion"
    if version.tags.get(DECISION) == KEEP:
        return f"version {version.number}, which was kept back ({version.tags.get(REASON)})"
    return f"version {version.number}, which is not the champion any more"


def summary(news: str, facts: Mapping[str, Any], uri: str, links: Mapping[str, object]) -> str:
    """Returns a retraining's result in Markdown: decision, measures of the old and the new model, and links.

    Args:
        news: why the retraining ran.
        facts: the facts of its `Decision`.
        uri: the address of the MLflow store with the new version.
        links: name → address of other pages and files.
    """
    store = without_password(uri)
    page = f"/#/models/{facts['model_name']}/versions/{facts['version']}" if store.startswith("http") else ""
    addresses = {"registered": f"{store}{page}", "bundle": facts["bundle"], **links}
    parts = [
        f"## {facts['model_name']}: {facts['decision']}",
        f"{facts['reason']}.",
        f"Trained because: {news}.",
        _comparison(facts["version"], facts["comparison"]) if facts["comparison"] else _figures(facts),
        "\n".join(f"- {name}: {where}" for name, where in addresses.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _comparison(version: str, facts: Mapping[str, Any]) -> str:
    strata, old, new = facts["strata"], facts["champion"], facts["challenger"]
    whole = strata[ALL]
    parts = {name.replace("_", " "): part for name, part in strata.items() if part["queries"] < whole["queries"]}
    measures = list(whole["challenger"])
    compared = [(mean_name(measure), whole, measure) for measure in measures]
    for name, part in parts.items():
        compared.append((f"{mean_name(measures[0])}, {part['queries']:,} {name} queries", part, measures[0]))
    rows = [
        f"| {whole['queries']:,} queries | version {facts['version']} | version {version} | difference | p |",
        "|---|---|---|---|---|",
    ]
    for words, part, measure in compared:
        before, value, p = (part[key][measure] for key in ("other", "challenger", "p_values"))
        rows.append(f"| {words} | {before:.4f} | {value:.4f} | {value - before:+.4f} | {p:.2g} |")
    for words, cost in {"ms for a question": "query_ms", "index bytes for a passage": "index_bytes"}.items():
        rows.append(f"| {words} | {old[cost]:,.1f} | {new[cost]:,.1f} | × {new[cost] / old[cost]:.2f} | |")
    if parts:
        rows += ["", *(f"- {name}: {MEANING[name.replace(' ', '_')]}" for name in parts)]
    if facts["gone"]:
        rows += ["", f"{facts['gone']:,} of the former champion's passages are no longer in the data."]
    return "\n".join(rows)


def _figures(facts: Mapping[str, Any]) -> str:
    rows = [f"| {facts['split']} | version {facts['version']} |", "|---|---|"]
    rows += [f"| {mean_name(name.partition('/')[2])} | {mean:.4f} |" for name, mean in facts["figures"].items()]
    return "\n".join(rows)
