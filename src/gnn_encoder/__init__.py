"""GNN-encoder: dense passage retrieval whose passage vectors have seen the training queries.

The library below the pipeline. It imports without KFP. Nothing heavy is imported before one of the public names is
used, so that `gnn-encoder --help` stays fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_encoder.errors import UserError
    from gnn_encoder.retrieval.search import Hit
    from gnn_encoder.serving.retriever import Explanation, Retriever

__all__ = ["Explanation", "Hit", "Retriever", "UserError", "__version__"]
__version__ = "0.1.0"
_PLACES = {
    "Explanation": "gnn_encoder.serving.retriever",
    "Hit": "gnn_encoder.retrieval.search",
    "Retriever": "gnn_encoder.serving.retriever",
    "UserError": "gnn_encoder.errors",
}
"""Public name → module."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
