"""The component of `train_reranker`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_reranker(
    arguments: str,
    dataset: Input[Dataset],
    first_run: Input[Artifact],
    reranker: Output[Model],
    training_set: Input[Dataset] = None,
    pair_scores: Input[Artifact] = None,
    document_graph: Input[Artifact] = None,
) -> None:
    """Train a re-ranker on the first stage's hits, and on the training set's further triples."""
    from gnn_encoder.steps.train_reranker import train_reranker

    optional = {"training_set": training_set, "pair_scores": pair_scores, "document_graph": document_graph}
    inputs = {"dataset": dataset, "first_run": first_run}
    inputs |= {name: artifact for name, artifact in optional.items() if artifact}
    train_reranker(
        arguments,
        addresses={name: artifact.uri for name, artifact in inputs.items()},
        **{name: artifact.path for name, artifact in inputs.items()},
        reranker=reranker.path,
    )
