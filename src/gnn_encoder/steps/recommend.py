"""Recommends the simplest system that is about as good as the best one on dev (`evaluation.recommendation`).

Reads the figures of the evaluation. The test figures of the recommended system are reported and decide nothing.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Evaluation, Recommended
from gnn_encoder.artifacts.arrays import QUERIES, read_rows
from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.measures import labelled_queries, mean_name
from gnn_encoder.evaluation.recommendation import Recommendation, Rule, sentence
from gnn_encoder.evaluation.recommendation import recommend as recommended
from gnn_encoder.evaluation.shift import Shift, nearest, shift
from gnn_encoder.evaluation.significance import paired
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.settings.measures import COLD, WARM
from gnn_encoder.settings.outcome import Evaluate, Recommend
from gnn_encoder.settings.systems import DPR, DUAL_ENCODER, LEXICAL

DEV, BUNDLED = "dev", f"bundle_dual_encoder: {DUAL_ENCODER}"


@step(recommendation="recommendation")
def recommend(
    context: Context,
    settings: Recommend,
    dataset: Path,
    evaluation: Path,
    recommendation: Draft,
    passage_vectors: Path | None = None,
) -> Metrics:
    """Applies the rule to the dev queries; without any, recommends the baseline.

    With `passage_vectors`, dev queries that are unlike the test queries are weighted (`evaluation.shift`).

    Raises:
        UserError: the evaluation is of other data, or has no run of the baseline.
    """
    data, evaluated = Dataset(dataset), Evaluation.read(evaluation)
    if evaluated.manifest.inputs.get("dataset") != data.manifest.digest:
        raise UserError(f"{evaluation} does not evaluate {dataset}: run evaluate on it first")
    metrics = evaluated.metrics
    baseline, measure = metrics["baseline"], settings.measure
    systems = dict(candidates(settings, metrics))
    if baseline != DPR and _is_dual_encoder(context.history):
        systems = {system: weighting for system, weighting in systems.items() if weighting[0] != DPR}
    if baseline not in systems:
        raise UserError(f"recommend.order lacks {baseline}, which is evaluate.baseline: add it")
    queries = metrics["queries"].get(DEV, 0)
    if queries and DEV in data.written_splits and not settings.by_generated:
        choice = Recommendation(baseline, baseline, ())
        words = (
            f"Recommended: {baseline}, the baseline: the dev queries are generated, so they choose nothing "
            "(recommend.by_generated)"
        )
    elif queries:
        shifted = shift_of(data, passage_vectors) if passage_vectors else None
        choice = _by_rule(settings, data, evaluated, list(systems), shifted)
        which = f"{'generated ' * (DEV in data.written_splits)}dev queries"
        words = sentence(choice, mean_name(measure), queries, which) + (f"; {shifted}" if shifted else "")
    else:
        choice = Recommendation(baseline, baseline, ())
        words = f"Recommended: {baseline}, as the data have no labelled dev query to choose by"
    shown, of_test = metrics["headline_split"], ""
    if shown != DEV:
        which = f"generated {shown} queries" if shown in data.written_splits else shown
        of_test = f"; {_on_test(metrics['results'][shown], which, choice.system, list(systems), measure)}"
    dense, weight, tuned_on = systems[choice.system]
    facts = {
        "evaluation": evaluated.manifest.digest,
        "system": choice.system, "dense": dense or systems[baseline][0] or LEXICAL,
        "weight": weight, "tuned_on": tuned_on, "best": choice.best,
        "reranking": _reranking(metrics, choice.system),
        "measure": measure, "queries": queries, "sentence": words + of_test,
        "standings": [standing._asdict() for standing in choice.standings],
    }  # fmt: skip
    Recommended.write(recommendation, facts)
    figures = {f"{DEV}/{standing.system}/p_against_best/{measure}": standing.p_value for standing in choice.standings}
    return {**figures, "headline": facts["sentence"]}


Weighting = tuple[str, float | None, str | None]
"""The system with the vectors (empty: none), the weight of the vectors (None: no BM25), the split that tuned it."""


def candidates(settings: Recommend, metrics: Mapping[str, Any]) -> Iterator[tuple[str, Weighting]]:
    """Yields the systems of a run that may be recommended, the simplest first, each with how it is served.

    A retriever is followed by its weighted sum with BM25. Without a BM25 index in the bundles there is neither BM25 nor
    a sum. A fusion by ranks cannot be served. A re-ranked system is served as its first stage.
    """
    served = metrics.get("served", {})
    present = set().union(*metrics["results"].values())
    for system in settings.order:
        if system in present and (system != LEXICAL or settings.bm25):
            first = served.get(system)
            alone = ("", 0.0, None) if system == LEXICAL else (system, None, None)
            yield system, (first["dense"], first["weight"], first["tuned_on"]) if first else alone
        for fused, facts in metrics["fusions"].items() if settings.bm25 else ():
            if fused in present and (facts["method"], facts["dense"]) == (CONVEX, system):
                yield fused, (system, facts["weight"], facts["tuned_on"])


def _is_dual_encoder(history: History) -> bool:
    """Whether DPR is the dual encoder itself, because no epoch after it was better on dev."""
    retrieved, bundled = (history.get(title, Record()).inputs for title in ("dense_retrieve", BUNDLED))
    return "dpr" in retrieved and retrieved["dpr"] == bundled.get("dual_encoder")


def shift_of(data: Dataset, passage_vectors: Path) -> Shift | None:
    """Returns how the labelled dev queries differ from the test queries; None: not at all, or too few tell."""
    training, dev = read_rows(passage_vectors, QUERIES), labelled_queries(data.judged(DEV))
    test = np.intersect1d(data.query_rows("test"), evaluated_queries(data))
    if not len(training) or not len(test):
        return None
    near = (nearest(training, vectors_of_queries(passage_vectors, data, rows)) for rows in (dev, test))
    return shift(*near)


def _by_rule(
    settings: Recommend, data: Dataset, evaluated: Evaluation, order: list[str], shifted: Shift | None
) -> Recommendation:
    evaluate = Evaluate.model_validate(evaluated.manifest.settings)
    baseline = evaluated.metrics["baseline"]
    weights = shifted.weights if shifted else None
    served = evaluated.metrics.get("served", {}).items()
    first_stages = {system: facts["reranking"]["first_stage"] for system, facts in served if system in order}
    values = {
        system: (1.0 if weights is None else weights) * evaluated.figures(DEV, system, settings.measure)
        for system in dict.fromkeys([*order, *first_stages.values()])
    }
    strata = warm_strata(data.judged(DEV), data.seen_labels)
    p_value = partial(paired, test=evaluate.test, permutations=evaluate.permutations, seed=evaluate.seed)
    rule = Rule(settings.margin, settings.significance, settings.floor_significance)
    inside = {name: strata.rows(name) for name in (WARM, COLD)}
    return recommended(values, order, baseline, inside, p_value, rule, first_stages, weights)


def _reranking(metrics: Mapping[str, Any], system: str) -> dict[str, Any] | None:
    """Returns how the bundle's re-ranker is used: as the system says, or, on request, as the last one above it does."""
    served = {name: facts["reranking"] for name, facts in metrics.get("served", {}).items()}
    if system in served:
        return dict(served[system])
    above = [how for how in served.values() if how["first_stage"] == system]
    return {**above[-1], "is_default": False} if above else None


def _on_test(results: Mapping[str, Mapping[str, float]], kind: str, chosen: str, order: list[str], measure: str) -> str:
    """Returns the recommended system's figure on queries of a `kind` beside the candidates' highest one, in words."""
    best = max(order, key=lambda system: results[system][measure])
    value = f"on {kind} {chosen} has {results[chosen][measure]:.3f}"
    if best == chosen:
        return f"{value}, the highest there"
    return f"{value}, where the highest is {results[best][measure]:.3f} ({best})"
