"""GNN-encoder: dense passage retrieval whose passage vectors have seen the training queries.

The library below the pipeline. It imports without KFP. Nothing heavy is imported before one of the public names is
used, so that `gnn-encoder --help` stays fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_encoder.errors import UserError
    from gnn_encoder.notebook.calls import Result, compare, run
    from gnn_encoder.notebook.comparison import Comparison
    from gnn_encoder.notebook.measuring import evaluate
    from gnn_encoder.retrieval.search import Hit
    from gnn_encoder.serving.retriever import Explanation, Retriever

__all__ = [
    "Comparison", "Explanation", "Hit", "Result", "Retriever", "UserError", "__version__", "compare", "evaluate", "run",
]  # fmt: skip
__version__ = "0.1.0"
_PLACES = {
    "Comparison": "gnn_encoder.notebook.comparison",
    "Explanation": "gnn_encoder.serving.retriever",
    "Hit": "gnn_encoder.retrieval.search",
    "Result": "gnn_encoder.notebook.calls",
    "Retriever": "gnn_encoder.serving.retriever",
    "UserError": "gnn_encoder.errors",
    "compare": "gnn_encoder.notebook.calls",
    "evaluate": "gnn_encoder.notebook.measuring",
    "run": "gnn_encoder.notebook.calls",
}
"""Public name → module."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
