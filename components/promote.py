"""The component of `promote`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def promote(
    arguments: str,
    dataset: Input[Dataset],
    report: Input[Artifact],
    bundle: Input[Model],
    decision: Output[Artifact],
) -> None:
    """Register the bundle, and make it the champion if it passes the gate."""
    from gnn_encoder.steps.promote import promote

    paths = {"dataset": dataset.path, "report": report.path, "bundle": bundle.path, "decision": decision.path}
    # The path is of this task's container: the registry needs what other machines know.
    promote(arguments, addresses={"bundle": bundle.uri}, **paths)
