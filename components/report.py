"""The component of `report`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def report(
    arguments: str,
    dataset: Input[Dataset],
    evaluation: Input[Artifact],
    latency: Input[Artifact],
    graph: Input[Artifact],
    gnn_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    encoding: Input[Artifact],
    bundle: Input[Model],
    report: Output[Artifact],
) -> None:
    """Write the page."""
    from gnn_encoder.steps.report import report as write

    write(
        arguments,
        dataset=dataset.path,
        evaluation=evaluation.path,
        latency=latency.path,
        graph=graph.path,
        gnn_encoder=gnn_encoder.path,
        passage_vectors=passage_vectors.path,
        encoding=encoding.path,
        bundle=bundle.path,
        report=report.path,
    )
