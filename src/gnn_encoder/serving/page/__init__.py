"""The pages for people, at / and /judge: HTML, one style sheet and scripts, without a framework or the network."""

from collections.abc import Awaitable, Callable, Mapping
from importlib import resources

from fastapi import FastAPI
from fastapi.responses import Response

HTML, SCRIPT = "text/html; charset=utf-8", "text/javascript; charset=utf-8"
PAGE = {
    "/": ("index.html", HTML),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/server.js": ("server.js", SCRIPT),
    "/page.js": ("page.js", SCRIPT),
}
"""Path → file, and its type."""
JUDGING = {"/judge": ("judge.html", HTML), "/judge.js": ("judge.js", SCRIPT)}
"""As `PAGE`, of the page on which people judge."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, files: Mapping[str, tuple[str, str]]) -> None:
    """Adds a page's paths to an application."""
    for path, (name, media_type) in files.items():
        app.add_api_route(path, _sender(name, media_type), include_in_schema=False)


def _sender(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    content = resources.files(__name__).joinpath(name).read_bytes()

    async def send() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return send
