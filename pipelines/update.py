"""The update pipeline: applies the models of an earlier run to texts that have changed since then.

Settings are as in train.py. The models are URIs of artifacts of the earlier run. Results of the earlier run for
unchanged texts are reused (`previous` in the settings of the graph and of the encoding).
"""

from kfp import dsl

import components


@dsl.pipeline(name="gnn-encoder-update", description="Encodes what has changed with the models of an earlier run.")
def update(
    ingest: str,
    build_graph: str,
    encode_query_sum: str,
    encode_query_memory: str,
    encode_query_clusters: str,
    encode_corpus: str,
    dual_encoder: str,
    cross_encoder: str,
    gnn_encoder: str,
) -> None:
    """A new bundle without training: new and changed passages, new queries, deletions."""
    dataset = components.ingest(arguments=ingest).output
    models = {
        name: dsl.importer(artifact_uri=uri, artifact_class=dsl.Model).output
        for name, uri in {"dual": dual_encoder, "cross": cross_encoder, "gnn": gnn_encoder}.items()
    }
    built = components.build_graph(
        arguments=build_graph, dataset=dataset, dual_encoder=models["dual"], cross_encoder=models["cross"]
    ).outputs
    for arguments in (encode_query_sum, encode_query_memory, encode_query_clusters):
        components.encode_with_labels(
            arguments=arguments,
            dataset=dataset,
            dual_encoder=models["dual"],
            passage_vectors=built["passage_vectors"],
        )
    components.encode_corpus(
        arguments=encode_corpus,
        dataset=dataset,
        gnn_encoder=models["gnn"],
        passage_vectors=built["passage_vectors"],
        graph=built["graph"],
    )
