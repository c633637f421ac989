"""The component of `train_query_generator`."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_query_generator(arguments: str, dataset: Input[Dataset], query_generator: Output[Model]) -> None:
    """Train a seq2seq to write the query of a passage."""
    from gnn_encoder.steps.train_query_generator import train_query_generator

    train_query_generator(
        arguments,
        addresses={"dataset": dataset.uri},
        dataset=dataset.path,
        query_generator=query_generator.path,
    )
