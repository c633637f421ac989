"""The component of `encode_with_labels`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def encode_with_labels(
    arguments: str,
    dataset: Input[Dataset],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    bm25_index: Input[Artifact],
    bundle: Output[Model],
) -> None:
    """Make a bundle in which labelled training queries lift their passages, without training."""
    from gnn_encoder.steps.encode_with_labels import encode_with_labels

    encode_with_labels(
        arguments,
        dataset=dataset.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        bm25_index=bm25_index.path,
        bundle=bundle.path,
    )
