"""How a language model grades passages for queries."""

from typing import Annotated

from pydantic import Field

from gnn_encoder.settings.language_model import Asking
from gnn_encoder.settings.measures import Measures
from gnn_encoder.settings.values import Count, PositiveInt


class Judge(Asking):
    """Which hits are graded, how the model is asked, and what its grades mean."""

    depth: PositiveInt = 10
    """First hits of each bundle that are graded: the pool. Measures of deeper hits take the rest as not relevant."""
    max_queries: Count = 0
    """Most queries, by a seeded draw. 0: all. `max_calls` draws whole queries, too."""
    passage_characters: PositiveInt = 4000
    """Characters of title and text that the model reads."""
    prompt: str = ""
    """A Jinja file with your own prompt, with `query` and `passage`; by default `judging/grade.j2`."""
    relevant: Annotated[int, Field(ge=1, le=3, strict=True)] = 2
    """Lowest grade that counts as relevant in measures and agreement. 1 says: of the subject, but no answer."""
    measures: Measures = ("nDCG@10", "RR@10")
    """Measures of the comparison."""
    answer_tokens: PositiveInt = 96
    """Most tokens of an answer: a grade and one line of reason."""
    prompt_tokens: PositiveInt = 2048
    """As of `Asking`."""
