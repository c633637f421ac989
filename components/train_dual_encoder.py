"""The component of `train_dual_encoder`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_dual_encoder(
    arguments: str,
    dataset: Input[Dataset],
    training_set: Input[Dataset],
    start: Input[Model],
    pair_scores: Input[Artifact],
    dual_encoder: Output[Model],
) -> None:
    """Train M_de, the initial dual encoder, or train M_de further."""
    from gnn_encoder.steps.train_dual_encoder import train_dual_encoder

    train_dual_encoder(
        arguments,
        addresses={
            "dataset": dataset.uri,
            "training_set": training_set.uri,
            "start": start.uri,
            "pair_scores": pair_scores.uri,
        },
        dataset=dataset.path,
        training_set=training_set.path,
        start=start.path,
        pair_scores=pair_scores.path,
        dual_encoder=dual_encoder.path,
    )
