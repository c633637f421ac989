"""The component of `dense_retrieve`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def dense_retrieve(arguments: str, dataset: Input[Dataset], dpr: Input[Model], dpr_run: Output[Artifact]) -> None:
    """DPR's hits for every query."""
    from gnn_encoder.steps.dense_retrieve import dense_retrieve

    dense_retrieve(arguments, dataset=dataset.path, dpr=dpr.path, dpr_run=dpr_run.path)
