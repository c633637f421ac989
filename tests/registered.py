"""Versions of a registered model whose MLflow models have no files: a test of the registry needs no bundle."""

from collections.abc import Mapping
from typing import Any

from gnn_encoder.promotion.registry import Registry
from gnn_encoder.tracking.pipeline_run import addressed


def register(
    models: Registry, bundle: str, tags: Mapping[str, Any], figures: Mapping[str, float] = {}, card: str = ""
) -> str:
    """Registers the address of a bundle; returns the version's number."""
    with addressed(models.uri):
        return models.register(bundle, tags, figures, card, models._client.create_logged_model("0").model_id)
