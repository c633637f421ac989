"""The component of `measure_latency`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def measure_latency(
    arguments: str,
    dataset: Input[Dataset],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    bundle: Input[Model],
    latency: Output[Artifact],
) -> None:
    """Time single questions."""
    from gnn_encoder.steps.measure_latency import measure_latency

    measure_latency(
        arguments,
        dataset=dataset.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        bundle=bundle.path,
        latency=latency.path,
    )
