"""The component of `bundle_reranker`."""

from kfp import dsl
from kfp.dsl import Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def bundle_reranker(arguments: str, first_stage: Input[Model], reranker: Input[Model], bundle: Output[Model]) -> None:
    """Add a re-ranker to a bundle."""
    from gnn_encoder.steps.bundle_reranker import bundle_reranker

    bundle_reranker(arguments, first_stage=first_stage.path, reranker=reranker.path, bundle=bundle.path)
