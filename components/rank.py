"""The component of `rank`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def rank(
    arguments: str,
    dataset: Input[Dataset],
    run: Output[Artifact],
    bundle: Input[Model] = None,
) -> None:
    """Rank the dev and test queries by one dense system."""
    from gnn_encoder.steps.rank import rank

    inputs = {"bundle": bundle.path} if bundle else {}
    rank(arguments, dataset=dataset.path, run=run.path, **inputs)
