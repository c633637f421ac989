"""The update pipeline: applies the models of an earlier run to texts that have changed since then, without training."""

from collections.abc import Mapping

from gnn_encoder.flow.graph import Artifact, Given, Graph, Output
from gnn_encoder.pipelines.foundation import read_data
from gnn_encoder.pipelines.ladder import EMBEDDING
from gnn_encoder.pipelines.train import bundle_of, bundles_without_training, encode_graph
from gnn_encoder.settings.outcome import BundleWords
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.rungs import UPDATE
from gnn_encoder.settings.systems import DUAL_ENCODER, LEXICAL, UNTRAINED, systems_with_models


def update(settings: Settings, models: Mapping[str, Given], untrained: Settings | None = None) -> Graph:
    """Returns the graph of a new bundle: new and changed passages, new queries, deletions.

    Results of the earlier run for unchanged texts are reused (`previous` in the settings of graph and encoding).

    Args:
        models: `dual_encoder`, `cross_encoder` and `gnn_encoder` of the earlier run; `converged` and `dpr` if their
            bundles are wanted (`System.model`).
        untrained: settings of the rungs below the training, if the bundles of a climb's are wanted.
    """
    flow = Graph("update", "Encodes what has changed with the models of an earlier run.")
    searched = settings.encode_corpus.bm25 or settings.write_queries.generator
    read = read_data(flow, settings) if searched else {"dataset": flow.add("ingest", settings.ingest_of(True)).output}
    dataset, bm25_index = read["dataset"], read.get("bm25_index") if settings.encode_corpus.bm25 else None
    flow.begin(UPDATE)
    bundles: list[Output] = []
    if untrained:
        below: dict[str, Artifact | None] = {"dataset": dataset, "bm25_index": bm25_index}
        untrained = untrained.with_windows
        bundles.append(flow.add("bundle_words", BundleWords(), LEXICAL, **below).output)
        encoded = flow.add("encode", untrained.encode, dataset=dataset)
        below |= {name: encoded[name] for name in EMBEDDING}
        bundles.append(bundle_of(flow, untrained, UNTRAINED, **below))
        bundles += bundles_without_training(flow, untrained, untrained.encode.speed, True, **below).values()
    encoders = {name: models[name] for name in ("dual_encoder", "cross_encoder")}
    built = flow.add("build_graph", settings.build_graph, dataset=dataset, **encoders)
    built_on: dict[str, Artifact | None] = {"dataset": dataset, "passage_vectors": built["passage_vectors"]}
    built_on["bm25_index"] = bm25_index
    inputs = {"dual_encoder": models["dual_encoder"], **built_on}
    bundles += bundles_without_training(flow, settings, settings.build_graph.speed, **inputs).values()
    _, graph_bundle = encode_graph(flow, settings, gnn_encoder=models["gnn_encoder"], graph=built["graph"], **built_on)
    bundles += [graph_bundle, bundle_of(flow, settings, DUAL_ENCODER, **inputs)]
    for row in systems_with_models():
        if model := models.get(row.model):
            bundles.append(
                bundle_of(flow, settings, row.name, dataset=dataset, dual_encoder=model, bm25_index=bm25_index)
            )
    # The same system as before.
    flow.add("choose_bundle", settings.choose_bundle, dataset=dataset, bundles=bundles)
    return flow
