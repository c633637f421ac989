"""The component of `evaluate`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    arguments: str,
    dataset: Input[Dataset],
    bm25: Input[Artifact],
    untrained: Input[Artifact],
    dpr: Input[Artifact],
    dual_encoder: Input[Artifact],
    gnn_encoder: Input[Artifact],
    reranked: Input[Artifact],
    dual_encoder_fused: Input[Artifact],
    gnn_encoder_fused: Input[Artifact],
    dual_encoder_fused_by_rank: Input[Artifact],
    gnn_encoder_fused_by_rank: Input[Artifact],
    evaluation: Output[Artifact],
) -> None:
    """Measure the runs of all systems, in the order of the tables. KFP passes no list of several tasks' outputs."""
    from gnn_encoder.steps.evaluate import evaluate

    runs = (
        bm25, untrained, dpr, dual_encoder, gnn_encoder, reranked, dual_encoder_fused, gnn_encoder_fused,
        dual_encoder_fused_by_rank, gnn_encoder_fused_by_rank,
    )  # fmt: skip
    evaluate(arguments, dataset=dataset.path, runs=[run.path for run in runs], evaluation=evaluation.path)
