"""Registers the bundle that the run recommends, and makes it the champion if it passes the gate.

`promotion.gate.decide` is the rule. `promotion.champion` measures both bundles as they are served. The challenger's
hits are those that the run has evaluated. The champion's take minutes, with a re-ranker up to hours, so they are kept
beside the checkpoints for the next decision on the same queries, such as that of the next rung. If another process has
replaced the champion meanwhile, the step decides again, against the new champion.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Evaluation, Graph, Recommended, Run, drafting, read_manifest
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Metrics, step
from gnn_encoder.errors import Missing, Unreachable, UserError
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.flow.arguments import CODE, ORIGIN, PLAN
from gnn_encoder.promotion.gate import KEEP, ChampionComparison, Verdict, against_baseline, decide
from gnn_encoder.promotion.model_card import Described
from gnn_encoder.promotion.registry import (
    DATASET,
    DECISION,
    DIGEST,
    GENERATED,
    HUMAN,
    QUERIES,
    REASON,
    RUNG,
    SOURCE,
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
from gnn_encoder.tracking.progress import Progress


@step(decision="decision")
def promote(
    context: Context,
    settings: Promote,
    dataset: Path,
    evaluation: Path,
    bundle: Path,
    decision: Draft,
    recommendation: Path | None = None,
    graph: Path | None = None,
    runs: list[Path] | None = None,
) -> Metrics:
    """Decides, registers the bundle as a model version, and moves the alias `champion` if the decision is "promote".

    Without a recommendation, the bundle has the system by which it is served, or the baseline of its evaluation.
    `runs`: of the evaluation, of which the bundle's is not ranked again.

    Raises:
        UserError: the evaluation is of another dataset, the recommendation of another evaluation, or the bundle of
            another recommendation or evaluation; or the store of the champion's bundle is not usable.
    """
    evaluated, bundled = Evaluation.read(evaluation), [Record(), *read_history(bundle).values()][-1]
    advice = Recommended.read(recommendation) if recommendation else None
    for before, after, inputs in (
        (dataset, evaluation, evaluated.manifest.inputs),
        *([(evaluation, recommendation, advice.manifest.inputs)] if recommendation and advice else ()),
        (recommendation or evaluation, bundle, bundled.inputs),
        *((run, evaluation, evaluated.manifest.inputs) for run in runs or ()),
    ):
        if read_manifest(before).digest not in inputs.values():
            raise UserError(f"{after} was not made from {before}: run evaluate, recommend and choose_bundle again")
    opened = Bundle.read(bundle)
    system = opened.serving.system if opened.serving.reranks else evaluated.metrics["baseline"]
    challenger = _Challenger(
        context,
        settings,
        evaluated,
        advice.facts if advice else {"system": system, "sentence": bundled.metrics["headline"]},
        Dataset(dataset),
        opened,
        Graph.read(graph) if graph else None,
        tuple(runs or ()),
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
    if queries == GENERATED and champion.tags.get(QUERIES) == HUMAN:
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
    advice: Mapping[str, Any]
    """The facts of the recommendation."""
    data: Dataset
    bundle: Bundle
    graph: Graph | None
    runs: tuple[Path, ...]

    def facts(self, champion: Version | None, address: str) -> dict[str, Any]:
        """Decides; returns the content of `decision.json` for an unregistered bundle at `address`."""
        digest, measure = self.bundle.manifest.digest, self.settings.measure
        split = self.evaluation.metrics["headline_split"]
        plain = against_baseline(self.evaluation.metrics, self.advice["system"], split)
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
            measured, alone_ms = of_split(self.evaluation.metrics, split), None
            if self.settings.largest_latency_ms and comparison is None:
                from gnn_encoder.promotion.champion import served_ms

                alone_ms = served_ms({"": self._searcher}, self.data, split)[""]
            verdict = decide(self.settings, measured, plain, comparison, named, alone, alone_ms)
        return {
            **asdict(verdict),
            "split": split,
            "recommendation": self.advice,
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

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.bundle)

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
        # A recurring run, or one whose parameter names the data, does not have the digest of the data's source.
        sources, tags = {DATASET: self.data.manifest.digest, **self.context.sources}, champion.tags
        of_run = (DATASET, *ORIGIN[1:])
        is_of_climb = all(sources.get(name) for name in of_run)
        is_of_climb = is_of_climb and all(tags.get(name) == sources.get(name) for name in (*of_run, PLAN))
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
                self.data, split, self._searcher, former, champion.number, tuple(measures), evaluate,
                lambda name, total: self.context.progress(f"{name}: encoding", total, "queries"), self._hits,
            )  # fmt: skip
        except Unreachable as error:
            return (
                f"no comparison with the champion, version {champion.number}, because a vector is missing ({error}): "
                "start the service, or choose another champion with gnn-encoder models promote VERSION"
            )

    def _hits(
        self, searcher: Searcher, data: Dataset, split: str, measures: Sequence[str], settings: Evaluate,
        progress: Callable[[int], Progress],
    ) -> Run:  # fmt: skip
        """As `served_hits`, but takes the hits that the run has evaluated, or that an earlier decision has kept."""
        from gnn_encoder.promotion.champion import ranked_depth, served_hits

        bundle, depth = searcher.bundle, ranked_depth(measures, settings)
        known = [path for path in self.runs if System.of(path).name == bundle.serving.system]
        is_of_run = bundle is self.bundle and bundle.passages.digest == data.passages.digest
        if is_of_run and known and depth == settings.depth:
            return Run.read(known[0]).of(labelled_queries(data.judged(split)), depth)
        ranked = {"bundle": bundle.manifest.digest, "data": data.manifest.digest, "split": split, "depth": depth}
        key = digest_of({**ranked, **settings.speed, "code": (code := self.context.sources.get(CODE))})
        folder = self.context.folder_of_all_calls(f"ranked-{key[:20]}") if code else None
        if folder and folder.is_dir():
            return Run.read(folder)
        hits = served_hits(searcher, data, split, measures, settings, progress)
        if folder:
            with drafting(folder, "run") as draft:
                hits.write(draft, bundle.serving.system)
        return hits

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
        data = self.data.manifest
        tags |= {QUERIES: self.queries, DATASET: data.digest, SOURCE: str(data.settings.get("dataset", ""))}
        tags["evaluation.digest"] = self.evaluation.metrics["digests"][facts["split"]]
        return models.register(facts["bundle"], tags, facts["figures"], self.card(facts), facts["model"])

    def card(self, facts: dict[str, Any]) -> str:
        """Returns the model card."""
        history = read_history(self.evaluation.path)
        described = Described(
            self.bundle, self.bundle.serving, self.data, history, self.advice, self.evaluation, self.graph
        )
        return described.model_card(facts)
