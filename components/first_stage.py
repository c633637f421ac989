"""The component of `first_stage`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def first_stage(
    arguments: str,
    dataset: Input[Dataset],
    bm25_run: Input[Artifact],
    bm25_index: Input[Artifact],
    run: Output[Artifact],
) -> None:
    """Give the hits that are re-ranked."""
    from gnn_encoder.steps.first_stage import first_stage

    first_stage(arguments, dataset=dataset.path, bm25_run=bm25_run.path, bm25_index=bm25_index.path, run=run.path)
