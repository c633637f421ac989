"""Logs a bundle as an MLflow model, so that MLflow's own programs can load, serve and compare it.

The model has code, a signature, an example, and the address and digest of its bundle: some kilobytes. A bundle may have
gigabytes, and is stored already where its address says.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnn_encoder import __version__
from gnn_encoder.artifacts import Bundle
from gnn_encoder.tracking import mlflow_runs

CODE = Path(__file__).parent / "../serving/pyfunc.py"
"""The file that MLflow copies into the model and runs. It belongs to a room above this one, so it is not imported."""
HITS = 10
"""Default number of hits of a question, as of `Retriever.search`."""


def log_model(
    client: Any, run_id: str, name: str, bundle: Bundle, address: str, figures: Mapping[str, float], dataset: Any
) -> str:
    """Logs the model of a step's run with figures on a dataset; returns the model's id.

    A process that is killed leaves a model that is not `READY`, and no version names it.

    Args:
        name: the registered model's name.
        address: the bundle's folder, or its address in an object store.
        dataset: the MLflow dataset of the figures.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    serving = bundle.serving
    facts = {"system": serving.system, "encoder": bundle.system, "weight": serving.weight, **bundle.manifest.rows}
    model = client.create_logged_model(
        client.get_run(run_id).info.experiment_id,
        name=re.sub(r"[/:.%\"']", "_", name),
        source_run_id=run_id,
        params={key: str(value) for key, value in facts.items()},
        tags={"bundle": address, "digest": bundle.manifest.digest},
        model_type="retriever",
    )
    status = LoggedModelStatus.FAILED
    try:
        with tempfile.TemporaryDirectory() as temporary:
            _save(Path(temporary) / "model", model, bundle, address)
            client.log_model_artifacts(model.model_id, str(Path(temporary) / "model"))
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        mlflow_runs.log_figures(client, run_id, figures, model.model_id, dataset)
        status = LoggedModelStatus.READY
    finally:
        client.finalize_logged_model(model.model_id, status)
    return str(model.model_id)


def _save(folder: Path, model: Any, bundle: Bundle, address: str) -> None:
    """Writes the MLflow model's files; the bundle is not opened, as it may lie in an object store only."""
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    # MLflow would copy the lock file of a uv project in the working folder into the model.
    os.environ.setdefault("MLFLOW_UV_AUTO_DETECT", "false")
    types = {"rank": "long", "score": "double", "passage_id": "string", "title": "string", "text": "string"}
    hit = Object([Property(name, DataType[kind]) for name, kind in types.items()])
    reranks = bundle.serving.reranks
    signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(Array(hit))]),
        params=ParamSchema(
            [
                ParamSpec("k", DataType.long, HITS),
                ParamSpec("rerank", DataType.boolean, reranks),
                ParamSpec("filter", DataType.string, ""),
            ]
        ),
    )
    pyfunc.save_model(
        folder,
        python_model=CODE.resolve(),
        mlflow_model=Model(model.artifact_location, model.source_run_id, model_id=model.model_id),
        signature=signature,
        input_example=(["how do I read a file line by line?"], {"k": 3}),
        pip_requirements=[f"gnn-encoder>={__version__}"],
        model_config={"bundle": address, "digest": bundle.manifest.digest},
    )
