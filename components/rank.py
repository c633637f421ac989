"""The component of `rank`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def rank(
    arguments: str,
    dataset: Input[Dataset],
    run: Output[Artifact],
    dual_encoder: Input[Model] = None,
    passage_vectors: Input[Artifact] = None,
    bundle: Input[Model] = None,
) -> None:
    """Rank the dev and test queries by one dense system."""
    from gnn_encoder.steps.rank import rank

    given = {"dual_encoder": dual_encoder, "passage_vectors": passage_vectors, "bundle": bundle}
    inputs = {name: artifact.path for name, artifact in given.items() if artifact}
    rank(arguments, dataset=dataset.path, run=run.path, **inputs)
