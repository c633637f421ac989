"""The component of `promote`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def promote(
    arguments: str,
    dataset: Input[Dataset],
    evaluation: Input[Artifact],
    recommendation: Input[Artifact],
    graph: Input[Artifact],
    bundle: Input[Model],
    decision: Output[Artifact],
) -> None:
    """Register the recommended bundle, and make it the champion if it passes the gate."""
    from gnn_encoder.steps.promote import promote

    promote(
        arguments,
        # A path is valid in this task's container alone: the registry needs the address that other machines know.
        addresses={"bundle": bundle.uri},
        dataset=dataset.path,
        evaluation=evaluation.path,
        recommendation=recommendation.path,
        graph=graph.path,
        bundle=bundle.path,
        decision=decision.path,
    )
