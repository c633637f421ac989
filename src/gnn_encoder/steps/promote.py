"""Registers the bundle that the run recommends, and makes it the champion if it passes the gate.

`promotion.gate.decide` is the rule. `promotion.champion` measures the champion, which takes minutes. If another process
has replaced the champion meanwhile, the step decides again, against the new champion.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Evaluation, Graph, Recommended, read_manifest
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines.step import Metrics, step
from gnn_encoder.errors import Missing, Unreachable, UserError
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.flow.arguments import ORIGIN, PLAN
from gnn_encoder.promotion.gate import KEEP, ChampionComparison, Verdict, against_baseline, decide
from gnn_encoder.promotion.model_card import Described
from gnn_encoder.promotion.registry import (
    DECISION,
    DIGEST,
    GENERATED,
    HUMAN,
    QUERIES,
    REASON,
    RUNG,
    Registry,
    Version,
    registry_of,
)
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.measures import ALL, floor_parts
from gnn_encoder.settings.outcome import Evaluate, Promote
from gnn_encoder.settings.rungs import height
from gnn_encoder.settings.systems import DUAL_ENCODER
from gnn_encoder.storage import Transfer, put_folder
from gnn_encoder.storage.transfer import list_folder
from gnn_encoder.tracking.context import Context


@step(decision="decision")
def promote(
    context: Context,
    settings: Promote,
    dataset: Path,
    evaluation: Path,
    recommendation: Path,
    bundle: Path,
    decision: Draft,
    graph: Path | None = None,
) -> Metrics:
    """Decides, registers the bundle as a model version, and moves the alias `champion` if the decision is "promote".

    Raises:
        UserError: the evaluation is of another dataset, the recommendation of another evaluation, or the bundle of
            another recommendation; or the store of the champion's bundle is not usable.
    """
    evaluated, advice = Evaluation.read(evaluation), Recommended.read(recommendation)
    chosen = [Record(), *read_history(bundle).values()][-1].inputs
    for before, after, inputs in (
        (dataset, evaluation, evaluated.manifest.inputs),
        (evaluation, recommendation, advice.manifest.inputs),
        (recommendation, bundle, chosen),
    ):
        if read_manifest(before).digest not in inputs.values():
            raise UserError(f"{after} was not made from {before}: run evaluate, recommend and choose_bundle again")
    challenger = _Challenger(
        context,
        settings,
        evaluated,
        advice,
        Dataset(dataset),
        Bundle.read(bundle),
        Graph.read(graph) if graph else None,
    )
    if models := registry_of(context.log, settings.model_name):
        facts = _registered(challenger, models)
    else:
        facts = challenger.facts(None, str(bundle.resolve()))
        facts["reason"] += "; nothing registered, as no tracking store is configured"
    Decision.write(decision, facts, challenger.card(facts))
    context.log.artifact(decision.path, "decision")
    return {
        "promoted": int(facts["decision"] != KEEP),
        "gain": facts["figures"][f"{facts['split']}/{settings.measure}"] - facts["baseline"],
        "headline": f"{facts['decision']}: {facts['reason']}",
    }


def on_generated(queries: str, champion: Version) -> str:
    """Returns why a bundle that was measured on such queries cannot replace a champion; empty if it can.

    Generated queries quote the passages that they were written for, so figures on them never outdo people's.
    """
    if queries == GENERATED and champion.tags.get(QUERIES, HUMAN) == HUMAN:
        return (
            f"the champion, version {champion.number}, has figures on people's queries, which outweigh generated ones"
        )
    return ""


def _registered(challenger: "_Challenger", models: Registry) -> dict[str, Any]:
    """Decides and registers, again if another process has moved the aliases; returns the facts of the decision."""
    address, model = challenger.stored_bundle(), None
    while True:
        seen = models.aliases()
        facts = challenger.facts(models.find(seen.champion) if seen.champion else None, address)
        if models.aliases() != seen:
            continue
        # A second round has the same model, and the same figures.
        model = model or models.log_model(challenger.bundle, address, facts["figures"], challenger.data.manifest)
        facts["model"] = model
        facts["version"] = version = challenger.register(models, facts)
        if facts["decision"] == KEEP or models.promote(version, seen):
            return facts
        models.withdraw(version)


@dataclass(frozen=True)
class _Challenger:
    """A bundle that the gate decides on, with its evaluation."""

    context: Context
    settings: Promote
    evaluation: Evaluation
    advice: Recommended
    data: Dataset
    bundle: Bundle
    graph: Graph | None

    def facts(self, champion: Version | None, address: str) -> dict[str, Any]:
        """Decides; returns the content of `decision.json` for an unregistered bundle at `address`."""
        digest, measure = self.bundle.manifest.digest, self.settings.measure
        split = self.evaluation.metrics["headline_split"]
        plain = against_baseline(self.evaluation.metrics, self.advice.facts["system"], split)
        figures = plain[ALL].challenger
        comparison: ChampionComparison | str | None = None
        if champion and champion.tags.get(DIGEST) == digest:
            verdict = Verdict(KEEP, f"this very bundle is the champion already, version {champion.number}")
        else:
            below = champion is not None and self._is_of_lower_rung(champion)
            if champion and not below:
                comparison = on_generated(self.queries, champion) or self._compared(champion, split)
            baseline = self.evaluation.metrics["baseline"]
            named = "the dual encoder" if baseline == DUAL_ENCODER else baseline
            alone = "there was no champion"
            if champion and below:
                alone = f"the champion, version {champion.number}, is of a rung below, whose systems were candidates"
            measured = of_split(self.evaluation.metrics, split)
            verdict = decide(self.settings, measured, plain, comparison, named, alone)
        return {
            **asdict(verdict),
            "split": split,
            "recommendation": self.advice.facts,
            "figures": {f"{split}/{name}": mean for name, mean in figures.items()},
            "baseline": plain[ALL].other[measure],
            "strata": {stratum: asdict(paired) for stratum, paired in plain.items()},
            "settings": self.settings.model_dump(mode="json"),
            "comparison": asdict(comparison) if isinstance(comparison, ChampionComparison) else None,
            "model_name": self.settings.model_name,
            "version": None,
            "model": None,
            "champion_before": champion and champion.number,
            "bundle": address,
            "bundle_digest": digest,
        }

    @property
    def queries(self) -> str:
        """Who wrote the queries of the decision: `GENERATED` or `HUMAN`."""
        metrics = self.evaluation.metrics
        return GENERATED if metrics["headline_split"] in metrics.get("written", ()) else HUMAN

    @property
    def rung(self) -> str:
        """The rung of a climb; empty: none."""
        return self.context.title.partition(": ")[2]

    def _is_of_lower_rung(self, champion: Version) -> bool:
        """Whether the champion is of a lower rung of the same climb: its systems were candidates here, too.

        A comparison would hold the costs of a higher rung against it.
        """
        origin = {name: self.context.sources.get(name) for name in ORIGIN}
        is_of_climb = all(digest and champion.tags.get(name) == digest for name, digest in origin.items())
        is_of_climb = is_of_climb and champion.tags.get(PLAN) == self.context.sources.get(PLAN)
        return is_of_climb and 0 <= height(champion.tags.get(RUNG, "")) < height(self.rung)

    def _compared(self, champion: Version, split: str) -> ChampionComparison | str:
        """Returns the comparison with the champion, or the reason why the champion's bundle cannot be read."""
        from gnn_encoder.promotion.champion import compare_with_champion  # imports torch

        folder = None
        try:
            folder = champion.bundle_folder()
            former = Searcher(Bundle.read(folder))
        except UserError as error:
            if not folder and not isinstance(error, Missing):
                raise  # the store is not usable now; a rerun may succeed
            return (
                f"the bundle of the champion, version {champion.number}, cannot be read ({error}): restore it, or "
                "choose another champion with gnn-encoder models promote VERSION"
            )
        evaluate = Evaluate.model_validate(self.evaluation.manifest.settings)
        floors = (floor_parts(name)[1] for name in self.settings.floors)
        measures = dict.fromkeys((*evaluate.measures, self.settings.measure, *floors))
        try:
            return compare_with_champion(
                self.data, split, Searcher(self.bundle), former, champion.number, tuple(measures), evaluate,
                lambda name, total: self.context.progress(f"{name}: encoding", total, "queries"),
            )  # fmt: skip
        except Unreachable as error:
            return (
                f"no comparison with the champion, version {champion.number}, because a vector is missing ({error}): "
                "start the service, or choose another champion with gnn-encoder models promote VERSION"
            )

    def stored_bundle(self) -> str:
        """Returns the address of the bundle for later runs; with `bundle_store`, first sends the bundle there."""
        path = self.bundle.path
        if not (store := self.settings.bundle_store):
            address = self.context.addresses.get("bundle", "")
            return address if "://" in address else str(path.resolve())
        address = f"{store.rstrip('/')}/{self.bundle.manifest.digest}"
        try:
            list_folder(address)  # the bundle exists already, and may be in service
        except UserError:
            put_folder(path, address, Transfer(f"sending {path}"))
        return address

    def register(self, models: Registry, facts: dict[str, Any]) -> str:
        """Registers the bundle as a version; returns the version's number."""
        tags = {name: digest for name, digest in self.context.sources.items() if name in (*ORIGIN, PLAN)}
        tags |= {RUNG: self.rung} if self.rung else {}
        tags |= {DECISION: facts["decision"], REASON: facts["reason"], DIGEST: facts["bundle_digest"]}
        tags[QUERIES] = self.queries
        tags["evaluation.digest"] = self.evaluation.metrics["digests"][facts["split"]]
        return models.register(facts["bundle"], tags, facts["figures"], self.card(facts), facts["model"])

    def card(self, facts: dict[str, Any]) -> str:
        """Returns the model card."""
        history = read_history(self.evaluation.path)
        described = Described(
            self.bundle, self.bundle.serving, self.data, history, self.advice.facts, self.evaluation, self.graph
        )
        return described.model_card(facts)
