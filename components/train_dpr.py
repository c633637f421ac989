"""The component of `train_dpr`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_dpr(arguments: str, dataset: Input[Dataset], bm25_run: Input[Artifact], dpr: Output[Model]) -> None:
    """Train the dual encoder that finds candidates."""
    from gnn_encoder.steps.train_dpr import train_dpr

    train_dpr(
        arguments,
        addresses={"dataset": dataset.uri, "bm25_run": bm25_run.uri},
        dataset=dataset.path,
        bm25_run=bm25_run.path,
        dpr=dpr.path,
    )
