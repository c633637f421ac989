"""The component of `build_graph`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def build_graph(
    arguments: str,
    dataset: Input[Dataset],
    dual_encoder: Input[Model],
    cross_encoder: Input[Model],
    graph: Output[Artifact],
    passage_vectors: Output[Artifact],
    pair_scores: Input[Artifact] = None,
) -> None:
    """Build the query-passage graph and M_de's passage vectors."""
    from gnn_encoder.steps.build_graph import build_graph

    build_graph(
        arguments,
        dataset=dataset.path,
        dual_encoder=dual_encoder.path,
        cross_encoder=cross_encoder.path,
        graph=graph.path,
        passage_vectors=passage_vectors.path,
        **({"pair_scores": pair_scores.path} if pair_scores else {}),
    )
