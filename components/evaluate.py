"""The component of `evaluate`."""

from typing import List  # noqa: UP035 (KFP knows a list of artifacts by this name alone)

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def evaluate(
    arguments: str,
    dataset: Input[Dataset],
    bm25: Input[Artifact],
    evaluation: Output[Artifact],
    untrained: Input[Artifact] = None,
    dpr: Input[Artifact] = None,
    dual_encoder: Input[Artifact] = None,
    converged: Input[Artifact] = None,
    query_sum: Input[Artifact] = None,
    query_memory: Input[Artifact] = None,
    query_clusters: Input[Artifact] = None,
    gnn_encoder: Input[Artifact] = None,
    reranked: Input[Artifact] = None,
    dpr_fused: Input[Artifact] = None,
    dual_encoder_fused: Input[Artifact] = None,
    converged_fused: Input[Artifact] = None,
    query_sum_fused: Input[Artifact] = None,
    query_memory_fused: Input[Artifact] = None,
    query_clusters_fused: Input[Artifact] = None,
    gnn_encoder_fused: Input[Artifact] = None,
    dual_encoder_fused_by_rank: Input[Artifact] = None,
    gnn_encoder_fused_by_rank: Input[Artifact] = None,
    rerankers: Input[List[Artifact]] = None,  # noqa: UP006
    propagated_rerankers: Input[List[Artifact]] = None,  # noqa: UP006
    generated_rerankers: Input[List[Artifact]] = None,  # noqa: UP006
    evaluated_rerankers: Input[List[Artifact]] = None,  # noqa: UP006
    distilled_rerankers: Input[List[Artifact]] = None,  # noqa: UP006
    document_rerankers: Input[List[Artifact]] = None,  # noqa: UP006
) -> None:
    """Measure the runs of all systems, in the order of the tables. KFP lists the outputs of a loop's tasks alone."""
    from gnn_encoder.steps.evaluate import evaluate

    runs = (
        bm25, untrained, dpr, dual_encoder, converged, query_sum, query_memory, query_clusters, gnn_encoder, reranked,
        dpr_fused, dual_encoder_fused, converged_fused, query_sum_fused, query_memory_fused, query_clusters_fused,
        gnn_encoder_fused, dual_encoder_fused_by_rank, gnn_encoder_fused_by_rank, *(rerankers or ()),
        *(propagated_rerankers or ()), *(generated_rerankers or ()), *(evaluated_rerankers or ()),
        *(distilled_rerankers or ()), *(document_rerankers or ()),
    )  # fmt: skip
    evaluate(arguments, dataset=dataset.path, runs=[run.path for run in runs if run], evaluation=evaluation.path)
