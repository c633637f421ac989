"""People judge what `gnn-encoder judge` pooled: GET and POST /judging, and the page at /judge.

A person sees no grade of the model before giving one; the answer to a grade says it. One person judges at a time: two
would see the same passages, and the later grade of a passage counts.
"""

import asyncio
import json
import random
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.judging.agreement import agreement, finite
from gnn_encoder.judging.grading import read_judgements
from gnn_encoder.judging.order import Place
from gnn_encoder.judging.people import Comparison, PeoplesFile
from gnn_encoder.judging.pool import FIGURES, JUDGEMENTS, ORDER, PEOPLE, POOL, Pool, read_as
from gnn_encoder.serving.page import JUDGING, add_page
from gnn_encoder.serving.schema import Agreed, Gain, Grade, Progressed, Refused, Shown, ToJudge

FEWEST = 10
"""Queries judged in full from which a gain is shown: Student's interval of fewer is not to be relied on."""


class PeoplesJudging:
    """The grades that people give for a folder of `judge`. Several threads may use it."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder; raises UserError if it is none of `judge`, or takes no grades."""
        self._pool, order = Pool(folder / POOL), read_as(folder / ORDER, Place)
        if any(place.query_id not in self._pool.queries for place in order):
            raise UserError(f"{folder / ORDER} is of other queries: run `gnn-encoder judge {folder}` again")
        try:
            settings = json.loads((folder / FIGURES).read_text("utf-8"))["settings"]
            self._relevant, measures = int(settings["relevant"]), [str(name) for name in settings["measures"]]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{folder / FIGURES} has no settings: run `gnn-encoder judge {folder}` again") from None
        self._judgements = {(j.query_id, j.passage_id): j for j in read_judgements(folder / JUDGEMENTS)}
        grades = {pair: judgement.grade for pair, judgement in self._judgements.items()}
        self._comparison = Comparison(self._pool, order, grades, self._relevant, measures[:1])
        self._measure, self._file = measures[0], PeoplesFile(folder / PEOPLE)
        self._lock = Lock()

    def close(self) -> None:
        """Lets another server take grades for the folder."""
        self._file.close()

    def take(self, posted: Grade) -> Progressed:
        """Keeps a grade; raises Refused for a pair that is not in the pool, UserError if it cannot be kept."""
        known = self._pool.passages.get(posted.query_id)
        if known is None or (posted.passage_id is not None and posted.passage_id not in known):
            raise Refused(422, "query_id, passage_id: the pool has no such hit")
        if posted.passage_id is None and posted.grade:
            raise Refused(422, "grade: a query without a passage takes 0 or none")
        with self._lock:
            self._file.add(posted.query_id, posted.passage_id, posted.grade)
            progressed = self._progressed()
        if posted.passage_id is not None and posted.grade is not None:
            judgement = self._judgements.get((posted.query_id, posted.passage_id))
            progressed.shown = Shown(
                grade=judgement.grade if judgement else None, reason=judgement.reason if judgement else ""
            )
        return progressed

    def progressed(self) -> Progressed:
        """Returns what is to be judged next, and what the grades say so far."""
        with self._lock:
            return self._progressed()

    def _progressed(self) -> Progressed:
        people = self._file.people
        decided = self._comparison.decided(people)
        graded_by_model = [self._judgements[pair] for pair in people.grades if pair in self._judgements]
        agreed = agreement(graded_by_model, people.grades, self._relevant, are_grades=True)
        first, *rest = self._pool.hits
        shows = decided.judged >= FEWEST or decided.judged == decided.deciding
        gains = [
            Gain(
                system=system, **finite(asdict(gain.corrected)) if shows else dict.fromkeys(("estimate", "low", "high"))
            )
            for system, gain in decided.gains[self._measure].items()
        ]
        return Progressed(
            next=self._next(),
            graded=len(people.grades),
            judged=decided.judged,
            deciding=decided.deciding,
            queries=len(self._pool.queries),
            skipped=len(people.skipped),
            measure=mean_name(self._measure),
            baseline=first if rest else None,
            gains=gains,
            shown_from=FEWEST,
            agreement=Agreed(
                pairs=agreed.pairs,
                equal=agreed.graded_equal or 0.0,
                kappa=agreed.graded_kappa,
                relevant_equal=agreed.equal,
                relevant_kappa=agreed.kappa,
            )
            if agreed
            else None,
        )

    def _next(self) -> ToJudge | None:
        people = self._file.people
        order, judged = self._comparison.remaining(people)
        if judged == len(order):
            return None
        query = self._pool[order[judged].query_id]
        # In an order that says nothing of ranks, and that stays after a restart.
        passages = random.Random(query.query_id).sample(query.passages, len(query.passages))
        missing = [number for number, p in enumerate(passages) if (query.query_id, p.passage_id) not in people.grades]
        return ToJudge(
            query_id=query.query_id,
            query=query.query,
            **asdict(passages[missing[0]]),
            number=len(passages) - len(missing) + 1,
            of=len(passages),
        )


def add_judging(app: FastAPI, judging: PeoplesJudging, **route: Any) -> None:
    """Adds the page and its two requests to an application; `route`: arguments of both routes."""

    @app.get("/judging", response_model=Progressed, **route)
    async def progress() -> Response:
        """Returns the passage to judge next, and what people's grades say so far."""
        return JSONResponse((await asyncio.to_thread(judging.progressed)).model_dump())

    @app.post("/judging", response_model=Progressed, **route)
    async def judge(posted: Grade) -> Response:
        """Keeps a grade, or takes it back, and returns what the model said of that passage, and what is next."""
        try:
            return JSONResponse((await asyncio.to_thread(judging.take, posted)).model_dump())
        except UserError as error:
            raise Refused(507, one_line(error)) from None

    add_page(app, JUDGING)
