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

    train_reranker(
        arguments,
        dataset=dataset.path,
        first_run=first_run.path,
        reranker=reranker.path,
        **({"training_set": training_set.path} if training_set else {}),
        **({"pair_scores": pair_scores.path} if pair_scores else {}),
        **({"document_graph": document_graph.path} if document_graph else {}),
    )
