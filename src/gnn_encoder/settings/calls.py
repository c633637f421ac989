"""The calls of each pipeline's steps, with their settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from gnn_encoder.settings import graph, labels, outcome
from gnn_encoder.settings.outcome import Fuse, Rank
from gnn_encoder.settings.pipeline import ON_NODES, PIPELINES, SHARDED, Call, Settings, StepArguments, choice
from gnn_encoder.settings.reranking_calls import reranking_calls
from gnn_encoder.settings.systems import CONVERGED, CROSS_ENCODER, DPR, DUAL_ENCODER, GNN_ENCODER, UNTRAINED
from gnn_encoder.settings.tasks import shared_calls
from gnn_encoder.settings.values import StepSettings


def calls(settings: Settings, steps: Iterable[str]) -> dict[str, Call]:
    """Returns {parameter of a pipeline: its call}, in the order of the pipeline.

    Each of `steps` is called with the settings of its own section; one in `SHARDED` or `ON_NODES` as `shared_calls`
    says, `encode_with_labels` once for each kind, `encode_corpus` after `encode_nodes`, `evaluate` adds the calls of
    `ranking_calls`, with that of `recommend`, and `train_reranker` those of `reranking_calls`.
    """
    found: dict[str, Call] = {}
    steps = tuple(steps)
    for step in steps:
        if step == "evaluate":
            found |= ranking_calls(settings)
        elif step == "recommend":
            continue  # among the calls of `evaluate`
        elif step == "choose_bundle":  # of an update
            found |= {**bundling_calls(settings), step: Call(step, settings.choose_bundle)}
        elif step == "build_graph" and "choose_graph" in steps:
            found[step] = Call(step, graph.largest_graph(settings.build_graph, choice(settings).tried))
        elif step == "choose_graph":
            found[step] = Call(step, choice(settings))
        elif step == "encode_with_labels":
            found |= label_calls(settings)
        elif step == "index_bm25" and "bm25_retrieve" not in steps:  # for the bundles alone
            found[step] = Call(step, settings.index_bm25, asked=settings.encode_corpus.bm25)
        elif step == "encode_corpus":
            found |= encoding_calls(settings)
        elif step == "train_reranker":
            found |= reranking_calls(settings, [settings.train_reranker.kind])
        elif step in (*SHARDED, *ON_NODES):
            found |= shared_calls(step, getattr(settings, step))
        else:
            found[step] = Call(step, getattr(settings, step))
    return with_needs(found, {"train_gnn": settings.train_gnn} if "try_variant" in steps else {})


def with_needs(found: dict[str, Call], variants: Mapping[str, StepSettings] = {}) -> dict[str, Call]:
    """Returns the calls; that of `ingest` has the names of the settings that choose an epoch by dev queries.

    A dual encoder with `patience` stays as it is without dev queries, so it needs none.

    Args:
        variants: section -> settings that the variants of an ablation have.
    """
    if "ingest" not in found:
        return found
    sections = [(call.step, call.settings) for call in found.values() if call.asked] + list(variants.items())
    for _, own in sections.copy():
        if isinstance(own, graph.ChooseGraph):
            sections += [("train_gnn", variant) for variant in own.tried]
    names = [
        f"{step}.keep"
        for step, own in sections
        if getattr(own, "keep", "") == "best" and not getattr(own, "patience", 0)
    ]
    own = found["ingest"].settings.model_copy(update={"chosen_on_dev": tuple(dict.fromkeys(names))})
    return found | {"ingest": found["ingest"]._replace(settings=own)}


def label_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of a pipeline: call} of `encode_with_labels`, for every kind; a kind may be not asked for."""
    own = settings.encode_with_labels
    shared = {**_bundled(settings), "measure": settings.evaluate.measures[0]}
    return {
        f"encode_query_{kind}": Call(
            "encode_with_labels",
            own.model_copy(update={**shared, "kind": kind, "kinds": (kind,)}),
            system,
            asked=kind in own.kinds,
        )
        for kind, system in labels.LABEL_SYSTEMS.items()
    }


def encoding_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of a pipeline: call} of the steps that encode the graph's nodes and propagate over it."""
    own = settings.encode_corpus
    nodes = outcome.EncodeNodes(previous=own.previous, shards=own.shards, **own.speed)
    whole = Call("encode_corpus", own.model_copy(update={"shards": 1}))
    return {**shared_calls("encode_nodes", nodes), "encode_corpus": whole}


def _bundled(settings: Settings) -> dict[str, Any]:
    """Returns the settings of the index, and whether there is one for BM25, which all bundles of a run share."""
    corpus = settings.encode_corpus
    return {name: getattr(corpus, name) for name in ("bm25", *outcome.IndexKind.model_fields)}


def bundling_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of a pipeline: call} of the steps that make bundles of dual encoders as they are."""
    shared, asked = {**settings.encode_corpus.speed, **_bundled(settings)}, settings.train_converged.epochs > 0
    shared["vector_type"] = settings.build_graph.vector_type
    systems = {
        "bundle_dual_encoder": (DUAL_ENCODER, True),
        "bundle_converged": (CONVERGED, asked),
        "bundle_dpr": (DPR, DPR in settings.recommend.order),
    }
    return {
        name: Call("bundle_dual_encoder", outcome.BundleDualEncoder(system=system, **shared), system, is_asked)
        for name, (system, is_asked) in systems.items()
    }


def _order(settings: Settings) -> tuple[str, ...]:
    """Returns the systems that may be recommended. DPR is ranked by an exact search, so its bundle has to have one."""
    kept = settings.encode_corpus.index == "flat" or settings.evaluate.baseline == DPR
    return tuple(system for system in settings.recommend.order if kept or system != DPR)


def ranking_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of the training pipeline: call} of the steps that rank, compare or show systems, in order.

    The section `evaluate` says how systems are ranked and compared; the other steps' settings are derived from it.
    """
    evaluate, dual_encoder = settings.evaluate, settings.train_dual_encoder
    speed, depth = evaluate.speed, evaluate.depth
    untrained = Rank(
        system=UNTRAINED, depth=depth, backbone=evaluate.untrained_backbone, **speed,
        query_length=dual_encoder.query_length, passage_length=dual_encoder.passage_length,
    )  # fmt: skip
    rerank = outcome.Rerank(
        system=CROSS_ENCODER, depth=max(1, evaluate.rerank_depth), shards=evaluate.rerank_shards, **speed
    )
    fuse = Fuse(measure=evaluate.measures[0], depth=depth)
    ranked, fused = {}, {}
    for kind, system in labels.LABEL_SYSTEMS.items():
        given = kind in settings.encode_with_labels.kinds
        ranked[f"rank_query_{kind}"] = Call("rank", Rank(system=system, depth=depth, **speed), system, given)
        fused[f"fuse_query_{kind}"] = Call("fuse", fuse, system, given)
    order, bundled = _order(settings), bundling_calls(settings)
    judged = {"measure": settings.promote.measure, "bm25": settings.encode_corpus.bm25, "order": order}
    bundle_dpr = bundled.pop("bundle_dpr")._replace(asked=DPR in order)
    further, asked = settings.train_converged.of(dual_encoder), bundled["bundle_converged"].asked
    return {
        **shared_calls("train_dual_encoder", further, asked, "train_converged", CONVERGED),
        **bundled,
        "rank_untrained": Call("rank", untrained, UNTRAINED),
        "rank_dual_encoder": Call("rank", Rank(system=DUAL_ENCODER, depth=depth, **speed), DUAL_ENCODER),
        "rank_converged": Call("rank", Rank(system=CONVERGED, depth=depth, **speed), CONVERGED, asked),
        **ranked,
        "rank_gnn_encoder": Call("rank", Rank(system=GNN_ENCODER, depth=depth, **speed), GNN_ENCODER),
        **shared_calls("rerank", rerank, asked=evaluate.rerank_depth > 0),
        "fuse_dpr": Call("fuse", fuse, DPR, bundle_dpr.asked),
        "fuse_dual_encoder": Call("fuse", fuse, DUAL_ENCODER),
        "fuse_converged": Call("fuse", fuse, CONVERGED, asked),
        **fused,
        "fuse_gnn_encoder": Call("fuse", fuse, GNN_ENCODER),
        "evaluate": Call("evaluate", evaluate.model_copy(update={"rerank_shards": 1})),
        "recommend": Call("recommend", settings.recommend.model_copy(update=judged)),
        "bundle_dpr": bundle_dpr,
        "choose_bundle": Call("choose_bundle", settings.choose_bundle),
        "measure_latency": Call("measure_latency", outcome.MeasureLatency()),
        "report": Call("report", outcome.Report(**speed)),
    }


def titles(settings: Settings) -> tuple[str, ...]:
    """Returns the titles of the training pipeline's calls, in order."""
    made = calls(settings, PIPELINES["train"]).values()
    return tuple(StepArguments(label=call.label).title(call.step) for call in made)


_TRAINING_CALLS = calls(Settings(), PIPELINES["train"]).values()
TRAINING: tuple[str, ...] = tuple(dict.fromkeys(call.step for call in _TRAINING_CALLS))
"""The steps of the training pipeline, in order, including steps without their own section."""
STEP_SETTINGS: dict[str, type[StepSettings]] = {step: type(section) for step, section in Settings()}
"""Step → its settings class."""
_RERANKING_CALLS = calls(Settings(), PIPELINES["rerank"]).values()
STEP_SETTINGS |= {call.step: type(call.settings) for call in (*_TRAINING_CALLS, *_RERANKING_CALLS)}
ON_CLUSTERS = {"train": TRAINING, "rerank": tuple(dict.fromkeys(call.step for call in _RERANKING_CALLS))}
"""Pipeline that runs on a cluster, too → its steps."""
CLUSTER_STEPS: tuple[str, ...] = tuple(dict.fromkeys(step for steps in ON_CLUSTERS.values() for step in steps))
"""The steps of these pipelines, each once."""
