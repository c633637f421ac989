"""The component of `rerank`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def rerank(
    arguments: str,
    dataset: Input[Dataset],
    first_run: Input[Artifact],
    scorer: Input[Model],
    run: Output[Artifact],
) -> None:
    """Order the first hits of a run by a scorer."""
    from gnn_encoder.steps.rerank import rerank

    rerank(arguments, dataset=dataset.path, first_run=first_run.path, scorer=scorer.path, run=run.path)
