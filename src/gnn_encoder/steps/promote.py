"""Step 15: registers the bundle, and moves the alias `champion` to it if it passes the gate.

The rule is `evaluation.gate`'s, the comparison with the champion `evaluation.champion`'s. The comparison takes minutes
and is made out of turn. In its turn the step looks whether the champion is still the one that it compared with, and
if not decides again: of two runs that end at once, one wins against the old champion, and the other meets the new one.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Report, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.context import Context
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.evaluation.champion import compare_with_champion
from gnn_encoder.evaluation.gate import KEEP, Comparison, Verdict, decide
from gnn_encoder.evaluation.model_card import model_card
from gnn_encoder.registry import BUNDLE, CHAMPION, DECISION, DIGEST, REASON, Registry, Version, registry_of
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings import Evaluate, Promote
from gnn_encoder.steps.step import ORIGIN, Metrics, step
from gnn_encoder.storage import Transfer, address_of, local_folder, put_folder
from gnn_encoder.storage.listing import list_folder


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
    models = registry_of(context.run, settings.model_name)
    if models:
        facts, card = _registered(challenger, models)
    else:
        verdict, _ = challenger.judged(None)
        reason = f"{verdict.reason}; nothing registered, as no tracking store is configured"
        verdict, where = Verdict(verdict.decision, reason), str(bundle.resolve())
        facts, card = challenger.facts(verdict, None, where), challenger.card(verdict, where)
    Decision.write(decision, facts, card)
    context.run.artifact(decision.path, "decision")
    return {
        "promoted": int(facts["decision"] != KEEP),
        "gain": challenger.value - challenger.baseline,
        "headline": f"{facts['decision']}: {facts['reason']}",
    }


def _registered(challenger: "_Challenger", models: Registry) -> tuple[dict[str, Any], str]:
    """Decide until no other process has moved the alias meanwhile, and register: the decision's facts and card."""
    where = challenger.kept_at()
    while True:
        champion = models.at(CHAMPION)
        verdict, comparison = challenger.judged(champion)
        card = challenger.card(verdict, where)
        with models.turn():
            if _number(models.at(CHAMPION)) != _number(champion):
                continue
            tags = {**challenger.tags(), DECISION: verdict.decision, REASON: verdict.reason}
            version = models.register(where, tags, challenger.figures, card)
            if verdict.promoted:
                models.promote(version)
        before = {"version": version, "champion_before": _number(champion)}
        return challenger.facts(verdict, comparison, where) | before, card


def _number(version: Version | None) -> str | None:
    return version.number if version else None


class _Challenger:
    """A bundle before the gate, with its evaluation."""

    def __init__(self, context: Context, settings: Promote, report: Report, data: Dataset, bundle: Path) -> None:
        self._context, self._settings, self._report, self._data = context, settings, report, data
        self._bundle, self._digest = bundle, read_manifest(bundle).digest
        self._metrics = report.metrics
        self._split = self._metrics["headline_split"]
        systems = self._metrics["results"][self._split]
        candidate = systems[self._metrics["candidate"]]
        self.figures = {f"{self._split}/{measure}": value for measure, value in candidate.items()}
        self.value, self.baseline = candidate[settings.measure], systems[self._metrics["baseline"]][settings.measure]

    def judged(self, champion: Version | None) -> tuple[Verdict, Comparison | None]:
        """The gate's verdict, and the comparison with the champion that it rests on, where there is one."""
        against: Comparison | str = "there was no champion"
        if champion and champion.tags.get(DIGEST) == self._digest:
            return Verdict(KEEP, f"this very bundle is the champion already, version {champion.number}"), None
        if champion:
            against = self._compared(champion)
        verdict = decide(self._settings, self._split, self.value, self.baseline, against)
        return verdict, against if isinstance(against, Comparison) else None

    def _compared(self, champion: Version) -> Comparison | str:
        lost = f"the bundle of the champion, version {champion.number}, cannot be read any more"
        try:
            # A cluster's pipeline writes no index beside it, but the manifest is checked. An object store that cannot
            # be used just now is an error: no reason to give up the champion.
            folder = local_folder(champion.tags.get(BUNDLE, ""), indexed=False)
        except Missing as error:
            return f"{lost} ({error})"
        try:
            former = Searcher(Bundle.read(folder))
        except UserError as error:
            return f"{lost} ({error})"
        settings = Evaluate.model_validate(self._report.manifest.settings)
        measures = dict.fromkeys((*settings.measures, self._settings.measure, *self._settings.floors))
        return compare_with_champion(
            self._data, self._split, Searcher(Bundle.read(self._bundle)), former, champion.number, tuple(measures),
            settings, lambda name, total: self._context.progress(f"{name}: encoding", total, "queries"),
        )  # fmt: skip

    def kept_at(self) -> str:
        """Where the bundle lies for whoever finds it in the registry."""
        if not (store := self._settings.bundle_store):
            return address_of(self._bundle)
        address = f"{store.rstrip('/')}/{self._digest}"
        try:
            list_folder(address)  # it is there already, and may be in service
        except UserError:
            put_folder(self._bundle, address, Transfer(f"sending {self._bundle}"))
        return address

    def tags(self) -> dict[str, str]:
        """Of the version, besides the decision."""
        origin = {name: digest for name, digest in self._context.sources.items() if name in ORIGIN}
        return {**origin, DIGEST: self._digest, "evaluation.digest": self._metrics["digests"][self._split]}

    def facts(self, verdict: Verdict, comparison: Comparison | None, where: str) -> dict[str, Any]:
        """What `decision.json` holds."""
        return {
            "decision": verdict.decision,
            "reason": verdict.reason,
            "split": self._split,
            "figures": self.figures,
            "baseline": self.baseline,
            "settings": self._settings.model_dump(mode="json"),
            "comparison": comparison and asdict(comparison),
            "model_name": self._settings.model_name,
            "version": None,
            "champion_before": None,
            "bundle": where,
            "bundle_digest": self._digest,
        }

    def card(self, verdict: Verdict, where: str) -> str:
        """The model card."""
        return model_card(
            self._metrics,
            read_history(self._report.path),
            headline=self._report.manifest.metrics["headline"],
            verdict=verdict.decision,
            reason=verdict.reason,
            where=where,
            digest=self._digest,
        )
