"""The component of `merge`."""

from typing import List  # noqa: UP035 (KFP knows a list of artifacts by this name alone)

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def merge(
    arguments: str,
    parts: Input[List[Artifact]],  # noqa: UP006
    dataset: Input[Dataset],
    merged: Output[Artifact],
) -> None:
    """Join the outputs of the tasks that shared a step's work."""
    from gnn_encoder.steps.merge import merge

    merge(arguments, parts=[part.path for part in parts], dataset=dataset.path, merged=merged.path)
