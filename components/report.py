"""The component of `report`."""

from kfp import dsl
from kfp.dsl import Artifact, Dataset, Input, Model, Output

from components.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def report(
    arguments: str,
    dataset: Input[Dataset],
    evaluation: Input[Artifact],
    report: Output[Artifact],
    latency: Input[Artifact] = None,
    graph: Input[Artifact] = None,
    gnn_encoder: Input[Model] = None,
    passage_vectors: Input[Artifact] = None,
    encoding: Input[Artifact] = None,
    bundle: Input[Model] = None,
    recommendation: Input[Artifact] = None,
    graph_choice: Input[Artifact] = None,
) -> None:
    """Write the page."""
    from gnn_encoder.steps.report import report as write

    given = {
        "latency": latency, "graph": graph, "gnn_encoder": gnn_encoder, "passage_vectors": passage_vectors,
        "encoding": encoding, "bundle": bundle, "recommendation": recommendation, "graph_choice": graph_choice,
    }  # fmt: skip
    inputs = {name: artifact.path for name, artifact in given.items() if artifact}
    write(arguments, dataset=dataset.path, evaluation=evaluation.path, report=report.path, **inputs)
