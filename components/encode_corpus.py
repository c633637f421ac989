"""The component of `encode_corpus`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def encode_corpus(
    arguments: str,
    dataset: Input[Dataset],
    gnn_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    graph: Input[Artifact],
    encoding: Input[Artifact],
    bm25_index: Input[Artifact],
    bundle: Output[Model],
) -> None:
    """Propagate over the full graph and index all passages."""
    from gnn_encoder.steps.encode_corpus import encode_corpus

    encode_corpus(
        arguments,
        dataset=dataset.path,
        gnn_encoder=gnn_encoder.path,
        passage_vectors=passage_vectors.path,
        graph=graph.path,
        encoding=encoding.path,
        bm25_index=bm25_index.path,
        bundle=bundle.path,
    )
