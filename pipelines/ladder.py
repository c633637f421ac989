"""The ladder: retrievers in the order of their cost. Each rung ends with a table, a report, a bundle and a decision.

words     BM25
as it is  a published encoder, or the best of several, also together with BM25
labels    what labels give it without training: labelled queries in words and vectors, a query adapter, fusions of all
training  the training pipeline, whose systems are compared with those of the rungs below
re-ranking  a re-ranker of the hits of what the rung below recommends, alone and summed with their scores
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Artifact, Given, Graph, Node, Output
from gnn_encoder.pipelines.foundation import Words, search_by_words, with_early_refusals
from gnn_encoder.pipelines.rerank import Reranked, train_and_rank, trained_on
from gnn_encoder.pipelines.train import Compared, add_training, bundle_of, bundles_without_training, judge
from gnn_encoder.settings import outcome
from gnn_encoder.settings.pipeline import Settings, choice
from gnn_encoder.settings.presets import changed_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANK, RERANKING, RUNGS, TRAINING, WORDS
from gnn_encoder.settings.systems import (
    BY_SCORES,
    FIRST_AND_RERANKED,
    GNN_ENCODER,
    LEXICAL,
    RERANKED,
    SYSTEMS,
    UNTRAINED,
)

HYBRID = f"{LEXICAL} + {UNTRAINED}"
"""The untouched hybrid, against which every system is held."""
EMBEDDING = ("dual_encoder", "passage_vectors")
"""Outputs of `encode`: the encoder, and its vectors of passages and queries."""


def ladder(settings: Settings, until: str = LABELS, reranker: Given | None = None) -> Graph:
    """Returns the graph from raw text up to a rung; the outputs of each rung are in `Graph.rungs`.

    reranker: of an earlier run, which is not trained again.

    Raises:
        UserError: settings without BM25, a part of most rungs; or with a re-ranker that labels alone do not train.
    """
    if not settings.encode_corpus.bm25:
        raise UserError("encode_corpus.bm25 = false: BM25 is a part of most rungs: leave it true")
    flow = Graph("ladder", "Retrievers by cost, each rung compared with those below.", changed_settings(settings))
    settings = settings.with_windows
    rungs = [*RUNGS[: RUNGS.index(until) + 1]]
    if until == RERANKING and settings.weigh_reranker.above == LABELS:
        rungs.remove(TRAINING)
    if TRAINING not in rungs:  # nothing needs negatives
        searched = settings.bm25_retrieve.model_copy(update={"train_depth": 0})
        settings = settings.model_copy(update={"bm25_retrieve": searched})

    # Words alone.
    words = search_by_words(flow, settings, LABELS in rungs)
    read: dict[str, Artifact | None] = {"dataset": words.dataset, "bm25_index": words.bm25_index}
    bundle = flow.add("bundle_words", outcome.BundleWords(), LEXICAL, **read).output
    systems = Compared(words, {LEXICAL: words.bm25_run}, {}, {LEXICAL: bundle})
    flow.rungs[WORDS] = judge_all(flow, settings, WORDS, systems)

    # The encoder as it is, and together with BM25.
    if AS_IT_IS in rungs:
        flow.begin(AS_IT_IS)
        encoded, others = encode_best(flow, settings, words, **read)
        read |= {name: encoded[name] for name in EMBEDDING}
        untrained = {UNTRAINED: bundle_of(flow, settings, UNTRAINED, **read)}
        systems = rank_and_fuse(flow, settings, systems, untrained, encoded["passage_vectors"])
        flow.rungs[AS_IT_IS] = judge_all(flow, settings, AS_IT_IS, systems, *others)

    # Labels: query sum, memory and clusters; BM25 with labels, the query adapter, and fusions of all parts.
    if LABELS in rungs:
        flow.begin(LABELS)
        labelled = bundles_without_training(flow, settings, settings.encode.speed, True, **read)
        systems = rank_and_fuse(flow, settings, systems, labelled, encoded["passage_vectors"])
        flow.rungs[LABELS] = judge_all(flow, settings, LABELS, systems)

    # Training: the dual encoder, then the GNN-encoder, compared with all systems above.
    if TRAINING in rungs:
        held = held_against(settings, HYBRID, GNN_ENCODER)
        start = encoded["dual_encoder"] if settings.encode.others and not settings.encode.elsewhere else None
        flow.rungs[TRAINING] = add_training(flow, held, replace(systems, encoder=start), TRAINING)

    # Re-ranking of what the rung below recommends.
    if RERANKING in rungs:
        flow.rungs[RERANKING] = add_reranking(flow, settings, systems, rungs[-2], reranker)
        with_early_refusals(flow, *(choice(settings).tried if TRAINING in rungs else ()))
    return flow


def encode_best(flow: Graph, settings: Settings, words: Words, **read: Artifact | None) -> tuple[Node, list[Output]]:
    """Adds the encoding, of several encoders by each, and the choice; returns what is chosen, and the runs of each."""
    named, tried = settings.encode.by_name, Compared(words)
    if len(named) == 1:
        return flow.add("encode", settings.encode, dataset=words.dataset), []
    nodes = {f"{UNTRAINED}: {name}": flow.add("encode", of, name, dataset=words.dataset) for name, of in named.items()}
    for system, node in nodes.items():
        bundle = bundle_of(flow, settings, system, **read, **{name: node[name] for name in EMBEDDING})
        tried = rank_and_fuse(flow, settings, tried, {system: bundle}, node["passage_vectors"])
    choose = outcome.ChooseEncoder(encoders=tuple(named), measure=settings.evaluate.measures[0])
    encoders, vectors = ([node[name] for node in nodes.values()] for name in EMBEDDING)
    runs = [*tried.fused.values()]
    chosen = flow.add("choose_encoder", choose, dataset=words.dataset, runs=runs, encoders=encoders, vectors=vectors)
    return chosen, [*tried.runs.values(), *runs]


def rank_and_fuse(
    flow: Graph, settings: Settings, systems: Compared, bundles: Mapping[str, Output], passage_vectors: Output
) -> Compared:
    """Adds a run of each bundle, and of its weighted sum with BM25; returns the systems so far, with them."""
    assert systems.words
    runs, fused = {**systems.runs}, {**systems.fused}
    for system, bundle in bundles.items():
        rank = outcome.Rank(system=system, depth=settings.evaluate.depth, **settings.evaluate.speed)
        read = {"dataset": systems.words.dataset, "bundle": bundle, "passage_vectors": passage_vectors}
        runs[system] = flow.add("rank", rank, system, **read).output
        if system.startswith(UNTRAINED) or SYSTEMS[system].fusions:
            fuse = outcome.Fuse(measure=settings.evaluate.measures[0], depth=settings.evaluate.depth)
            of = {"lexical_run": systems.words.bm25_run, "dense_run": runs[system]}
            fused[system] = flow.add("fuse", fuse, system, dataset=systems.words.dataset, **of)[BY_SCORES]
    return Compared(systems.words, runs, fused, {**systems.bundles, **bundles}, passage_vectors=passage_vectors)


def judge_all(flow: Graph, settings: Settings, rung: str, systems: Compared, *others: Output) -> dict[str, Output]:
    """Adds the judgement of all systems so far (`judge`), with `others` in the table."""
    assert systems.words
    order = tuple(system for system in SYSTEMS if system in systems.runs)
    baseline = HYBRID if UNTRAINED in order else LEXICAL
    held = held_against(settings, baseline, HYBRID if order[-1] == UNTRAINED else order[-1])
    runs = [*(of[s] for of in (systems.runs, systems.fused) for s in order if s in of), *others]
    bundles, dataset = [*systems.bundles.values()], systems.words.dataset
    return judge(flow, held, rung, dataset, runs, order, bundles, passage_vectors=systems.passage_vectors)


def held_against(settings: Settings, baseline: str, candidate: str) -> Settings:
    """Returns settings whose evaluation has other roles."""
    roles = {"baseline": baseline, "candidate": candidate}
    return settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update=roles)})


def add_reranking(
    flow: Graph, settings: Settings, untrained: Compared, below: str, reranker: Given | None
) -> dict[str, Output]:
    """Adds a re-ranker of the bundle that a rung chose, and judges its systems again with two more; returns as `judge`.

    A bundle that is made only for its recommendation may be the first stage, but is not recommended anew.
    """
    flow.begin(RERANK)
    words, weigh = untrained.words, settings.weigh_reranker
    reranked = Reranked(RERANKED, {weigh.reranker: reranker} if reranker else {})
    assert words
    data = {"dataset": words.dataset}
    if not trained_on(settings, [weigh.reranker])["labelled"]:
        raise UserError(f"train_reranker: a ladder's {weigh.reranker} needs triples: labelled, and no distillation")
    source: dict[str, Artifact | None] = {"bm25_run": words.bm25_run, "bm25_index": words.bm25_index}
    source |= {"bundle": flow.rungs[below]["chosen_bundle"], "passage_vectors": untrained.passage_vectors}
    search = settings.first_stage.model_copy(update={"precision": "fp32"})  # as a question is encoded in service
    first = {**data, "first_run": flow.add("first_stage", search, **data, **source).output}
    ranking = train_and_rank(flow, settings, weigh.reranker, reranked, first)
    depth = settings.train_reranker.hits_of(weigh.reranker)
    weigh = weigh.model_copy(update={"measure": settings.evaluate.measures[0], "depth": depth})
    summed = flow.add("weigh_reranker", weigh, **first, ranking=ranking).output
    former: dict[str, Any] = {step: flow[f"{step}: {below}"] for step in ("evaluate", "recommend", "choose_bundle")}
    order = [name for name in former["recommend"].settings.order if not SYSTEMS[name].bundled_last]
    order += [RERANKED, FIRST_AND_RERANKED]
    runs, made = (*former["evaluate"].inputs["runs"], ranking, summed), former["choose_bundle"].inputs
    more = {"graph": made.get("graph"), "reranker": reranked.scorers[weigh.reranker]}
    more |= {"passage_vectors": former["recommend"].inputs.get("passage_vectors")}
    held = held_against(settings, HYBRID, FIRST_AND_RERANKED)
    return judge(flow, held, RERANKING, words.dataset, runs, order, made["bundles"], **more)
