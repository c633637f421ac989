"""Adds a re-ranker to the bundle whose hits it was trained on."""

import json
from dataclasses import replace
from pathlib import Path

from gnn_encoder.artifacts import Bundle, Dataset, Draft, Evaluation, read_manifest
from gnn_encoder.artifacts.bundle import SERVING, Reranking
from gnn_encoder.artifacts.calibration import CALIBRATION, Calibration
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import dev_values
from gnn_encoder.evaluation.measures import labelled_queries, mean_name
from gnn_encoder.evaluation.significance import paired
from gnn_encoder.promotion.model_card import Described
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.reranking import BundleReranker


@step(bundle="bundle")
def bundle_reranker(
    context: Context,
    settings: BundleReranker,
    first_stage: Path,
    reranker: Path,
    bundle: Draft,
    dataset: Path | None = None,
    evaluation: Path | None = None,
    runs: list[Path] | None = None,
) -> Metrics:
    """Copies the bundle of the first stage, with the re-ranker in place of any earlier one.

    `runs` are of the first stage and of re-rankers, as evaluated. With them, a search re-ranks as the re-ranker's run
    did: unasked if that is significantly better on dev, the rule of `evaluation.recommendation`, otherwise on request.

    Raises:
        UserError: no run is of the re-ranker.
    """
    source = Bundle.read(first_stage)
    source.copy_to(bundle, reranker)
    headline = f"{len(source.passages):,} passages, with a re-ranker"
    if not (dataset and evaluation and runs):
        return {"passages": len(source.passages), "headline": headline}
    scorer = read_manifest(reranker, "model").digest
    best = next((run for run in runs if read_manifest(run, "run").inputs.get("scorer") == scorer), None)
    if not best:
        raise UserError(f"no run is of the re-ranker {reranker}: run rerank with it first")
    data, evaluated, history = Dataset(dataset), Evaluation.read(evaluation), read_history(first_stage)
    serving, how, title = source.serving.first_stage, read_manifest(best).settings, System.of(best).name
    of_run = {name: how[name] for name in ("depth", "precision", "tokens_per_batch")}
    is_better = False
    if values := dev_values(data, [runs[0], best], settings.measure):
        gains, of = values[1] - values[0], Evaluate.model_validate(evaluated.manifest.settings)
        p = paired(gains, of.test, of.permutations, of.seed)
        is_better = bool(p <= settings.significance and gains.mean() > 0)
        headline = (
            f"{title}: dev {mean_name(settings.measure)} {gains.mean():+.3f} against {serving.system} (p {p:.2g})"
        )
    reranking = Reranking(serving.system, 1.0, **of_run, is_default=is_better)
    served = replace(serving, system=title if is_better else serving.system, reranking=reranking)
    (bundle / SERVING).write_text(json.dumps(served.facts(), indent=1), encoding="utf-8")
    headline += ", so a search re-ranks" if is_better else ", so a search re-ranks on request"
    facts = {"system": title if is_better else evaluated.metrics["baseline"], "sentence": headline}
    hits = evaluated.dev_first(facts["system"])
    if "dev" not in data.written_splits and len(hits.score):  # the first stage's calibration is of another ranking
        Calibration.of(data, labelled_queries(data.judged("dev")), hits, served.system).write(bundle / CALIBRATION)
    readme = Described(source, served, data, history, facts, evaluated).readme(reranker=True)
    (bundle / README).write_text(readme, encoding="utf-8")
    return {"passages": len(source.passages), "headline": headline}
