"""The JSON of requests, answers and errors, from which the OpenAPI description is made."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Described(BaseModel):
    """The base: the docstring of a field is its description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class SearchRequest(Described):
    """One question or several."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"questions": ["how do I read a file line by line?"], "k": 3}]},
    )

    questions: str | list[str]
    """One text, or a list of them."""
    k: Annotated[int, Field(ge=1)] = 10
    """Passages of each question."""
    fuse: bool | None = None
    """Sum the vectors' scores with BM25's; by default as the run recommends."""
    rerank: bool | None = None
    """Order the first hits by the bundle's re-ranker; by default as the run recommends."""
    explain: bool = False
    """Say what each score is made of, by the vectors alone or the re-ranker; one question."""


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


class SearchResponse(Described):
    """A result for each question, in their order."""

    version: str
    """Of the bundle that gave all of them."""
    system: str
    """What ranked the hits."""
    results: list[Result]


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


class Vote(Described):
    """Whether a passage answers a question; false takes an earlier vote back."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"question": "how do I read a file line by line?", "passage_id": "io.TextIOBase", "relevant": True}
            ]
        },
    )

    question: str
    passage_id: Annotated[str, Field(max_length=1000)]
    relevant: bool = True


class Kept(Described):
    """The number of labels in the file."""

    labels: int


class Problem(Described):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
