"""The component of `bm25_retrieve`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def bm25_retrieve(
    arguments: str, dataset: Input[Dataset], bm25_index: Input[Artifact], bm25_run: Output[Artifact]
) -> None:
    """BM25's hits for every query."""
    from gnn_encoder.steps.bm25_retrieve import bm25_retrieve

    bm25_retrieve(arguments, dataset=dataset.path, bm25_index=bm25_index.path, bm25_run=bm25_run.path)
