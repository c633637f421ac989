"""The component of `select_training_set`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def select_training_set(
    arguments: str,
    dataset: Input[Dataset],
    candidates: Input[Artifact],
    generated_queries: Input[Artifact],
    training_set: Output[Dataset],
) -> None:
    """Denoise, select and augment the training examples."""
    from gnn_encoder.steps.select_training_set import select_training_set

    select_training_set(
        arguments,
        dataset=dataset.path,
        candidates=candidates.path,
        generated_queries=generated_queries.path,
        training_set=training_set.path,
    )
