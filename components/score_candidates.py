"""The component of `score_candidates`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def score_candidates(
    arguments: str,
    dataset: Input[Dataset],
    bm25_run: Input[Artifact],
    cross_encoder: Input[Model],
    pair_scores: Output[Artifact],
    dpr_run: Input[Artifact] = None,
) -> None:
    """M_ce's score and [CLS] vector of every candidate pair."""
    from gnn_encoder.steps.score_candidates import score_candidates

    score_candidates(
        arguments,
        dataset=dataset.path,
        bm25_run=bm25_run.path,
        cross_encoder=cross_encoder.path,
        pair_scores=pair_scores.path,
        **({"dpr_run": dpr_run.path} if dpr_run else {}),
    )
