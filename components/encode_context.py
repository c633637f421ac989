"""The component of `encode_context`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def encode_context(
    arguments: str,
    dataset: Input[Dataset],
    document_graph: Input[Artifact],
    reranker: Input[Model],
    scorer: Output[Model],
) -> None:
    """Add the vectors of all passages in their context to a re-ranker."""
    from gnn_encoder.steps.encode_context import encode_context

    encode_context(
        arguments,
        dataset=dataset.path,
        document_graph=document_graph.path,
        reranker=reranker.path,
        scorer=scorer.path,
    )
