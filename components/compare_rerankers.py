"""The component of `compare_rerankers`."""

from typing import List  # noqa: UP035 (KFP knows a list of artifacts by this name alone)

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def compare_rerankers(
    arguments: str,
    dataset: Input[Dataset],
    first_run: Input[Artifact],
    evaluation: Input[Artifact],
    rerankers: Input[List[Model]],  # noqa: UP006
    generated_rerankers: Input[List[Model]],  # noqa: UP006
    distilled_rerankers: Input[List[Model]],  # noqa: UP006
    document_rerankers: Input[List[Model]],  # noqa: UP006
    generated_queries: Input[Artifact],
    study: Output[Artifact],
) -> None:
    """Tables and figures of a paper on re-ranking."""
    from gnn_encoder.steps.compare_rerankers import compare_rerankers

    compare_rerankers(
        arguments,
        dataset=dataset.path,
        first_run=first_run.path,
        evaluation=evaluation.path,
        rerankers=[
            reranker.path for reranker in (*rerankers, *generated_rerankers, *distilled_rerankers, *document_rerankers)
        ],
        generated_queries=generated_queries.path,
        study=study.path,
    )
