"""The component of `choose_graph`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose_graph(
    arguments: str,
    dataset: Input[Dataset],
    training_set: Input[Dataset],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    graph: Input[Artifact],
    chosen_graph: Output[Artifact],
    graph_choice: Output[Artifact],
) -> None:
    """Try graphs and trainings with frozen encoders on dev, and choose one."""
    from gnn_encoder.steps.choose_graph import choose_graph

    choose_graph(
        arguments,
        dataset=dataset.path,
        training_set=training_set.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        graph=graph.path,
        chosen_graph=chosen_graph.path,
        graph_choice=graph_choice.path,
    )
