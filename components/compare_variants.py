"""The component of `compare_variants`."""

from typing import List  # noqa: UP035 (KFP knows a list of artifacts by this name alone)

from kfp import dsl
from kfp.dsl import Artifact, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def compare_variants(
    arguments: str,
    figures: Input[List[Artifact]],  # noqa: UP006
    report: Output[Artifact],
) -> None:
    """Table and figures of an ablation."""
    from gnn_encoder.steps.compare_variants import compare_variants

    compare_variants(arguments, figures=[variant.path for variant in figures], report=report.path)
