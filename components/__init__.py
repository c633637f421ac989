"""Each step as a component of Kubeflow Pipelines, made from the step's signature.

`from components import train_gnn` gives a component for a pipeline of your own; `gnn-encoder compile --components DIR`
writes all of them as KFP's component files. A component has the inputs and outputs of its step, `arguments` (JSON with
the settings that differ from the defaults) and the parameters of a run (`RUN_PARAMETERS`).
"""

from typing import Any

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.kubeflow.components import component

__all__ = list(step_names())


def __getattr__(name: str) -> Any:
    if name not in step_names():
        raise AttributeError(name)
    return component(declared(name), IMAGE)
