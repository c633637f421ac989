"""The component of `choose_bundle`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def choose_bundle(
    arguments: str,
    dataset: Input[Dataset],
    dpr: Input[Model],
    dual_encoder: Input[Model],
    converged: Input[Model],
    query_sum: Input[Model],
    query_memory: Input[Model],
    query_clusters: Input[Model],
    gnn_encoder: Input[Model],
    chosen_bundle: Output[Model],
    recommendation: Input[Artifact] = None,
    evaluation: Input[Artifact] = None,
    graph: Input[Artifact] = None,
) -> None:
    """Make the bundle of the recommended system, or of an earlier run's system."""
    from gnn_encoder.steps.choose_bundle import choose_bundle

    made_in_a_run = {"recommendation": recommendation, "evaluation": evaluation, "graph": graph}
    bundles = (dpr, dual_encoder, converged, query_sum, query_memory, query_clusters, gnn_encoder)
    choose_bundle(
        arguments,
        dataset=dataset.path,
        bundles=[bundle.path for bundle in bundles],
        chosen_bundle=chosen_bundle.path,
        **{name: artifact.path for name, artifact in made_in_a_run.items() if artifact},
    )
