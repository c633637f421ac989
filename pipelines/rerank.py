"""The re-ranking pipeline: trains re-rankers on one first stage, side by side, and compares them with it.

`systems` is a list with an entry per re-ranker: `train`, the arguments of `train_reranker`, and `rerank`, the arguments
of `rerank`. `bundle` is the URI of the first stage's bundle, if it has one. The other parameters are as in train.py.
"""

from kfp import dsl

import components


@dsl.pipeline(name="gnn-encoder-rerank", description="Trains re-rankers and compares them on queries they never saw.")
def rerank(
    ingest: str,
    bm25_retrieve: str,
    first_stage: str,
    systems: list,
    evaluate: str,
    report: str,
    choose_reranker: str,
    bundle_reranker: str,
    bundle: str,
) -> None:
    """From raw text to one table of all re-rankers, and the best of them."""
    dataset = components.ingest(arguments=ingest).output
    bm25_run = components.bm25_retrieve(arguments=bm25_retrieve, dataset=dataset).output
    first_run = components.first_stage(arguments=first_stage, dataset=dataset, bm25_run=bm25_run).output
    with dsl.ParallelFor(systems) as system:
        reranker = components.train_reranker(arguments=system.train, dataset=dataset, first_run=first_run).output
        run = components.rerank(arguments=system.rerank, dataset=dataset, first_run=first_run, scorer=reranker).output
    evaluation = components.evaluate(
        arguments=evaluate, dataset=dataset, bm25=first_run, rerankers=dsl.Collected(run)
    ).output
    components.report(arguments=report, dataset=dataset, evaluation=evaluation)
    best = components.choose_reranker(
        arguments=choose_reranker, dataset=dataset, runs=dsl.Collected(run), scorers=dsl.Collected(reranker)
    ).output
    with dsl.If(bundle != ""):
        searched = dsl.importer(artifact_uri=bundle, artifact_class=dsl.Model).output
        components.bundle_reranker(arguments=bundle_reranker, first_stage=searched, reranker=best)
