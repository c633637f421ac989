"""The component of `train_gnn`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def train_gnn(
    arguments: str,
    dataset: Input[Dataset],
    training_set: Input[Dataset],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    graph: Input[Artifact],
    gnn_encoder: Output[Model],
    graph_choice: Input[Artifact] = None,
) -> None:
    """Masked Graph Training of dual encoder and GNN together."""
    from gnn_encoder.steps.train_gnn import train_gnn

    addresses = {
        "dataset": dataset.uri,
        "training_set": training_set.uri,
        "dual_encoder": dual_encoder.uri,
        "passage_vectors": passage_vectors.uri,
        "graph": graph.uri,
    }
    train_gnn(
        arguments,
        addresses=addresses | ({"graph_choice": graph_choice.uri} if graph_choice else {}),
        dataset=dataset.path,
        training_set=training_set.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        graph=graph.path,
        gnn_encoder=gnn_encoder.path,
        **({"graph_choice": graph_choice.path} if graph_choice else {}),
    )
