"""Queries that a language model writes for passages."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, WrittenQueries
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.splits import share
from gnn_encoder.errors import UserError, printable
from gnn_encoder.inference.answers import Answer
from gnn_encoder.inference.language_model import LanguageModel
from gnn_encoder.inference.local_model import LocalModel
from gnn_encoder.settings.written import WriteQueries
from gnn_encoder.tracking.context import Context
from gnn_encoder.written.prompts import Prompts, queries_in

TRAINED = "trained"
"""The kind of the queries of a model that was trained to write them, from passages without a prompt."""
MOST_PASSAGES = 3
"""A query that is written for more passages than these fits none: the model repeats itself."""
SHOWN = 120
"""Characters of an answer that a message shows."""


@dataclass(frozen=True)
class Request:
    """One call: the prompt for `count` queries of a kind for the passage in the row `row`."""

    row: int
    kind: str
    count: int
    prompt: str


def drawn_passages(data: Dataset, most: int, seed: int) -> np.ndarray:
    """Returns the rows int64, ascending, of the passages that get queries; a larger draw includes a smaller one.

    The draw is by the passages' texts: after a change of the data most of those that were paid for are drawn again.
    """
    if len(data.passages) <= most:
        return np.arange(len(data.passages))
    shares = [share(text, f"passages {seed}: ") for batch in data.passages.stream() for text in batch.full_texts()]
    return np.sort(np.argsort(shares, kind="stable")[:most])


def of_language_model(
    model: LanguageModel, data: Dataset, settings: WriteQueries, context: Context
) -> tuple[WrittenQueries, dict[str, Any]]:
    """Returns the queries that a language model writes, and figures of its answers.

    Says before the first call what the calls will take, and after the last one what failed, a line for each kind.

    Raises:
        UserError: no answer has a query, `max_calls` is less than one passage needs, or prompts or examples are given
            for a model that reads none.
        Unreachable: as the model's.
    """
    requests = _requests(model, data, settings)
    texts = [request.prompt for request in requests]
    passages = len({request.row for request in requests})
    context.note(f"{model.name} writes queries for {passages:,} passages: {model.estimate(texts)}")
    answers = list[Answer]()
    writing = context.progress("writing queries", len(requests), "answers")
    for answer in model.answers(texts):
        answers.append(answer)
        writing.advance()
    answers.sort(key=lambda answer: answer.index)
    out, wrong = WrittenQueries([], [], [], [], []), defaultdict[str, list[str]](list)
    queries = [
        queries_in(answer.text or "", request.count, answer.is_cut)
        for request, answer in zip(requests, answers, strict=True)
    ]
    pairs = {
        (folded(query), request.row) for request, written in zip(requests, queries, strict=True) for query in written
    }
    passages_of = Counter(query for query, _ in pairs)
    for request, answer, written in zip(requests, answers, queries, strict=True):
        if answer.text is None:
            wrong["calls failed"].append(answer.failure)
            continue
        if not written:
            wrong["answers hold no query"].append(answer.text)
        fitting = [query for query in written if passages_of[folded(query)] <= MOST_PASSAGES]
        wrong["queries are the same for many passages"] += [query for query in written if query not in fitting]
        for query in fitting or [""]:
            row = (request.row, request.kind, query, request.prompt, answer.text, -1)
            for column, value in zip(vars(out).values(), row, strict=True):
                column.append(value)
    for problem, examples in wrong.items():
        if examples:
            ((example, _),) = Counter(examples).most_common(1)
            context.note(f"{len(examples):,} {problem}, such as: {printable(example)[:SHOWN] or 'an empty one'}")
    if not any(out.query):
        raise UserError(f"{model.name} wrote no query that can be used, in {len(requests):,} calls: try another model")
    by_prompt = dict(zip(texts, answers, strict=True))  # equal prompts are asked once
    answered = [answer for answer in by_prompt.values() if answer.text is not None]
    tokens_in, tokens_out = (sum(getattr(answer, name) for answer in answered) for name in ("tokens_in", "tokens_out"))
    return out, {
        "calls": len(set(texts)),
        "answers_kept": sum(answer.is_kept for answer in answered),
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "cost": (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6,
        **{problem.replace(" ", "_"): len(examples) for problem, examples in wrong.items()},
    }


def _requests(model: LanguageModel, data: Dataset, settings: WriteQueries) -> list[Request]:
    is_trained = isinstance(model, LocalModel) and model.is_trained_writer
    if is_trained and (of_prompts := [name for name in ("prompts", "examples") if getattr(settings, name)]):
        raise UserError(
            f"write_queries.{of_prompts[0]} is for a language model, and {model.name} was trained to read passages "
            "without a prompt: leave it out"
        )
    prompts = Prompts.read(settings.prompts, settings.examples, settings.seed, settings.passage_characters)
    count, calls = settings.passages_of(len(data.passages), 1 if is_trained else len(prompts.kinds))
    if not count:
        raise UserError(f"write_queries.max_calls = {settings.max_calls}, and each passage takes {calls}: allow more")
    rows = drawn_passages(data, count, settings.seed)
    texts = data.passages.take(rows).full_texts()
    if is_trained:
        return [Request(row, TRAINED, 1, text) for row, text in zip(rows.tolist(), texts, strict=True)]
    # Not their rows: a passage that is inserted before them would change all prompts, and all would be paid for again.
    numbers = [int(2**32 * share(text, "prompt: ")) for text in texts]
    return [
        Request(row, kind, count, prompts.prompt(kind, number, text, count))
        for row, number, text in zip(rows.tolist(), numbers, texts, strict=True)
        for kind, count in prompts.counts(number, settings.per_passage).items()
    ]
