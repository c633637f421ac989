"""The component of `encode_nodes`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def encode_nodes(
    arguments: str,
    dataset: Input[Dataset],
    gnn_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    graph: Input[Artifact],
    encoding: Output[Artifact],
) -> None:
    """Encode the passages and the training queries by the trained encoders."""
    from gnn_encoder.steps.encode_nodes import encode_nodes

    encode_nodes(
        arguments,
        dataset=dataset.path,
        gnn_encoder=gnn_encoder.path,
        passage_vectors=passage_vectors.path,
        graph=graph.path,
        encoding=encoding.path,
    )
