"""The rungs of the ladder that train nothing: words, an encoder as it is, and what labels give it."""

from gnn_encoder.flow.graph import Artifact, Graph, Output
from gnn_encoder.pipelines.foundation import search_by_words
from gnn_encoder.pipelines.train import bundle_of, bundles_without_training
from gnn_encoder.settings import outcome
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.systems import BY_SCORES, LEXICAL, SYSTEMS, UNTRAINED

HYBRID = f"{LEXICAL} + {UNTRAINED}"
"""The untouched hybrid, against which every system is held."""

EMBEDDING = ("dual_encoder", "passage_vectors")
"""Outputs of `encode`: the encoder, and its vectors of passages and queries."""


def ladder(settings: Settings) -> Graph:
    """Returns the graph from raw text to a decision about the recommended bundle, without any training."""
    flow = Graph("ladder", "Ranks by words, by an encoder as it is, and by labels. Trains nothing.")
    dataset = flow.add("ingest", settings.ingest).output

    # As it is: BM25, the encoder, and both together.
    bm25_index, bm25_run = search_by_words(flow, settings, dataset)
    encoded = flow.add("encode", settings.encode, dataset=dataset)
    inputs: dict[str, Artifact | None] = {"dataset": dataset, **{name: encoded[name] for name in EMBEDDING}}
    bundles = {UNTRAINED: bundle_of(flow, settings, UNTRAINED, bm25_index=bm25_index, **inputs)}

    # Labels: query sum, memory and clusters; BM25 with labels, the query adapter, and fusions of all parts.
    bundles |= bundles_without_training(flow, settings, settings.encode.speed, bm25_index=bm25_index, **inputs)

    # A run of each system, also together with BM25.
    runs: dict[str, Output] = {LEXICAL: bm25_run}
    fused: dict[str, Output] = {}
    for system, bundle in bundles.items():
        rank = outcome.Rank(system=system, depth=settings.evaluate.depth, **settings.evaluate.speed)
        embedding = inputs["passage_vectors"]
        runs[system] = flow.add("rank", rank, system, dataset=dataset, bundle=bundle, passage_vectors=embedding).output
        if system == UNTRAINED or SYSTEMS[system].fusions:
            fuse = outcome.Fuse(measure=settings.evaluate.measures[0], depth=settings.evaluate.depth)
            ranked = {"dataset": dataset, "lexical_run": bm25_run, "dense_run": runs[system]}
            fused[system] = flow.add("fuse", fuse, system, **ranked)[BY_SCORES]
    ordered = [system for system in SYSTEMS if system in runs]
    roles = {"baseline": HYBRID, "candidate": ordered[-1], "rerank_shards": 1}
    evaluation = flow.add(
        "evaluate",
        settings.evaluate.model_copy(update=roles),
        dataset=dataset,
        runs=[*(runs[system] for system in ordered), *(fused[system] for system in ordered if system in fused)],
    ).output

    # The recommended system with its bundle, the report page and the decision.
    judged = {"measure": settings.promote.measure, "bm25": True, "order": tuple(ordered)}
    advice = settings.recommend.model_copy(update=judged)
    recommendation = flow.add("recommend", advice, dataset=dataset, evaluation=evaluation).output
    read = {"dataset": dataset, "evaluation": evaluation, "recommendation": recommendation}
    chosen = flow.add("choose_bundle", settings.choose_bundle, bundles=list(bundles.values()), **read).output
    page = flow.add("report", outcome.Report(**settings.evaluate.speed), **read)
    flow.add("promote", settings.promote, "", [page], bundle=chosen, **read)
    return flow
