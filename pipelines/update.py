"""The update pipeline: applies the models of an earlier run to texts that have changed since then, without training."""

from collections.abc import Mapping

from gnn_encoder.flow.graph import Artifact, Given, Graph
from gnn_encoder.pipelines.foundation import read_data
from gnn_encoder.pipelines.train import bundle_of, bundles_without_training, encode_graph
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.rungs import UPDATE
from gnn_encoder.settings.systems import DUAL_ENCODER, systems_with_models


def update(settings: Settings, models: Mapping[str, Given]) -> Graph:
    """Returns the graph of a new bundle: new and changed passages, new queries, deletions.

    Results of the earlier run for unchanged texts are reused (`previous` in the settings of graph and encoding).

    Args:
        models: `dual_encoder`, `cross_encoder` and `gnn_encoder` of the earlier run; `converged` and `dpr` if their
            bundles are wanted (`System.model`).
    """
    flow = Graph("update", "Encodes what has changed with the models of an earlier run.")
    searched = settings.encode_corpus.bm25 or settings.write_queries.generator
    read = read_data(flow, settings) if searched else {"dataset": flow.add("ingest", settings.ingest_of(True)).output}
    dataset, bm25_index = read["dataset"], read.get("bm25_index") if settings.encode_corpus.bm25 else None
    flow.begin(UPDATE)
    encoders = {name: models[name] for name in ("dual_encoder", "cross_encoder")}
    built = flow.add("build_graph", settings.build_graph, dataset=dataset, **encoders)
    inputs: dict[str, Artifact] = {"dataset": dataset, "dual_encoder": models["dual_encoder"]}
    inputs["passage_vectors"] = built["passage_vectors"]
    bundles = list(
        bundles_without_training(flow, settings, settings.build_graph.speed, bm25_index=bm25_index, **inputs).values()
    )
    _, graph_bundle = encode_graph(
        flow,
        settings,
        dataset=dataset,
        gnn_encoder=models["gnn_encoder"],
        passage_vectors=built["passage_vectors"],
        graph=built["graph"],
        bm25_index=bm25_index,
    )
    bundles += [graph_bundle, bundle_of(flow, settings, DUAL_ENCODER, bm25_index=bm25_index, **inputs)]
    for row in systems_with_models():
        if model := models.get(row.model):
            bundles.append(
                bundle_of(flow, settings, row.name, dataset=dataset, dual_encoder=model, bm25_index=bm25_index)
            )
    # The same system as before.
    flow.add("choose_bundle", settings.choose_bundle, dataset=dataset, bundles=bundles)
    return flow
