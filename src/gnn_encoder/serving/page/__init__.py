"""The page for people at /: one HTML file, one style sheet and one script, without a framework or the network."""

from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import FastAPI
from fastapi.responses import Response

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""Path → file, and its type."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Adds the page's paths to an application."""
    for path, (name, media_type) in FILES.items():
        app.add_api_route(path, _sender(name, media_type), include_in_schema=False)


def _sender(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = resources.files(__name__).joinpath(name).read_bytes()

    async def send() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return send
