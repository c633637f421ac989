"""The JSON of requests, answers and errors, from which the OpenAPI description is made."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Described(BaseModel):
    """The base: the docstring of a field is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Posted(Described):
    """The base of requests."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(Posted):
    """One question or several."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"questions": ["how do I read a file line by line?"], "k": 3}]}
    )

    questions: str | list[str]
    """One text, or a list of them."""
    k: Annotated[int, Field(ge=1)] = 10
    """Passages of each question."""
    fuse: bool | None = None
    """Sum the vectors' scores with BM25's; by default as the run recommends."""
    rerank: bool | None = None
    """Order the first hits by the bundle's re-ranker; by default as the run recommends."""
    min_confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    """Give a question no hit rather than an unsure one: of all questions, at most the share 1 - min_confidence then has
    a wrong first hit. Only for the default ranking, and calibrated without filters."""
    explain: bool = False
    """Say what each score is made of, by the vectors alone or the re-ranker; one question."""
    filter: dict[str, Any] | None = None
    """Only passages whose fields fit, such as {"product": ["a", "b"], "date": {">=": "2026-01-01"}}."""


class Passage(Described):
    """A hit, best first."""

    rank: int
    score: float
    passage_id: str
    title: str
    text: str
    why: dict[str, Any] | None = None
    """What the score is made of, if asked for: `parts` that sum to it, or what the `graph` did."""


class Result(Described):
    """The hits of one question."""

    question: str
    hits: list[Passage]
    """Empty: no passage has a word of the question, or none answers it with `min_confidence`."""


class SearchResponse(Described):
    """A result for each question, in their order."""

    version: str
    """Of the bundle that gave all of them."""
    system: str
    """What ranked the hits."""
    results: list[Result]


class Narrowed(Posted):
    """The passages whose values are counted."""

    filter: dict[str, Any] | None = None
    """As of a search; None: all passages."""


class Facet(Described):
    """A value of a field, and how many of the passages have it."""

    value: str | bool
    passages: int


class Facets(Described):
    """The most frequent values of each field with texts or truth values."""

    version: str
    passages: int
    """That fit the filter."""
    facets: dict[str, list[Facet]]


class About(Described):
    """The bundle in service, and what may be asked of this server."""

    version: str
    system: str
    passages: int
    rerank: bool
    """Whether the bundle has a re-ranker."""
    reranks: bool
    """Whether it re-ranks unless a request says otherwise."""
    feedback: bool
    """Whether POST /feedback takes labels."""
    judging: bool
    """Whether POST /judging takes grades, and people judge at /judge."""


class Vote(Posted):
    """Whether a passage answers a question; false takes an earlier vote back."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"question": "how do I read a file?", "passage_id": "io.TextIOBase", "relevant": True}]
        }
    )

    question: str
    passage_id: Annotated[str, Field(max_length=1000)]
    relevant: bool = True


class Kept(Described):
    """The label is kept."""

    labels: int | None
    """The number of all labels; None of a server with `--rights`, whose callers may not see others' labels."""


class Grade(Posted):
    """A grade of a passage for a query. None takes it back; without a passage, None skips the query, 0 unskips it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query_id": "q1", "passage_id": "p7", "grade": 2}]})

    query_id: str
    passage_id: str | None = None
    grade: Annotated[int, Field(ge=0, le=3)] | None = None


class ToJudge(Described):
    """A passage without a grade by a person; the model's is not told."""

    query_id: str
    query: str
    passage_id: str
    title: str
    text: str
    number: int
    """Of the query's passages, from 1."""
    of: int


class Gain(Described):
    """A system's gain over the first one, corrected by people's grades; a lone system's mean."""

    system: str
    estimate: float | None
    low: float | None
    """Of the 95 % interval; None: too few queries."""
    high: float | None


class Agreed(Described):
    """Agreement of people and the model on the pairs that both graded."""

    pairs: int
    equal: float
    """Share of equal grades."""
    kappa: float | None
    """Cohen's κ of the grades."""
    relevant_equal: float
    relevant_kappa: float | None


class Shown(Described):
    """What the model said of the passage that was just graded; `grade` None: nothing."""

    grade: int | None
    reason: str


class Progressed(Described):
    """What to judge next, and what the grades say so far."""

    next: ToJudge | None
    """None: all that makes a difference is judged."""
    graded: int
    """Passages with a grade by people."""
    judged: int
    """Queries that are judged in full."""
    deciding: int
    """Queries whose labels can make a difference, without the skipped ones."""
    queries: int
    skipped: int
    measure: str
    baseline: str | None
    """The system over which the others gain."""
    gains: list[Gain]
    shown_from: int
    """Queries judged in full from which gains are shown."""
    agreement: Agreed | None
    shown: Shown | None = None


class Problem(Described):
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
