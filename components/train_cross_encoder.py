"""The component of `train_cross_encoder`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_cross_encoder(
    arguments: str,
    dataset: Input[Dataset],
    bm25_run: Input[Artifact],
    dpr_run: Input[Artifact],
    cross_encoder: Output[Model],
) -> None:
    """Train M_ce on positives against retrieved negatives."""
    from gnn_encoder.steps.train_cross_encoder import train_cross_encoder

    train_cross_encoder(
        arguments,
        addresses={"dataset": dataset.uri, "bm25_run": bm25_run.uri, "dpr_run": dpr_run.uri},
        dataset=dataset.path,
        bm25_run=bm25_run.path,
        dpr_run=dpr_run.path,
        cross_encoder=cross_encoder.path,
    )
