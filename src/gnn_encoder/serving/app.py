"""The HTTP interface: POST /search, /facets and /feedback, GET /about, /health/live, /health/ready and /metrics, a page
for people at /, and /docs from the OpenAPI description.

Tokens are never logged, and questions only with a `QuestionLog`.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import faiss
import torch
from fastapi import FastAPI, Request, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import generate_latest

from gnn_encoder import __version__
from gnn_encoder.errors import Damaged, Unreachable, UserError, one_line
from gnn_encoder.machine.threads import numpy_on_one_core
from gnn_encoder.models.address import RefusedText
from gnn_encoder.serving.answers import Answer, answers_of, ranked_by, without_paths
from gnn_encoder.serving.batching import Ask, Batcher, Busy
from gnn_encoder.serving.feedback import Feedback
from gnn_encoder.serving.figures import Counted, Figures
from gnn_encoder.serving.following import Followed
from gnn_encoder.serving.guard import RIGHTS, Guard, Limits, add_problems, check_text, checked_questions, refusals
from gnn_encoder.serving.judging import PeoplesJudging, add_judging
from gnn_encoder.serving.page import PAGE, add_page
from gnn_encoder.serving.questions import QuestionLog
from gnn_encoder.serving.rights import Rights
from gnn_encoder.serving.schema import About, Facets, Kept, Narrowed, Refused, SearchRequest, SearchResponse, Vote


def create_app(
    followed: Followed,
    limits: Limits | None = None,
    token: str = "",
    feedback: Feedback | None = None,
    local: bool = False,
    judging: PeoplesJudging | None = None,
    rights: Rights | None = None,
    log: QuestionLog | None = None,
) -> FastAPI:
    """Returns the application that serves what `followed` leads to; with a `token`, to those who know it.

    With `feedback`, it takes labels; with `judging`, people's grades; `local`: it answers only requests for localhost.
    With `rights`, a caller sees the passages of the caller's groups alone; nobody judges then, as judging shows others.
    With `log`, it keeps the questions and shows how they drift.
    """
    if rights and judging:
        raise UserError("whoever judges sees all pooled passages: leave --judge or --rights out")
    limits, cores = limits or Limits(), torch.get_num_threads()
    numpy_on_one_core()

    def answer(asks: Sequence[Ask]) -> list[Answer]:
        figures.batches.observe(len(asks))
        return answers_of(followed.current, asks)

    def answer_soon(asks: Sequence[Ask]) -> list[Answer]:
        # A lone question's products are small: on all cores, each would wait for the core that handles connections.
        if len(asks) > 1:
            return answer(asks)
        try:
            _use_cores(max(1, cores - 1))
            return answer(asks)
        finally:
            _use_cores(cores)

    quick: Batcher[Answer] = Batcher(answer_soon, limits.batch, limits.waiting)
    slow: Batcher[Answer] = Batcher(answer, limits.slow_questions, limits.slow_waiting)
    figures = Figures(lambda: quick.waiting + slow.waiting)
    figures.show(followed.current)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        # A daemon: the end of the process does not wait for a bundle that is being fetched.
        threading.Thread(target=_follow, args=(followed, figures, limits, stop, log), daemon=True).start()
        tasks = [asyncio.create_task(batcher.work()) for batcher in (quick, slow)]
        yield
        stop.set()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        quick.close()
        slow.close()

    def seen_by(request: Request) -> dict[str, Any] | None:
        """What a caller may see. Without the guard's answer the request fails."""
        return request.scope[RIGHTS] if rights else None

    # The guard checks the token; this says so in the OpenAPI description.
    bearer = [Security(HTTPBearer(auto_error=False))] if token or (rights and rights.key) else []
    app = FastAPI(title="GNN-encoder", version=__version__, lifespan=lifespan, redoc_url=None)
    app.add_middleware(Guard, limits=limits, token=token, local=local, rights=rights)
    app.add_middleware(Counted, figures=figures)  # the last is the outermost: what the guard refuses counts, too

    @app.post(
        "/search",
        response_model=SearchResponse,
        responses=refusals(401, 408, 413, 421, 422, 429, 503),
        dependencies=bearer,
    )
    async def search(body: SearchRequest, request: Request) -> Response:
        """Returns the best passages of each question."""
        reranks = followed.current.retriever.reranks(body.rerank, body.fuse)
        questions = checked_questions(body, limits, reranks)
        _check_filter(body.filter, rights)
        arguments = (body.k, body.fuse, body.rerank, body.explain, body.filter, seen_by(request), body.min_confidence)
        asks = [Ask(question, *arguments) for question in questions]
        batcher = slow if reranks or body.explain else quick
        try:
            answers = await _unless_gone(request, batcher.ask(asks))
        except Busy as busy:
            raise Refused(429, str(busy), {"Retry-After": str(busy.seconds)}) from None
        names = [f"question {i} of {len(questions)}: " for i in range(1, len(questions) + 1)] if questions[1:] else [""]
        results = [
            {"question": question, "hits": _hits(one, name)}
            for question, one, name in zip(questions, answers, names, strict=True)
        ]
        served = answers[0].served
        if log:
            narrowed = body.filter is not None or rights is not None
            as_always = body.fuse is None and body.rerank in (None, served.retriever.reranks())
            by_default = as_always and not body.explain and not narrowed
            await asyncio.to_thread(log.add, served, results, by_default)
        return JSONResponse({"version": served.version, "system": ranked_by(served, asks[0]), "results": results})

    @app.post("/facets", response_model=Facets, responses=refusals(401, 413, 421, 422), dependencies=bearer)
    async def facets(body: Narrowed, request: Request) -> Response:
        """Returns how many passages have each value of the fields, among those that fit a filter."""
        served = followed.current
        filters = served.retriever.filters
        _check_filter(body.filter, rights)

        def counted() -> dict[str, Any]:
            selection = filters.select(body.filter, seen_by(request))
            values = filters.facets(selection, without=rights.field if rights else None)
            return {"version": served.version, "passages": filters.count(selection), "facets": values}

        try:
            return JSONResponse(await asyncio.to_thread(counted))
        except UserError as error:
            raise Refused(422, without_paths(error, served)) from None

    @app.get("/about", response_model=About, responses=refusals(401, 421), dependencies=bearer)
    async def about(request: Request) -> Response:
        """Returns the bundle in service, and what may be asked of this server."""
        served = followed.current
        bundle, filters = served.retriever.bundle, served.retriever.filters
        facts = About(
            version=served.version,
            system=served.system,
            passages=await asyncio.to_thread(lambda: filters.count(filters.select(None, seen_by(request)))),
            rerank=bundle.reranker_path is not None,
            reranks=served.retriever.reranks(),
            feedback=feedback is not None,
            judging=judging is not None,
        )
        return JSONResponse(facts.model_dump())

    @app.post(
        "/feedback", response_model=Kept, responses=refusals(401, 403, 413, 421, 422, 503, 507), dependencies=bearer
    )
    async def mark(vote: Vote, request: Request) -> Response:
        """Keeps that a passage answers a question, as a label for the next training."""
        if feedback is None:
            raise Refused(403, "this server keeps no labels: start it with --labels FILE")
        for name in ("question", "passage_id"):
            check_text(getattr(vote, name), name, limits)
        has_passage = followed.current.retriever.has_passage
        if not await asyncio.to_thread(has_passage, vote.passage_id, seen_by(request)):
            raise Refused(422, "passage_id: the bundle has no such passage")
        try:
            kept = await asyncio.to_thread(feedback.mark, vote.question, vote.passage_id, vote.relevant)
            figures.votes.labels(str(vote.relevant).lower()).inc()
        except Damaged as error:
            _log(one_line(error))
            raise Refused(503, "the file of labels is damaged: the server's log says where") from None
        except UserError as error:
            raise Refused(507, one_line(error)) from None
        return JSONResponse({"labels": None if rights else kept})

    add_page(app, PAGE)
    if judging:
        add_judging(app, judging, dependencies=bearer, responses=refusals(401, 413, 421, 422, 507))

    _add_health(app, followed, figures)
    add_problems(app)
    return app


def _add_health(app: FastAPI, followed: Followed, figures: Figures) -> None:
    """Adds the paths that a cluster asks for."""

    @app.get("/health/live", include_in_schema=False)
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health/ready", include_in_schema=False)
    async def ready() -> dict[str, str]:
        served = followed.current
        refused = {"refused": "another bundle is not served: the server's log says why"} if followed.refused else {}
        return {"status": "ready", "version": served.version, "system": served.system, **refused}

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(figures.registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def _hits(answer: Answer, name: str) -> list[dict[str, Any]]:
    """Returns the hits of a question; raises Refused if there is an error in their place, with the question's name."""
    if isinstance(answer.hits, Damaged):
        _log(f"version {answer.served.version}: {one_line(answer.hits)}")
        raise Refused(503, "a file of the bundle, or of its run, is damaged: the server's log says which")
    if isinstance(answer.hits, RefusedText):
        _log(one_line(answer.hits))
        raise Refused(422, f"{name}the service that encodes questions refuses this one: ask it in other words")
    if isinstance(answer.hits, Unreachable):
        _log(one_line(answer.hits))
        raise Refused(503, "the service that encodes questions gives no vectors: the server's log says why")
    if isinstance(answer.hits, UserError):
        raise Refused(422, without_paths(answer.hits, answer.served))
    return answer.hits


def _check_filter(wanted: dict[str, Any] | None, rights: Rights | None) -> None:
    try:
        json.dumps(wanted)  # now, and not beside the questions of others
    except RecursionError:
        raise Refused(422, "filter: too many lists or objects in one another") from None
    if rights and rights.field in (wanted or ()):
        raise Refused(422, f"filter: {rights.field!r} says who may see a passage, and no filter may name it")


def _use_cores(count: int) -> None:
    """Lets torch and FAISS use so many cores in this thread, and in threads that begin later."""
    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)


def _follow(
    followed: Followed, figures: Figures, limits: Limits, stop: threading.Event, log: QuestionLog | None
) -> None:
    """Loads the encoder, then looks again and again where the bundle's name leads, and how questions drift."""
    _load_encoder(followed)
    while not stop.wait(limits.look_seconds):
        before = followed.refused
        if followed.look():
            figures.swaps.inc()
            figures.show(followed.current)
            figures.drift.clear()  # it was of the former bundle
            _log(f"serving version {followed.current.version}, {followed.current.system}")
            _load_encoder(followed)
        elif followed.refused and followed.refused != before:
            _log(f"serving version {followed.current.version} on; refused: {followed.refused}")
        figures.refused.set(bool(followed.refused))
        try:
            if log and (drift := log.drift(followed.current)):
                for name, value in drift.shares().items():
                    figures.drift.labels(name).set(value)
        except (UserError, OSError) as error:  # the service that encodes questions gives no vectors, or a full disk
            _log(one_line(error))


def _load_encoder(followed: Followed) -> None:
    try:
        followed.current.retriever.load_encoder()
    except UserError as error:  # an answer that needs the encoder says so, too
        _log(f"version {followed.current.version}: {one_line(error)}")


def _log(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Returns the answers; raises Refused if the client goes away before, so that nothing is computed for nobody."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, watch = asyncio.create_task(answering), asyncio.create_task(gone())
    try:
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Refused(408, "the client went away")
    finally:
        answer.cancel()
        watch.cancel()
