"""The component of `fuse`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def fuse(
    arguments: str,
    dataset: Input[Dataset],
    lexical_run: Input[Artifact],
    dense_run: Input[Artifact],
    convex_run: Output[Artifact],
    reciprocal_run: Output[Artifact],
) -> None:
    """Fuse a dense run with BM25's, by either method."""
    from gnn_encoder.steps.fuse import fuse

    fuse(
        arguments,
        dataset=dataset.path,
        lexical_run=lexical_run.path,
        dense_run=dense_run.path,
        convex_run=convex_run.path,
        reciprocal_run=reciprocal_run.path,
    )
