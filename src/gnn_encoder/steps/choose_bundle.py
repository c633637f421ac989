"""Makes the bundle that a run recommends: a system's bundle, with how a search ranks by it."""

from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import (
    Bundle,
    Dataset,
    DocumentContext,
    Draft,
    Evaluation,
    Graph,
    Recommended,
    read_manifest,
)
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.calibration import CALIBRATION, Calibration
from gnn_encoder.artifacts.finished_run import BUNDLE
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.promotion.model_card import Described
from gnn_encoder.settings.outcome import ChooseBundle
from gnn_encoder.settings.systems import LEXICAL


@step(chosen_bundle="bundle")
def choose_bundle(
    context: Context,
    settings: ChooseBundle,
    dataset: Path,
    bundles: list[Path],
    chosen_bundle: Draft,
    recommendation: Path | None = None,
    evaluation: Path | None = None,
    graph: Path | None = None,
    reranker: Path | None = None,
) -> Metrics:
    """Takes the bundle of the recommended system, or of the system of an earlier run's bundle (`previous`).

    With `reranker`, the bundle gets it, whether its order is recommended or not. The graph is for the
    README only; the evaluation also calibrates the bundle, unless its dev queries are generated. DPR's bundle has no
    files if DPR is not recommended.

    Raises:
        UserError: no bundle is of that system, the recommendation's evaluation did not rank the bundle, or the
            recommendation is not of the given evaluation.
    """
    remark, data = "", Dataset(dataset)
    facts: dict[str, Any] | None = None
    calibration: Calibration | None = None
    if recommendation:
        facts = Recommended.read(recommendation).facts
        serving, system = Serving.of({name: facts.get(name) for name in Serving.__dataclass_fields__}), facts["dense"]
    else:
        former = Bundle.read(Path(settings.previous) / BUNDLE)
        serving, system = former.serving, former.system
        calibration = former.calibration.within(data) if former.calibration else None
        reranker, remark = _reranker(former, data)
        serving = serving if reranker else serving.first_stage
    present = {bundle.system: bundle for bundle in (Bundle.read(path) for path in bundles if read_manifest(path).rows)}
    system = LEXICAL if serving.weight == 0 and LEXICAL in present else system
    if system not in present:
        raise UserError(
            f"no bundle has the system {system}, only {', '.join(present)}: leave it out of recommend.order, or run "
            "gnn-encoder run again"
        )
    bundle = present[system]
    if recommendation:
        read = "bundle" if bundle.has_vectors else "bm25_index"
        ranked = {record.inputs.get(read) for record in read_history(recommendation).values()}
        ranks = bundle.manifest.digest if bundle.has_vectors else bundle.manifest.inputs[read]
        # DPR was ranked before, and its bundle made for this recommendation, or for that of the rung below.
        made_for = bundle.manifest.inputs.get("recommendation")
        advised = {record.inputs.get("recommendation") for record in read_history(recommendation).values()} - {None}
        if ranks not in ranked and made_for not in {read_manifest(recommendation).digest, *advised}:
            raise UserError(
                f"{recommendation} is not about {bundle.path}: run rank, evaluate and recommend on it first"
            )
    evaluated = Evaluation.read(evaluation) if evaluation else None
    if evaluated and facts and facts["evaluation"] != evaluated.manifest.digest:
        raise UserError(f"{recommendation} was not made from {evaluation}: run recommend again")
    bundle.serve(chosen_bundle, serving, reranker)
    if evaluated and "dev" not in data.written_splits and len((hits := evaluated.dev_first(serving.system)).score):
        calibration = Calibration.of(data, labelled_queries(data.judged("dev")), hits, serving.system)
    if calibration:
        calibration.write(chosen_bundle / CALIBRATION)
    history = read_history(recommendation or bundle.path)
    edges = Graph.read(graph) if graph else None
    page = Described(bundle, serving, data, history, facts, evaluated, edges)
    readme = page.readme((reranker or bundle.reranker_path) is not None)
    (chosen_bundle / README).write_text(readme, encoding="utf-8")
    headline = f"{serving.system}, {len(bundle.passages):,} passages{remark}"
    return {"passages": len(bundle.passages), "headline": headline}


def _reranker(former: Bundle, data: Dataset) -> tuple[Path | None, str]:
    """Returns the re-ranker of an earlier bundle, unless it knows the context of other documents, and a remark."""
    if (reranker := former.reranker_path) is None:
        return None, ""
    if (known := DocumentContext.of(reranker)) and known.corpus != data.corpus_digests:
        return None, "; without its re-ranker, which knows other documents: run gnn-encoder rerank"
    return reranker, ""
