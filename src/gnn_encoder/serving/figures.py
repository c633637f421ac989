"""The figures of GET /metrics, in the text format of Prometheus."""

import time
from collections.abc import Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gnn_encoder.serving.following import Served
from gnn_encoder.serving.guard import OPEN, App, Receive, Scope, Send

PATHS = ("/search", "/facets", "/feedback", "/about", "/judging", *OPEN)
"""Paths that are counted by name."""


class Figures:
    """What /metrics shows."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "gnn_encoder", "registry": self.registry}
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.requests = Counter("requests", "Requests.", ("path", "status"), **ours)
        self.seconds = Histogram("request_seconds", "Time of a request.", ("path",), **ours)
        self.batches = Histogram("batch_questions", "Questions per batch.", buckets=sizes, **ours)
        Gauge("questions_waiting", "Questions that wait or are in work.", **ours).set_function(waiting)
        self.bundle = Gauge("bundle", "The bundle in service.", ("version", "system"), **ours)
        self.swaps = Counter("bundle_swaps", "Bundles that replaced another.", **ours)
        self.votes = Counter("votes", "Votes by POST /feedback.", ("relevant",), **ours)
        self.drift = Gauge("question_drift", "The latest questions beside the dev queries.", ("figure",), **ours)
        refused = "1 while the bundle that the name leads to is refused, or its store fails."
        self.refused = Gauge("bundle_refused", refused, **ours)

    def show(self, served: Served) -> None:
        """Makes a bundle the one in service."""
        self.bundle.clear()
        self.bundle.labels(served.version, served.system).set(1)


class Counted:
    """The middleware that counts requests and their time."""

    def __init__(self, app: App, figures: Figures) -> None:
        self._app, self._figures = app, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._figures.requests.labels(path, str(status)).inc()
            self._figures.seconds.labels(path).observe(time.perf_counter() - began)
