"""The HTTP interface: POST /search, /health/live, /health/ready, /metrics, and /docs from the OpenAPI description.

Errors are problem details (RFC 9457) with one line in `detail`, and say nothing of the program's insides. Neither
questions nor tokens are logged.
"""

import asyncio
import hmac
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from gnn_encoder import __version__
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.retrieval.search import Hit
from gnn_encoder.serving.batching import Ask, Batcher, Busy
from gnn_encoder.serving.following import Followed, Served
from gnn_encoder.serving.retriever import Explanation

PROBLEM = "application/problem+json"
OPEN = ("/health/live", "/health/ready")
"""Paths that need no token, because a cluster's probes have none."""
PATHS = ("/search", "/metrics", *OPEN)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """What a server takes; more is refused with one line."""

    questions: int = 64
    """Questions of one request."""
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
    """Questions that wait; the next ones are told when to come again."""
    look_seconds: float = 5.0
    """Time between two looks at where the bundle's name leads."""


class SearchRequest(BaseModel):
    """One question or several."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"questions": ["how do I read a file line by line?"], "k": 3}]},
    )

    questions: str | list[str]
    k: Annotated[int, Field(ge=1, description="Passages of each question.")] = 10
    fuse: Annotated[
        bool | None, Field(description="Sum the vectors' scores with BM25's; by default as the run recommends.")
    ] = None
    rerank: Annotated[bool, Field(description="Order the first 100 hits by the bundle's re-ranker.")] = False
    explain: Annotated[bool, Field(description="Also say what each score is made of; slow.")] = False


class Passage(BaseModel):
    """A hit, best first."""

    rank: int
    score: float
    passage_id: str
    title: str
    text: str
    why: dict[str, Any] | None = None
    """What the score is made of, if asked for: `parts` that sum to it, or what the `graph` did."""


class Result(BaseModel):
    """The hits of one question."""

    question: str
    hits: list[Passage]


class SearchResponse(BaseModel):
    """A result for each question, in their order, and the bundle that gave all of them."""

    version: str
    system: str
    results: list[Result]


class Problem(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class Refused(Exception):
    """A request that gets no answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


@dataclass(frozen=True)
class Answer:
    """What a bundle says to one question: results as JSON, or why there are none."""

    served: Served
    hits: list[dict[str, Any]] | UserError


class Figures:
    """What /metrics shows."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        name = "gnn_encoder"
        self.requests = Counter(f"{name}_requests", "Requests.", ("path", "status"), registry=self.registry)
        self.seconds = Histogram(f"{name}_request_seconds", "Time of a request.", ("path",), registry=self.registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.batches = Histogram(
            f"{name}_batch_questions", "Questions per batch.", buckets=sizes, registry=self.registry
        )
        Gauge(f"{name}_questions_waiting", "Questions that wait or are in work.", registry=self.registry).set_function(
            waiting
        )
        self.bundle = Gauge(f"{name}_bundle", "The bundle in service.", ("version", "system"), registry=self.registry)
        self.swaps = Counter(f"{name}_bundle_swaps", "Bundles that replaced another.", registry=self.registry)
        self.refused = Gauge(
            f"{name}_bundle_refused", "1 while the name leads to a bundle that is refused.", registry=self.registry
        )

    def show(self, served: Served) -> None:
        """Makes a bundle the one in service."""
        self.bundle.clear()
        self.bundle.labels(served.version, served.system).set(1)


def create_app(followed: Followed, limits: Limits | None = None, token: str = "") -> FastAPI:
    """Returns the application that serves what `followed` leads to; with a `token`, to those who know it."""
    limits = limits or Limits()

    def answers_of(asks: Sequence[Ask]) -> list[Answer]:
        figures.batches.observe(len(asks))
        return _answers(followed.current, asks)

    batcher: Batcher[Answer] = Batcher(answers_of, limits.batch, limits.waiting)
    figures = Figures(lambda: batcher.waiting)
    figures.show(followed.current)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(batcher.work()), asyncio.create_task(_follow(followed, figures, limits))]
        yield
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        batcher.close()

    problems: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "content": {PROBLEM: {}}} for status in (400, 401, 408, 413, 422, 429)
    }
    app = FastAPI(title="GNN-encoder", version=__version__, lifespan=lifespan, redoc_url=None)
    app.add_middleware(Guard, limits=limits, token=token, figures=figures)

    @app.post("/search", response_model=SearchResponse, responses=problems)
    async def search(asked: SearchRequest) -> Response:
        """Returns the best passages of each question."""
        questions = [asked.questions] if isinstance(asked.questions, str) else asked.questions
        _check(questions, asked.k, limits)
        asks = [Ask(each, asked.k, asked.fuse, asked.rerank, asked.explain) for each in questions]
        try:
            answers = await batcher.ask(asks)
        except Busy as busy:
            raise Refused(429, str(busy), {"Retry-After": str(busy.seconds)}) from None
        results = []
        for question, answer in zip(questions, answers, strict=True):
            if isinstance(answer.hits, UserError):
                raise Refused(422, one_line(answer.hits))
            results.append({"question": question, "hits": answer.hits})
        served = answers[0].served
        return JSONResponse({"version": served.version, "system": served.system, "results": results})

    @app.get("/health/live", include_in_schema=False)
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health/ready", include_in_schema=False)
    async def ready() -> dict[str, str]:
        served = followed.current
        facts = {"status": "ready", "version": served.version, "system": served.system}
        return facts | ({"refused": followed.refused} if followed.refused else {})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(figures.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "str", "list[str]"))
        return problem(422, f"{place}: {first['msg']}" if place else str(first["msg"]))

    @app.exception_handler(HTTPException)
    async def wrong(request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return problem(error.status, error.detail, error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return problem(500, "the server failed; its log says why")

    return app


async def _follow(followed: Followed, figures: Figures, limits: Limits) -> None:
    """Looks again and again where the bundle's name leads."""
    while True:
        await asyncio.sleep(limits.look_seconds)
        before = followed.refused
        if await asyncio.to_thread(followed.look):
            figures.swaps.inc()
            figures.show(followed.current)
            _log(f"serving version {followed.current.version}, {followed.current.system}")
        elif followed.refused and followed.refused != before:
            _log(f"serving version {followed.current.version} on; refused: {followed.refused}")
        figures.refused.set(bool(followed.refused))


def _log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


def _check(questions: Sequence[str], k: int, limits: Limits) -> None:
    """Raises Refused for what exceeds the limits, and for questions without words."""
    if not 1 <= len(questions) <= limits.questions:
        raise Refused(422, f"questions: {len(questions)} of them; give 1 to {limits.questions}")
    if k > limits.k:
        raise Refused(422, f"k: {k} passages; ask for at most {limits.k}")
    for place, question in enumerate(questions):
        if len(question) > limits.characters:
            raise Refused(422, f"questions.{place}: {len(question)} characters; give at most {limits.characters}")
        if not question.strip():
            raise Refused(422, f"questions.{place}: empty; give some words")
        try:
            question.encode()
        except UnicodeEncodeError:
            raise Refused(422, f"questions.{place}: half of a surrogate pair; give Unicode text") from None


def _answers(served: Served, asks: Sequence[Ask]) -> list[Answer]:
    """Answers all questions by one bundle, those with the same arguments together."""
    answers: list[Answer | None] = [None] * len(asks)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, ask in enumerate(asks):
        alone = (place,) if ask.explain else ()
        groups.setdefault((ask.k, ask.fuse, ask.rerank, *alone), []).append(place)
    for places in groups.values():
        for place, hits in zip(places, _hits(served, [asks[place] for place in places]), strict=True):
            answers[place] = Answer(served, hits)
    return [answer for answer in answers if answer]


def _hits(served: Served, asks: Sequence[Ask]) -> list[list[dict[str, Any]] | UserError]:
    """The hits of questions that have the same arguments, or for all of them the reason why there are none."""
    first = asks[0]
    try:
        if first.explain:
            explained = served.retriever.explain(first.question, first.k, rerank=first.rerank)
            return [[asdict(each.hit) | {"why": _why(each)} for each in explained]]
        found: list[list[Hit]] = served.retriever.search(
            [ask.question for ask in asks], first.k, fuse=first.fuse, rerank=first.rerank
        )
    except UserError as error:
        return [error] * len(asks)
    return [[asdict(hit) for hit in hits] for hits in found]


def _why(explained: Explanation) -> dict[str, Any]:
    if explained.graph:
        ranks = {"rank": explained.graph.rank, "plain_rank": explained.graph.plain_rank}
        return {"graph": asdict(explained.graph.why) | ranks}
    return {"parts": [part._asdict() for part in explained.parts]}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Returns a response with problem details."""
    content = Problem(title=HTTPStatus(status).phrase, status=status, detail=one_line(detail))
    return JSONResponse(content.model_dump(), status, dict(headers or {}), PROBLEM)


class Guard:
    """The middleware: asks for the token, reads a body up to its limits, and counts requests."""

    def __init__(self, app: Callable[..., Awaitable[None]], limits: Limits, token: str, figures: Figures) -> None:
        self._app, self._limits, self._figures = app, limits, figures
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            refusal, receive = await self._admitted(scope, receive)
            if refusal:
                await refusal(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self._figures.requests.labels(path, str(status)).inc()
            self._figures.seconds.labels(path).observe(time.perf_counter() - began)

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Returns the refusal of a request, or None and a `receive` that has the whole body."""
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"")
        if self._expected and scope["path"] not in OPEN and not hmac.compare_digest(given, self._expected):
            return problem(
                401, "give the server's token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
            ), receive
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
        said = headers.get(b"content-length", b"0")
        if said.isdigit() and int(said) > self._limits.body:
            return None
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > self._limits.body:
                return None
        return b"".join(parts)
