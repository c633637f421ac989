"""The component of `promote`."""

from kfp import dsl
from kfp.dsl import Artifact, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def promote(arguments: str, report: Input[Artifact], bundle: Input[Model], decision: Output[Artifact]) -> None:
    """Register the bundle and decide whether it becomes the champion."""
    from gnn_encoder.steps.promote import promote

    promote(arguments, report=report.path, bundle=bundle.path, decision=decision.path)
