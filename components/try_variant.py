"""The component of `try_variant`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def try_variant(
    arguments: str,
    dataset: Input[Dataset],
    training_set: Input[Dataset],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    query_vectors: Input[Artifact],
    graph: Input[Artifact],
    figures: Output[Artifact],
) -> None:
    """Train and measure one variant of an ablation."""
    from gnn_encoder.steps.try_variant import try_variant

    try_variant(
        arguments,
        dataset=dataset.path,
        training_set=training_set.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        query_vectors=query_vectors.path,
        graph=graph.path,
        figures=figures.path,
    )
