"""The component of `ingest`."""

from kfp import dsl
from kfp.dsl import Dataset, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def ingest(arguments: str, dataset: Output[Dataset]) -> None:
    """Read a data set and make it canonical."""
    from gnn_encoder.steps.ingest import ingest

    ingest(arguments, dataset=dataset.path)
