"""The component of `recommend`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def recommend(
    arguments: str, dataset: Input[Dataset], evaluation: Input[Artifact], recommendation: Output[Artifact]
) -> None:
    """Recommend the simplest system that is about as good as the best one on dev queries."""
    from gnn_encoder.steps.recommend import recommend

    recommend(arguments, dataset=dataset.path, evaluation=evaluation.path, recommendation=recommendation.path)
