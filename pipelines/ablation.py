"""The ablation pipeline: compares variants of the graph and of the training; all earlier steps run once."""

from collections.abc import Sequence

from gnn_encoder.flow.graph import Graph
from gnn_encoder.pipelines.foundation import lay_foundation, with_early_refusals
from gnn_encoder.settings.graph import TryVariant, largest_graph
from gnn_encoder.settings.pipeline import Settings, choice
from gnn_encoder.settings.studies import with_seeds


def ablation(settings: Settings, variants: Sequence[TryVariant], seeds: int) -> Graph:
    """Returns the graph from raw text to one table of all variants, each with `seeds` seeds."""
    flow = Graph("ablation", "Compares variants of the GNN-encoder on one foundation.")
    # As in the training pipeline, whose graph is reused if it has all edges.
    wanted = [*choice(settings).tried, *variants]
    base = lay_foundation(flow, settings, largest_graph(settings.build_graph, wanted))
    encoders = {"dataset": base.dataset, "dual_encoder": base.dual_encoder}
    query_vectors = flow.add("encode_queries", settings.encode_queries, **encoders).output
    figures = [
        flow.add(
            "try_variant",
            seeded,
            f"{seeded.variant}, seed {seeded.seed}",
            training_set=base.training_set,
            passage_vectors=base.passage_vectors,
            query_vectors=query_vectors,
            graph=base.graph,
            **encoders,
        ).output
        for variant in variants
        for seeded in with_seeds(variant, seeds)
    ]
    flow.add("compare_variants", settings.compare_variants, figures=figures)
    return with_early_refusals(flow, settings.train_gnn)
