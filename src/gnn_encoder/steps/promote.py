"""Step 15: registers the bundle, and moves the alias `champion` to it if it passes the gate.

The rule is in `evaluation.gate`, the comparison with the champion in `evaluation.champion`. The comparison takes
minutes. If the champion has changed meanwhile, the step decides again: of two runs that end at once, one wins against
the old champion, and the other is compared with the new one.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Report, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.promotion.champion import compare_with_champion
from gnn_encoder.promotion.gate import KEEP, ChampionComparison, Verdict, decide
from gnn_encoder.promotion.model_card import model_card
from gnn_encoder.promotion.registry import DECISION, DIGEST, REASON, Registry, Version, registry_of
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.outcome import Evaluate, Promote
from gnn_encoder.settings.pipeline import ORIGIN
from gnn_encoder.storage import Transfer, put_folder
from gnn_encoder.storage.folders import list_folder
from gnn_encoder.tracking.context import Context


@step(decision="decision")
def promote(context: Context, settings: Promote, dataset: Path, report: Path, bundle: Path, decision: Draft) -> Metrics:
    """Decide, register the bundle as a model version, and move the alias `champion` on "promote" alone.

    Raises:
        UserError: a report of another bundle or data set, or the store of the champion's bundle cannot be used.
    """
    evaluated = Report.read(report)
    for name, path in {"bundle": bundle, "dataset": dataset}.items():
        if evaluated.manifest.inputs.get(name) != read_manifest(path, name).digest:
            raise UserError(f"{report} does not evaluate {path}: run evaluate on it first")
    challenger = _Challenger(context, settings, evaluated, Dataset(dataset), bundle)
    if models := registry_of(context.run, settings.model_name):
        facts = _registered(challenger, models)
    else:
        facts = challenger.facts(None, str(bundle.resolve()))
        facts["reason"] += "; nothing registered, as no tracking store is configured"
    Decision.write(decision, facts, model_card(evaluated, facts))
    context.run.artifact(decision.path, "decision")
    return {
        "promoted": int(facts["decision"] != KEEP),
        "gain": challenger.value - challenger.baseline,
        "headline": f"{facts['decision']}: {facts['reason']}",
    }


def _registered(challenger: "_Challenger", models: Registry) -> dict[str, Any]:
    """Decide and register, again if another process has moved the aliases meanwhile; the decision's facts."""
    where = challenger.kept_at()
    while True:
        seen = models.aliases()
        facts = challenger.facts(models.find(seen.champion) if seen.champion else None, where)
        if models.aliases() != seen:
            continue
        facts["version"] = version = challenger.register(models, facts)
        if facts["decision"] == KEEP or models.promote(version, seen):
            return facts
        models.withdraw(version)


class _Challenger:
    """A bundle before the gate, with its evaluation."""

    def __init__(self, context: Context, settings: Promote, report: Report, data: Dataset, bundle: Path) -> None:
        self._context, self._settings, self._report, self._data = context, settings, report, data
        self._bundle, self._digest = bundle, read_manifest(bundle).digest
        self._metrics = report.metrics
        self._split = self._metrics["headline_split"]
        systems = self._metrics["results"][self._split]
        candidate = systems[self._metrics["candidate"]]
        self._figures = {f"{self._split}/{measure}": value for measure, value in candidate.items()}
        self.value, self.baseline = candidate[settings.measure], systems[self._metrics["baseline"]][settings.measure]

    def _judged(self, champion: Version | None) -> tuple[Verdict, ChampionComparison | None]:
        """The gate's verdict, and the comparison with the champion that it rests on, where there is one."""
        if champion and champion.tags.get(DIGEST) == self._digest:
            return Verdict(KEEP, f"this very bundle is the champion already, version {champion.number}"), None
        against = self._compared(champion) if champion else None
        verdict = decide(self._settings, self._split, self.value, self.baseline, against)
        return verdict, against if isinstance(against, ChampionComparison) else None

    def _compared(self, champion: Version) -> ChampionComparison | str:
        """The comparison with the champion, or why its bundle cannot be read.

        Raises:
            UserError: the store of its bundle cannot be used just now: a rerun may compare.
        """
        try:
            folder = champion.bundle_folder()
        except Missing as error:
            return _unreadable(champion, error)
        try:
            former = Searcher(Bundle.read(folder))
        except UserError as error:
            return _unreadable(champion, error)
        settings = Evaluate.model_validate(read_history(self._report.path)["evaluate"].settings)
        measures = dict.fromkeys((*settings.measures, self._settings.measure, *self._settings.floors))
        return compare_with_champion(
            self._data, self._split, Searcher(Bundle.read(self._bundle)), former, champion.number, tuple(measures),
            settings, lambda name, total: self._context.progress(f"{name}: encoding", total, "queries"),
        )  # fmt: skip

    def kept_at(self) -> str:
        """The bundle's address for whoever finds it in the registry, where it is sent if `bundle_store` says so."""
        if not (store := self._settings.bundle_store):
            address = self._context.addresses.get("bundle", "")
            return address if "://" in address else str(self._bundle.resolve())
        address = f"{store.rstrip('/')}/{self._digest}"
        try:
            list_folder(address)  # it is there already, and may be in service
        except UserError:
            put_folder(self._bundle, address, Transfer(f"sending {self._bundle}"))
        return address

    def register(self, models: Registry, facts: dict[str, Any]) -> str:
        """Make the bundle a version and return its number."""
        origin = {name: digest for name, digest in self._context.sources.items() if name in ORIGIN}
        decided = {DECISION: facts["decision"], REASON: facts["reason"], DIGEST: self._digest}
        tags = {**origin, **decided, "evaluation.digest": self._metrics["digests"][self._split]}
        return models.register(facts["bundle"], tags, self._figures, model_card(self._report, facts))

    def facts(self, champion: Version | None, where: str) -> dict[str, Any]:
        """Decide; what `decision.json` holds, of a bundle that is not registered yet."""
        verdict, comparison = self._judged(champion)
        return {
            "decision": verdict.decision,
            "reason": verdict.reason,
            "split": self._split,
            "figures": self._figures,
            "baseline": self.baseline,
            "settings": self._settings.model_dump(mode="json"),
            "comparison": comparison and asdict(comparison),
            "model_name": self._settings.model_name,
            "version": None,
            "champion_before": champion and champion.number,
            "bundle": where,
            "bundle_digest": self._digest,
        }


def _unreadable(champion: Version, error: UserError) -> str:
    return (
        f"the bundle of the champion, version {champion.number}, cannot be read ({error}): restore it, or choose "
        "another champion with gnn-encoder models promote VERSION"
    )
