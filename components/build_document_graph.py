"""The component of `build_document_graph`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def build_document_graph(arguments: str, dataset: Input[Dataset], document_graph: Output[Artifact]) -> None:
    """Build the typed edges between the passages and sections of documents."""
    from gnn_encoder.steps.build_document_graph import build_document_graph

    build_document_graph(arguments, dataset=dataset.path, document_graph=document_graph.path)
