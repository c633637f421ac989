"""The component of `evaluate`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    arguments: str,
    dataset: Input[Dataset],
    bm25_run: Input[Artifact],
    dpr_run: Input[Artifact],
    dual_encoder: Input[Model],
    passage_vectors: Input[Artifact],
    graph: Input[Artifact],
    gnn_encoder: Input[Model],
    encoding: Input[Artifact],
    bundle: Input[Model],
    cross_encoder: Input[Model],
    report: Output[Artifact],
) -> None:
    """Measure every system on dev and test queries."""
    from gnn_encoder.steps.evaluate import evaluate

    evaluate(
        arguments,
        dataset=dataset.path,
        bm25_run=bm25_run.path,
        dpr_run=dpr_run.path,
        dual_encoder=dual_encoder.path,
        passage_vectors=passage_vectors.path,
        graph=graph.path,
        gnn_encoder=gnn_encoder.path,
        encoding=encoding.path,
        bundle=bundle.path,
        cross_encoder=cross_encoder.path,
        report=report.path,
    )
