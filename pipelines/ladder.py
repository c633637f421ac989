"""The ladder: retrievers in the order of their cost. Each rung ends with a table, a report, a bundle and a decision.

words     BM25
as it is  a published encoder, or the best of several, also together with BM25
labels    what labels give it without training: labelled queries in words and vectors, a query adapter, fusions of all
training  the training pipeline, whose systems are compared with those of the rungs below
"""

from collections.abc import Mapping
from dataclasses import replace

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Artifact, Graph, Node, Output
from gnn_encoder.pipelines.foundation import Words, search_by_words
from gnn_encoder.pipelines.train import Compared, add_training, bundle_of, bundles_without_training, last_decision
from gnn_encoder.settings import outcome
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RUNGS, TRAINING, WORDS
from gnn_encoder.settings.systems import BY_SCORES, GNN_ENCODER, LEXICAL, SYSTEMS, UNTRAINED

HYBRID = f"{LEXICAL} + {UNTRAINED}"
"""The untouched hybrid, against which every system is held."""
EMBEDDING = ("dual_encoder", "passage_vectors")
"""Outputs of `encode`: the encoder, and its vectors of passages and queries."""


def ladder(settings: Settings, until: str = LABELS) -> Graph:
    """Returns the graph from raw text up to a rung; the outputs of each rung are in `Graph.rungs`.

    Raises:
        UserError: settings without BM25, a part of most rungs.
    """
    if not settings.encode_corpus.bm25:
        raise UserError("encode_corpus.bm25 = false: BM25 is a part of most rungs: leave it true")
    flow = Graph("ladder", "Retrievers in the order of their cost, each rung compared with those below.")
    rungs = RUNGS[: RUNGS.index(until) + 1]
    if TRAINING not in rungs:  # nothing needs negatives
        searched = settings.bm25_retrieve.model_copy(update={"train_depth": 0})
        settings = settings.model_copy(update={"bm25_retrieve": searched})

    # Words alone.
    words = search_by_words(flow, settings)
    read: dict[str, Artifact | None] = {"dataset": words.dataset, "bm25_index": words.bm25_index}
    bundle = flow.add("bundle_words", outcome.BundleWords(), LEXICAL, **read).output
    systems = Compared(words, {LEXICAL: words.bm25_run}, {}, {LEXICAL: bundle})
    flow.rungs[WORDS] = judge(flow, settings, WORDS, systems)

    # The encoder as it is, and together with BM25.
    if AS_IT_IS in rungs:
        encoded, others = encode_best(flow, settings, words, **read)
        read |= {name: encoded[name] for name in EMBEDDING}
        untrained = {UNTRAINED: bundle_of(flow, settings, UNTRAINED, **read)}
        systems = rank_and_fuse(flow, settings, systems, untrained, encoded["passage_vectors"])
        flow.rungs[AS_IT_IS] = judge(flow, settings, AS_IT_IS, systems, *others)

    # Labels: query sum, memory and clusters; BM25 with labels, the query adapter, and fusions of all parts.
    if LABELS in rungs:
        labelled = bundles_without_training(flow, settings, settings.encode.speed, True, **read)
        systems = rank_and_fuse(flow, settings, systems, labelled, encoded["passage_vectors"])
        flow.rungs[LABELS] = judge(flow, settings, LABELS, systems)

    # Training: the dual encoder, then the GNN-encoder, compared with all systems above.
    if TRAINING in rungs:
        roles = {"baseline": HYBRID, "candidate": GNN_ENCODER}
        held = settings.model_copy(update={"evaluate": settings.evaluate.model_copy(update=roles)})
        start = encoded["dual_encoder"] if settings.encode.others and not settings.encode.elsewhere else None
        flow.rungs[TRAINING] = add_training(flow, held, replace(systems, encoder=start), TRAINING)
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
    return Compared(systems.words, runs, fused, {**systems.bundles, **bundles})


def judge(flow: Graph, settings: Settings, rung: str, systems: Compared, *others: Output) -> dict[str, Output]:
    """Adds a table of all systems and `others`, the recommended bundle, the page and the decision; returns them."""
    assert systems.words
    dataset = systems.words.dataset
    ordered = tuple(system for system in SYSTEMS if system in systems.runs)
    baseline = HYBRID if UNTRAINED in ordered else LEXICAL
    candidate = HYBRID if ordered[-1] == UNTRAINED else ordered[-1]
    evaluation = flow.add(
        "evaluate",
        settings.evaluate.model_copy(update={"baseline": baseline, "candidate": candidate, "rerank_shards": 1}),
        rung,
        dataset=dataset,
        runs=[*(of[s] for of in (systems.runs, systems.fused) for s in ordered if s in of), *others],
    ).output
    judged = {"measure": settings.promote.measure, "bm25": True, "order": ordered}
    advice = settings.recommend.model_copy(update=judged)
    recommendation = flow.add("recommend", advice, rung, dataset=dataset, evaluation=evaluation).output
    read = {"dataset": dataset, "evaluation": evaluation, "recommendation": recommendation}
    bundles = list(systems.bundles.values())
    chosen = flow.add("choose_bundle", settings.choose_bundle, rung, bundles=bundles, **read).output
    page = flow.add("report", outcome.Report(**settings.evaluate.speed), rung, **read)
    decision = flow.add("promote", settings.promote, rung, [page, *last_decision(flow)], bundle=chosen, **read).output
    return {output.name: output for output in (recommendation, chosen, page.output, decision)}
