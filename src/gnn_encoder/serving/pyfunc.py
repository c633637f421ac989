"""A bundle as an MLflow model: the code that `mlflow.pyfunc.load_model` and `mlflow models serve` run.

MLflow copies this file into each registered model (models from code, without pickles) and runs the copy, so the file
uses what older and newer versions of this package have in common. The model has the address and the digest of its
bundle (`promotion.logged_model`), not the bundle. No other module imports this file, because it imports MLflow.

With MLflow's tracing, each question is a span of the type RETRIEVER whose outputs are the passages. Spans are written
inside a span of the application, or if an experiment is named for them: users' questions are not stored unasked.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import Document, SpanType
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.filters import filter_of
from gnn_encoder.retrieval.search import Hit
from gnn_encoder.serving.retriever import Retriever
from gnn_encoder.storage import local_folder

EXPERIMENT = ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID")
"""Environment variables that name the experiment of the traces; `mlflow.set_experiment` sets one, too."""


class BundleModel(PythonModel):  # type: ignore[misc]  # MLflow has no types
    """Answers questions with the hits of `gnn-encoder search`."""

    def load_context(self, context: Any) -> None:
        """Opens the bundle; `model_config={"bundle": FOLDER}` of `load_model` names another place of it.

        Raises:
            UserError: there is no bundle, it is incomplete or damaged, or it is another one than was registered.
        """
        address, digest = (str(context.model_config[name]) for name in ("bundle", "digest"))
        self._retriever = Retriever.load(local_folder(address, indexed=False))
        if self._retriever.bundle.manifest.digest != digest:
            raise UserError(f"{address} is not the bundle that was registered: restore it, or name its new place")

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Returns the hits of each question, best first, each as {rank, score, passage_id, title, text}.

        Args:
            model_input: the questions, in one column. `predict` of the loaded model also takes a list of questions.
            params: `k`, the number of hits, `rerank`, and `filter` as JSON, as of `Retriever.search`.

        Raises:
            MlflowException: as `Retriever.search`; the server then answers 400.
        """
        questions, began = model_input.iloc[:, 0].tolist(), time.time_ns()
        try:
            if not all(isinstance(question, str) for question in questions):
                raise UserError("a question is not a text: give a list of questions")
            hit_lists = self._retriever.search(questions, **_arguments(params or {}))
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        _trace(questions, hit_lists, params or {}, began)
        return [[asdict(hit) for hit in hits] for hits in hit_lists]


def _arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Retriever.search`; an empty filter is none."""
    arguments = {name: value for name, value in params.items() if name != "filter" or value}
    if isinstance(text := arguments.get("filter"), str):
        arguments["filter"] = filter_of(text)
    return arguments


def _trace(questions: Sequence[str], hit_lists: Sequence[Sequence[Hit]], params: Mapping[str, Any], began: int) -> None:
    """Writes a span for each question; all begin together, because the questions are encoded together."""
    outer = mlflow.get_current_active_span()
    if outer is None and not any(os.environ.get(name) for name in EXPERIMENT):
        return
    for question, hits in zip(questions, hit_lists, strict=True):
        inputs = {"question": question, **params}
        span = mlflow.start_span_no_context("search", SpanType.RETRIEVER, outer, inputs, start_time_ns=began)
        documents = [
            Document(hit.text or hit.title, {"title": hit.title, "score": hit.score, "rank": hit.rank}, hit.passage_id)
            for hit in hits
        ]
        span.end(outputs=documents)


set_model(BundleModel())
