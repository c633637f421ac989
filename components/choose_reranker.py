"""The component of `choose_reranker`."""

from typing import List  # noqa: UP035 (KFP knows a list of artifacts by this name alone)

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose_reranker(
    arguments: str,
    dataset: Input[Dataset],
    runs: Input[List[Artifact]],  # noqa: UP006
    scorers: Input[List[Model]],  # noqa: UP006
    generated_runs: Input[List[Artifact]],  # noqa: UP006
    generated_scorers: Input[List[Model]],  # noqa: UP006
    distilled_runs: Input[List[Artifact]],  # noqa: UP006
    distilled_scorers: Input[List[Model]],  # noqa: UP006
    document_runs: Input[List[Artifact]],  # noqa: UP006
    document_scorers: Input[List[Model]],  # noqa: UP006
    reranker: Output[Model],
) -> None:
    """Choose the re-ranker that is the best on dev queries."""
    from gnn_encoder.steps.choose_reranker import choose_reranker

    choose_reranker(
        arguments,
        dataset=dataset.path,
        runs=[run.path for run in (*runs, *generated_runs, *distilled_runs, *document_runs)],
        scorers=[scorer.path for scorer in (*scorers, *generated_scorers, *distilled_scorers, *document_scorers)],
        reranker=reranker.path,
    )
