"""What the server refuses: requests without the token, for another host, and beyond its limits.

Errors are problem details (RFC 9457) with one line in `detail`, and say nothing of the program's insides.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.errors import one_line
from gnn_encoder.serving.page import JUDGING, PAGE
from gnn_encoder.serving.rights import Rights
from gnn_encoder.serving.schema import Problem, Refused, SearchRequest

PROBLEM = "application/problem+json"
DOCS = ("/docs", "/docs/oauth2-redirect", "/openapi.json")
OPEN = ("/health/live", "/health/ready", "/metrics", *PAGE, *JUDGING, *DOCS)
"""Paths that need no token: what a cluster asks, and pages without anything of a bundle; they ask for the token."""

RIGHTS = "gnn_encoder_rights"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names of this machine for itself."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """How much a server takes, and how often it looks for another bundle."""

    questions: int = 64
    """Questions of one request."""
    slow_questions: int = 8
    """Questions of one request that re-ranks: each reads 100 passages."""
    characters: int = 4000
    """Characters of a question. The encoder reads its first tokens only."""
    k: int = 100
    body: int = 2**18
    """Bytes of a request's body."""
    body_seconds: float = 10.0
    """Time in which a body must arrive."""
    batch: int = 64
    """Questions that are answered together."""
    waiting: int = 512
    """Questions that wait or are in work; further ones are answered with 429."""
    slow_waiting: int = 32
    """As `waiting`, of requests that re-rank or explain. They have a queue of their own, so that others do not wait."""
    look_seconds: float = 5.0
    """Time between two looks at where the bundle's name leads."""


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with problem details."""
    content = Problem(title=HTTPStatus(status).phrase, status=status, detail=one_line(detail))
    return JSONResponse(content.model_dump(), status, dict(headers or {}), PROBLEM)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the `responses` of a route that may answer with problem details, for the OpenAPI description."""
    content = {PROBLEM: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def add_problems(app: FastAPI) -> None:
    """Makes all errors of an application problem details."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["loc"] == ("body",):
            return problem(422, "the body is no JSON object: send one, with the header Content-Type: application/json")
        if first["type"] == "extra_forbidden":
            return problem(422, f"{first['loc'][-1]}: there is no such field")
        location = ".".join(str(part) for part in first["loc"] if part not in ("body", "str", "list[str]"))
        return problem(422, f"{location}: {first['msg']}" if location else str(first["msg"]))

    @app.exception_handler(HTTPException)
    async def wrong(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return problem(error.status, error.detail, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return problem(500, "the server failed; its log says why")


def checked_questions(body: SearchRequest, limits: Limits, reranks: bool) -> list[str]:
    """Returns the questions of a request; raises Refused beyond the limits, and for questions without words.

    reranks: whether they are re-ranked.
    """
    questions = [body.questions] if isinstance(body.questions, str) else body.questions
    most = limits.slow_questions if reranks else limits.questions
    if not 1 <= len(questions) <= most:
        raise Refused(422, f"questions: {len(questions)} of them; give 1 to {most}")
    if body.k > limits.k:
        raise Refused(422, f"k: {body.k} passages; ask for at most {limits.k}")
    if body.explain and body.fuse:
        raise Refused(422, "explain: it explains the vectors' ranking, or the re-ranker's; leave out fuse")
    if body.explain and body.min_confidence is not None:
        raise Refused(422, "min_confidence: it is of the default ranking; leave out explain")
    if body.explain and len(questions) > 1:
        raise Refused(422, f"explain: {len(questions)} questions; explain one at a time")
    for index, question in enumerate(questions):
        check_text(question, f"questions.{index}", limits)
    return questions


def check_text(text: str, name: str, limits: Limits) -> None:
    """Raises Refused for a text that is too long, has no words, or is not Unicode."""
    if len(text) > limits.characters:
        raise Refused(422, f"{name}: {len(text)} characters; give at most {limits.characters}")
    if is_blank(text):
        raise Refused(422, f"{name}: empty; give some words")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(422, f"{name}: half of a surrogate pair; give Unicode text") from None


class Guard:
    """The middleware that asks for the token, and reads a body up to its limits.

    `rights`: a request has in its scope, as `RIGHTS`, the filter of what its sender may see, or is refused.

    `local`: only requests for `LOOPBACK` are answered, and none that another site's page sends. Otherwise such a page,
    or one whose own name is made to lead to this machine (DNS rebinding), could search and leave labels from a user's
    browser.
    """

    def __init__(self, app: App, limits: Limits, token: str, local: bool = False, rights: Rights | None = None) -> None:
        self._app, self._limits, self._local, self._rights = app, limits, local, rights
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request, or passes it on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal, receive = await self._admitted(scope, receive)
        await (refusal or self._app)(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Returns the refusal of a request, or None and a `receive` that has the whole body."""
        headers = dict(scope["headers"])
        foreign = scope["method"] == "POST" and headers.get(b"sec-fetch-site") == b"cross-site"
        if self._local and (foreign or _host(headers) not in LOOPBACK):
            return problem(
                421, "without a token this server answers only requests for localhost, and none of another site's page"
            ), receive
        authorization = headers.get(b"authorization", b"")
        if self._expected and scope["path"] not in OPEN and not hmac.compare_digest(authorization, self._expected):
            return problem(
                401, "give the server's token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
            ), receive
        if self._rights and scope["path"] not in OPEN:
            try:
                scope[RIGHTS] = self._rights.of(scope["headers"])
            except Refused as refused:
                return problem(refused.status, refused.detail, refused.headers), receive
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await self._body(headers, receive)
        except TimeoutError:
            return problem(408, f"the body took longer than {self._limits.body_seconds:g} s"), receive
        if body is None:
            return problem(413, f"the body is larger than {self._limits.body:,} bytes"), receive
        rest: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return rest.pop() if rest else await receive()

        return None, replay

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes | None:
        """Returns the body, or None if it is too large."""
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limits.body:
            return None
        parts, size, continues = [], 0, True
        while continues:
            message = await receive()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size, continues = size + len(parts[-1]), message.get("more_body", False)
            if size > self._limits.body:
                return None
        return b"".join(parts)


def _host(headers: Mapping[bytes, bytes]) -> str:
    """Returns the name of the host that a request is for, without the port; empty if there is none."""
    try:
        return urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").hostname or ""
    except ValueError:
        return ""
