"""The component of `evaluate_passages`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate_passages(
    arguments: str,
    dataset: Input[Dataset],
    ranking: Input[Artifact],
    query_generator: Input[Model],
    run: Output[Artifact],
) -> None:
    """Add the query's likelihood under the generator to the scores of the first hits."""
    from gnn_encoder.steps.evaluate_passages import evaluate_passages

    evaluate_passages(
        arguments, dataset=dataset.path, ranking=ranking.path, query_generator=query_generator.path, run=run.path
    )
