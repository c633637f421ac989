"""The component of `bundle_dual_encoder`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def bundle_dual_encoder(
    arguments: str,
    dataset: Input[Dataset],
    dual_encoder: Input[Model],
    bm25_index: Input[Artifact],
    bundle: Output[Model],
    passage_vectors: Input[Artifact] = None,
    recommendation: Input[Artifact] = None,
) -> None:
    """Make a bundle of a dual encoder's vectors as they are."""
    from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder

    optional = {"passage_vectors": passage_vectors, "recommendation": recommendation}
    bundle_dual_encoder(
        arguments,
        dataset=dataset.path,
        dual_encoder=dual_encoder.path,
        bm25_index=bm25_index.path,
        bundle=bundle.path,
        **{name: artifact.path for name, artifact in optional.items() if artifact},
    )
