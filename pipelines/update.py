"""The update pipeline: applies the models of an earlier run to texts that have changed since then.

Settings are as in train.py. The models are URIs of artifacts of the earlier run. Results of the earlier run for
unchanged texts are reused (`previous` in the settings of the graph and of the encoding).
"""

from kfp import dsl

import components


@dsl.pipeline(name="gnn-encoder-update", description="Encodes what has changed with the models of an earlier run.")
def update(
    ingest: str,
    index_bm25: str,
    build_graph: str,
    encode_query_sum: str,
    encode_query_memory: str,
    encode_query_clusters: str,
    encode_nodes: list,
    merge_encode_nodes: str,
    encode_corpus: str,
    bundle_dual_encoder: str,
    bundle_converged: str,
    bundle_dpr: str,
    choose_bundle: str,
    dual_encoder: str,
    cross_encoder: str,
    gnn_encoder: str,
    converged: str,
    dpr: str,
) -> None:
    """A new bundle without training: new and changed passages, new queries, deletions."""
    dataset = components.ingest(arguments=ingest).output
    bm25_index = components.index_bm25(arguments=index_bm25, dataset=dataset).output
    addresses = {"dual": dual_encoder, "cross": cross_encoder, "gnn": gnn_encoder, "converged": converged, "dpr": dpr}
    models = {name: dsl.importer(artifact_uri=uri, artifact_class=dsl.Model).output for name, uri in addresses.items()}
    built = components.build_graph(
        arguments=build_graph, dataset=dataset, dual_encoder=models["dual"], cross_encoder=models["cross"]
    ).outputs
    bundles = {
        name: components.encode_with_labels(
            arguments=arguments,
            dataset=dataset,
            dual_encoder=models["dual"],
            passage_vectors=built["passage_vectors"],
            bm25_index=bm25_index,
        ).output
        for name, arguments in {
            "query_sum": encode_query_sum,
            "query_memory": encode_query_memory,
            "query_clusters": encode_query_clusters,
        }.items()
    }
    with dsl.ParallelFor(encode_nodes) as arguments:
        vectors = components.encode_nodes(
            arguments=arguments,
            dataset=dataset,
            gnn_encoder=models["gnn"],
            passage_vectors=built["passage_vectors"],
            graph=built["graph"],
        ).output
    bundles["gnn_encoder"] = components.encode_corpus(
        arguments=encode_corpus,
        dataset=dataset,
        gnn_encoder=models["gnn"],
        passage_vectors=built["passage_vectors"],
        graph=built["graph"],
        encoding=components.merge(arguments=merge_encode_nodes, parts=dsl.Collected(vectors), dataset=dataset).output,
        bm25_index=bm25_index,
    ).output
    bundles["dual_encoder"] = components.bundle_dual_encoder(
        arguments=bundle_dual_encoder,
        dataset=dataset,
        dual_encoder=models["dual"],
        passage_vectors=built["passage_vectors"],
        bm25_index=bm25_index,
    ).output
    for name, arguments in {"converged": bundle_converged, "dpr": bundle_dpr}.items():
        bundles[name] = components.bundle_dual_encoder(
            arguments=arguments, dataset=dataset, dual_encoder=models[name], bm25_index=bm25_index
        ).output
    # The same system as before.
    components.choose_bundle(arguments=choose_bundle, dataset=dataset, **bundles)
