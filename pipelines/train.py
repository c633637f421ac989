"""The training pipeline: GNN-encoder's algorithm, top to bottom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnn_encoder.flow.graph import Artifact, Graph, Output
from gnn_encoder.pipelines.foundation import Foundation, Words, lay_foundation, with_early_refusals
from gnn_encoder.settings import graph as graphs
from gnn_encoder.settings import outcome
from gnn_encoder.settings.pipeline import Settings, choice
from gnn_encoder.settings.presets import changed_settings
from gnn_encoder.settings.rungs import DECIDE
from gnn_encoder.settings.shared import Speed, VectorsOfTexts
from gnn_encoder.settings.systems import (
    CONVERGED,
    CROSS_ENCODER,
    DPR,
    DUAL_ENCODER,
    FUSIONS,
    GNN_ENCODER,
    LEXICAL,
    NOT_TRAINED,
    SYSTEMS,
    UNTRAINED,
    fusion_systems,
    label_systems,
)


@dataclass(frozen=True)
class Compared:
    """What the rungs of a ladder have so far: runs, fusions and bundles by system, with which the next is compared."""

    words: Words | None = None
    runs: Mapping[str, Output] = field(default_factory=dict)
    fused: Mapping[str, Output] = field(default_factory=dict)
    bundles: Mapping[str, Output] = field(default_factory=dict)
    encoder: Output | None = None
    """From which a training starts; None: from the backbone."""
    passage_vectors: Output | None = None


def train(settings: Settings) -> Graph:
    """Returns the graph from raw text to a decision about the recommended bundle."""
    flow = Graph("train", "Trains a GNN-encoder and compares it on queries it never saw.", changed_settings(settings))
    add_training(flow, settings)
    return flow


def add_training(flow: Graph, settings: Settings, below: Compared = Compared(), rung: str = "") -> dict[str, Output]:
    """Adds all steps of a training to a graph; returns the outputs that show and serve its result.

    rung: the label of the steps that compare and decide.
    """
    tried = choice(settings)
    largest = graphs.largest_graph(settings.build_graph, tried.tried)
    base = lay_foundation(flow, settings, largest, below.words, below.encoder)
    inputs = {"dataset": base.dataset, "dual_encoder": base.dual_encoder, "passage_vectors": base.passage_vectors}
    bm25_index = base.bm25_index if settings.encode_corpus.bm25 else None
    bundled: dict[str, Artifact | None] = {"dataset": base.dataset, "bm25_index": bm25_index}

    # What labels give without training: labelled training queries lift their passages.
    wanted = tuple(kind for kind in settings.fuse_parts.kinds if fusion_systems()[kind] not in below.runs)
    labelled = settings.model_copy(update={"fuse_parts": settings.fuse_parts.model_copy(update={"kinds": wanted})})
    bundles = bundles_without_training(flow, labelled, settings.build_graph.speed, bm25_index=bm25_index, **inputs)

    # The graph and the training that are best with frozen encoders, if the settings name several.
    trained_on = {"training_set": base.training_set, **inputs, "graph": base.graph}
    chosen: dict[str, Output] = {"graph": base.graph}
    if tried.tried:
        choosing = flow.add("choose_graph", tried, **trained_on)
        chosen = {"graph": choosing["chosen_graph"], "graph_choice": choosing["graph_choice"]}

    # Joint training of the dual encoder and the GNN (GNN-encoder 3.3 and 3.4).
    gnn_encoder = flow.add("train_gnn", settings.train_gnn, **(trained_on | chosen)).output

    # Vectors of all passages with the full graph, and the index.
    encoding, bundles[GNN_ENCODER] = encode_graph(
        flow, settings, gnn_encoder=gnn_encoder, passage_vectors=base.passage_vectors, graph=chosen["graph"], **bundled
    )

    # The dual encoder as it is, and trained further until it is no better on dev.
    bundles[DUAL_ENCODER] = bundle_of(flow, settings, DUAL_ENCODER, bm25_index=bm25_index, **inputs)
    if settings.train_converged.epochs:
        further = settings.train_converged.of(settings.train_dual_encoder)
        read = {"training_set": base.training_set, "start": base.dual_encoder, "pair_scores": base.pair_scores}
        converged = flow.add("train_dual_encoder", further, CONVERGED, dataset=base.dataset, **read).output
        bundles[CONVERGED] = bundle_of(flow, settings, CONVERGED, dual_encoder=converged, **bundled)

    # A run of each system, also together with BM25; the recommended system with its bundle, the page, the decision.
    order = recommended_from(settings)
    late = {"dual_encoder": base.dpr, **bundled} if DPR in order else {}
    if below.runs:
        order = tuple(system for system in SYSTEMS if system in below.runs or system in order)
    runs = runs_of_systems(flow, settings, base, bundles, below)
    latency = flow.add("measure_latency", outcome.MeasureLatency(), bundle=bundles[GNN_ENCODER], **inputs).output
    explained = {"gnn_encoder": gnn_encoder, "encoding": encoding, "bundle": bundles[GNN_ENCODER], "latency": latency}
    explained |= {"passage_vectors": base.passage_vectors, **chosen}
    made = [*below.bundles.values(), *bundles.values()]
    judged = judge(flow, settings, rung, base.dataset, runs, order, made, dpr=late, **explained)
    with_early_refusals(flow, *tried.tried)
    return judged


def judge(
    flow: Graph, settings: Settings, rung: str, dataset: Output, runs: Sequence[Output], order: Sequence[str],
    bundles: Sequence[Output], /, *, dpr: Mapping[str, Artifact | None] = {}, graph: Artifact | None = None,
    reranker: Artifact | None = None, **explained: Artifact | None
) -> dict[str, Output]:  # fmt: skip
    """Adds the comparison of all runs, the recommended bundle, the page and the decision; returns the last four.

    Args:
        order: the systems that may be recommended, the simplest first.
        dpr: inputs of DPR's bundle, which is made last and only if it is recommended.
        reranker: goes into the recommended bundle. explained: what the page reads to explain hits.
    """
    flow.begin(DECIDE)
    evaluate = settings.evaluate.model_copy(update={"rerank_shards": 1})
    evaluation = flow.add("evaluate", evaluate, rung, dataset=dataset, runs=runs).output
    judged = {"measure": settings.promote.measure, "bm25": settings.encode_corpus.bm25, "order": tuple(order)}
    advice = settings.recommend.model_copy(update=judged)
    near = {"passage_vectors": explained.get("passage_vectors")}
    recommendation = flow.add("recommend", advice, rung, dataset=dataset, evaluation=evaluation, **near).output
    read = {"dataset": dataset, "evaluation": evaluation, "recommendation": recommendation, "graph": graph}
    last = [bundle_of(flow, settings, DPR, recommendation=recommendation, **dpr)] if dpr else []
    made = {"bundles": [*bundles, *last], "reranker": reranker}
    chosen = flow.add("choose_bundle", settings.choose_bundle, rung, **made, **read).output
    shown = outcome.Report(**settings.evaluate.speed, changed=flow.changed)
    page = flow.add("report", shown, rung, bundles=bundles, **explained, **read)
    # The decision does not read the page, but runs after it, so that the page exists if the decision fails.
    # A higher rung is decided on later.
    below = [outputs["decision"].node for outputs in flow.rungs.values()][-1:]
    decision = flow.add("promote", settings.promote, rung, [page, *below], bundle=chosen, runs=runs, **read).output
    return {output.name: output for output in (recommendation, chosen, page.output, decision)}


def bundles_without_training(
    flow: Graph, settings: Settings, speed: Speed, as_it_is: bool = False, /, **inputs: Artifact | None
) -> dict[str, Output]:
    """Adds the bundles of the systems that change what an encoder finds and train nothing; returns them by system.

    speed: of the step that encoded the queries, for labels that are added later. as_it_is: nobody trained the encoder.
    """
    label_settings = settings.encode_with_labels.model_copy(
        update={**_bundled(settings), **speed, "measure": settings.evaluate.measures[0]}
    )
    bundles = {
        system: flow.add(
            "encode_with_labels", label_settings.model_copy(update=_of(kind, system, as_it_is)), system, **inputs
        ).output
        for kind, system in label_systems(as_it_is).items()
        if kind in label_settings.kinds
    }
    fusion = settings.fuse_parts.model_copy(update={**_bundled(settings), **speed})
    if not inputs["bm25_index"] or not fusion.kinds:
        return bundles
    read = ("dataset", "passage_vectors", "bm25_index")
    label = NOT_TRAINED if as_it_is else ""
    made = settings.make_parts.model_copy(update=settings.encode_corpus.of_index | {"trained_encoder": not as_it_is})
    parts = flow.add("make_parts", made, label, **{name: inputs[name] for name in read}).output
    for kind, system in fusion_systems(as_it_is).items():
        if kind in fusion.kinds:
            one = fusion.model_copy(update=_of(kind, system, as_it_is))
            bundles[system] = flow.add("fuse_parts", one, system, parts=parts, **inputs).output
    return bundles


def _of(kind: str, system: str, as_it_is: bool) -> dict[str, Any]:
    """Returns the settings of a call that makes one kind of bundle alone."""
    return {"kind": kind, "kinds": (kind,), **({"system": system} if as_it_is else {})}


def encode_graph(
    flow: Graph, settings: Settings, /, *, bm25_index: Artifact | None, **inputs: Artifact | None
) -> tuple[Output, Output]:
    """Adds the encoding of the graph's nodes, and the propagation over it; returns the encoding and the bundle."""
    corpus = settings.encode_corpus
    nodes = outcome.EncodeNodes(previous=corpus.previous, shards=corpus.shards, **corpus.speed)
    encoding = flow.parallel("encode_nodes", nodes, **inputs)
    whole = corpus.model_copy(update={"shards": 1})
    bundle = flow.add("encode_corpus", whole, encoding=encoding, bm25_index=bm25_index, **inputs)
    return encoding, bundle.output


def bundle_of(flow: Graph, settings: Settings, system: str, /, **inputs: Artifact | None) -> Output:
    """Adds the bundle of a dual encoder as it is."""
    built = settings.build_graph
    shared: dict[str, Any] = {**settings.encode_corpus.speed, **_bundled(settings), **built.of_windows}
    bundle_settings = outcome.BundleDualEncoder(system=system, vector_type=built.vector_type, **shared)
    return flow.add("bundle_dual_encoder", bundle_settings, system, **inputs).output


def runs_of_systems(
    flow: Graph, settings: Settings, base: Foundation, bundles: Mapping[str, Output], below: Compared
) -> list[Output]:
    """Adds the ranking of each system, and its fusion with BM25; returns the runs in the tables' order.

    The runs of BM25, DPR and the rungs below exist already. A system without a bundle in the run is left out.
    """
    evaluate = settings.evaluate
    speed, depth = evaluate.speed, evaluate.depth
    runs: dict[str, Output] = {LEXICAL: base.bm25_run, DPR: base.dpr_run, **below.runs}
    if evaluate.untrained_backbone and UNTRAINED not in runs:
        names = {*VectorsOfTexts.model_fields, "query_length", "passage_length"}
        of_texts = {**settings.train_dual_encoder.model_dump(include=names), **settings.build_graph.of_windows, **speed}
        untrained = outcome.Rank(system=UNTRAINED, depth=depth, backbone=evaluate.untrained_backbone, **of_texts)
        runs[UNTRAINED] = flow.add("rank", untrained, UNTRAINED, dataset=base.dataset).output
    for system in SYSTEMS:
        if system in bundles:
            rank = outcome.Rank(system=system, depth=depth, **speed)
            embedding = {"passage_vectors": base.passage_vectors} if SYSTEMS[system].of_dual_encoder else {}
            inputs = {"dataset": base.dataset, "bundle": bundles[system], **embedding}
            runs[system] = flow.add("rank", rank, system, **inputs).output
    if evaluate.rerank_depth:
        rerank = outcome.Rerank(
            system=CROSS_ENCODER, depth=evaluate.rerank_depth, shards=evaluate.rerank_shards, **speed
        )
        runs[CROSS_ENCODER] = flow.parallel(
            "rerank", rerank, dataset=base.dataset, first_run=runs[GNN_ENCODER], scorer=base.cross_encoder
        )
    order = recommended_from(settings)
    last = [system for system, row in SYSTEMS.items() if row.bundled_last and system in order]
    fuse = outcome.Fuse(measure=evaluate.measures[0], depth=depth)
    read = {"dataset": base.dataset, "lexical_run": base.bm25_run}
    summed = [system for system in (*last, *bundles) if SYSTEMS[system].fusions]
    fused = {system: flow.add("fuse", fuse, system, **read, dense_run=runs[system]) for system in summed}
    ranked = [runs[system] for system in SYSTEMS if system in runs]
    ranked += [below.fused[system] for system in SYSTEMS if system in below.fused]
    ranked += [fused[s][fusion] for fusion in FUSIONS for s in SYSTEMS if s in fused and fusion in SYSTEMS[s].fusions]
    return ranked


def _bundled(settings: Settings) -> dict[str, Any]:
    """Returns the settings of the index, and whether there is one for BM25, which all bundles of a run share."""
    return {"bm25": settings.encode_corpus.bm25, **settings.encode_corpus.of_index}


def recommended_from(settings: Settings) -> tuple[str, ...]:
    """Returns the systems that may be recommended.

    A system that is bundled last was ranked by an exact search, so its bundle has to have one; the baseline is kept.
    """
    kept, is_exact = settings.evaluate.baseline, settings.encode_corpus.index == "flat"
    excluded = [name for name, row in SYSTEMS.items() if row.bundled_last and not (is_exact or name == kept)]
    return tuple(system for system in settings.recommend.order if system not in excluded)
