"""Whether a retraining would make anything new, and what came of it in Markdown.

What a run is made of, its data, settings and code, is told by three digests, which `promote` writes to the version
that it registers. Where the champion or the newest version has the same three, the run's answer is known: such a
model serves already, or was refused or rolled back.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gnn_encoder.artifacts.report import Decision
from gnn_encoder.errors import Missing, UserError, without_password
from gnn_encoder.evaluation.gate import KEEP
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.pipeline_run import impatient
from gnn_encoder.registry import CHAMPION, DECISION, REASON, Registry, Version
from gnn_encoder.settings import Settings
from gnn_encoder.steps.step import ORIGIN, StepArguments


class Job(Protocol):
    """A training pipeline that may run: `jobs.Training` here, `kubeflow.jobs.ClusterTraining` on a cluster."""

    @property
    def settings(self) -> Settings:
        """Of its steps."""

    def models(self) -> Registry:
        """Where its versions are registered."""

    def arguments(self, registry: str = "") -> dict[str, str]:
        """What its steps are called with."""


@dataclass(frozen=True)
class Plan:
    """What there is to do."""

    arguments: Mapping[str, str]
    """Of the pipeline's steps."""
    same: Version | None
    """A version that was made of the same: there is nothing to do."""
    news: str
    """What has changed, or that nothing has, in a sentence."""
    known: frozenset[str]
    """Numbers of the versions that were registered when it was made."""


def plan(job: Job) -> Plan:
    """Compare what would run with what is registered.

    Raises:
        UserError: the registry, the data source or a backbone cannot be read.
    """
    name, versions = job.settings.promote.model_name, []
    with contextlib.suppress(Missing), impatient():  # missing of a root in which nothing ran yet
        versions = job.models().versions()
    known = frozenset(version.number for version in versions)
    newest = next(iter(versions), None)
    champion = next((version for version in versions if CHAMPION in version.aliases), None)
    # A step that was decided against another champion must not be reused.
    arguments = job.arguments(f"after {newest.number}" if newest else "")
    origin = _origin(arguments)
    for version in filter(None, (champion, newest)):
        if not changed(origin, version):
            news = f"nothing to do: data, settings and code are those of {described(version)}"
            return Plan(arguments, version, news, known)
    if not newest:
        return Plan(arguments, None, f"no version of {name} is registered yet", known)
    last = champion or newest
    differing = ", ".join(part.removeprefix("run.") for part in changed(origin, last))
    return Plan(arguments, None, f"changed since {described(last)}: {differing}", known)


def registered_facts(plan: Plan, models: Registry) -> dict[str, Any]:
    """The facts of the `Decision` on what a plan's run registered, from where `promote` logged it.

    Raises:
        UserError: there is no new version of the plan's data, settings and code, or its decision cannot be read.
    """
    origin, store = _origin(plan.arguments), without_password(models.uri)
    fresh = (version for version in models.versions() if version.number not in plan.known)
    made = next((version for version in fresh if not changed(origin, version)), None)
    if not made:
        raise UserError(
            f"the run succeeded, but no new version of {models.name} is in {store}: KFP reused an earlier run's "
            "promote from its cache (caching: false in the cluster file), or the steps use another MLflow"
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Decision.logged_facts(models.logged(made, "decision", folder))
    except (UserError, OSError) as error:
        told = f"{made.tags.get(DECISION)}: {made.tags.get(REASON)}"
        raise UserError(
            f"version {made.number} is registered ({told}), but not its decision's figures: {error}"
        ) from None


def _origin(arguments: Mapping[str, str]) -> dict[str, str]:
    digests = StepArguments.model_validate_json(arguments["promote"]).source_digests
    return {part: digests[part] for part in ORIGIN}


def changed(origin: Mapping[str, str], version: Version) -> list[str]:
    """Which of a run's digests differ from those of a version."""
    return [part for part, digest in origin.items() if version.tags.get(part) != digest]


def described(version: Version) -> str:
    """A version, and what became of it."""
    if CHAMPION in version.aliases:
        return f"version {version.number}, the champion"
    if version.tags.get(DECISION) == KEEP:
        return f"version {version.number}, which was kept back ({version.tags.get(REASON)})"
    return f"version {version.number}, which is not the champion any more"


def summary(news: str, facts: Mapping[str, Any], uri: str, links: Mapping[str, object]) -> str:
    """What a retraining came to, in Markdown: the verdict, each measure of old and new, and where to look.

    Args:
        news: why it ran.
        facts: of its `Decision`.
        uri: of the MLflow store that it is registered in.
        links: what else there is to look at, by a name for it.
    """
    lines = [
        f"## {facts['model_name']}: {facts['decision']}",
        "",
        f"{facts['reason']}.",
        "",
        f"Trained because: {news}.",
        "",
        *(_table(facts["version"], facts["comparison"]) if facts["comparison"] else _figures(facts)),
        "",
    ]
    store = without_password(uri)
    server = store.startswith("http")
    places = {
        "registered": f"{store}/#/models/{facts['model_name']}/versions/{facts['version']}" if server else store,
        "bundle": facts["bundle"],
        **links,
    }
    return "\n".join([*lines, *(f"- {name}: {where}" for name, where in places.items())]) + "\n"


def _table(version: str, found: Mapping[str, Any]) -> list[str]:
    old, new = found["champion"], found["challenger"]
    rows = [
        f"| {found['queries']:,} queries | version {found['version']} | version {version} | difference | p |",
        "|---|---|---|---|---|",
    ]
    for measure, value in new["means"].items():
        before, p = old["means"][measure], found["p_values"][measure]
        rows.append(f"| {mean_name(measure)} | {before:.4f} | {value:.4f} | {value - before:+.4f} | {p:.2g} |")
    for words, cost in {"ms for a question": "query_ms", "index bytes for a passage": "index_bytes"}.items():
        rows.append(f"| {words} | {old[cost]:,.1f} | {new[cost]:,.1f} | × {new[cost] / old[cost]:.2f} | |")
    if found["gone"]:
        rows += ["", f"{found['gone']:,} of the former champion's passages are no longer in the data."]
    return rows


def _figures(facts: Mapping[str, Any]) -> list[str]:
    rows = [f"| {facts['split']} | version {facts['version']} |", "|---|---|"]
    return [*rows, *(f"| {mean_name(name.partition('/')[2])} | {v:.4f} |" for name, v in facts["figures"].items())]
