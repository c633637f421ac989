"""A page in a real browser that remembers what went wrong in it, for tests."""

from typing import Any

MLFLOWS_OWN = ("/mlflow/users/current", "/model-versions/get-artifact?path=MLmodel")
"""What the dashboard asks its server for to learn whether it is there: users, and a model that MLflow packed."""
SECONDS = 30


class Page:
    """A page that remembers what went wrong in it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(1000 * SECONDS)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("response", self._response)
        self.page.on("console", self._console)

    def _response(self, response: Any) -> None:
        if response.status >= 400 and not any(known in response.url for known in MLFLOWS_OWN):
            self.errors.append(f"{response.status} {response.url}")

    def _console(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):  # told by `_response`
            self.errors.append(message.text)
