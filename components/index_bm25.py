"""The component of `index_bm25`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def index_bm25(arguments: str, dataset: Input[Dataset], bm25_index: Output[Artifact]) -> None:
    """Index all passages for BM25."""
    from gnn_encoder.steps.index_bm25 import index_bm25

    index_bm25(arguments, dataset=dataset.path, bm25_index=bm25_index.path)
