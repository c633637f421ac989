"""The component of `propagate_sections`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def propagate_sections(
    arguments: str, dataset: Input[Dataset], ranking: Input[Artifact], run: Output[Artifact]
) -> None:
    """Mix the scores of the first hits with the mean scores of their sections."""
    from gnn_encoder.steps.propagate_sections import propagate_sections

    propagate_sections(arguments, dataset=dataset.path, ranking=ranking.path, run=run.path)
