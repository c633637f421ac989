"""The component of `train_reranker`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_reranker(
    arguments: str, dataset: Input[Dataset], first_run: Input[Artifact], reranker: Output[Model]
) -> None:
    """Train a re-ranker on the first stage's hits."""
    from gnn_encoder.steps.train_reranker import train_reranker

    train_reranker(arguments, dataset=dataset.path, first_run=first_run.path, reranker=reranker.path)
