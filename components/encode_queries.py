"""The component of `encode_queries`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def encode_queries(
    arguments: str, dataset: Input[Dataset], dual_encoder: Input[Model], query_vectors: Output[Artifact]
) -> None:
    """M_de's vectors of all queries."""
    from gnn_encoder.steps.encode_queries import encode_queries

    encode_queries(arguments, dataset=dataset.path, dual_encoder=dual_encoder.path, query_vectors=query_vectors.path)
