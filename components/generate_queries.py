"""The component of `generate_queries`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def generate_queries(
    arguments: str,
    dataset: Input[Dataset],
    candidates: Input[Artifact],
    query_generator: Input[Model],
    generated_queries: Output[Artifact],
) -> None:
    """Write one query for each distinct negative."""
    from gnn_encoder.steps.generate_queries import generate_queries

    generate_queries(
        arguments,
        dataset=dataset.path,
        candidates=candidates.path,
        query_generator=query_generator.path,
        generated_queries=generated_queries.path,
    )
