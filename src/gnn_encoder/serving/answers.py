"""What a bundle says to questions, as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gnn_encoder.errors import Unreachable, UserError, one_line
from gnn_encoder.models.address import LONGEST, RefusedText
from gnn_encoder.retrieval.search import Hit
from gnn_encoder.serving.batching import Ask
from gnn_encoder.serving.following import Served
from gnn_encoder.serving.retriever import Explanation
from gnn_encoder.settings.systems import LEXICAL

ROUNDS = 3
"""Searches for the questions of a batch that share their arguments, if the service of an encoder refuses some."""


@dataclass(frozen=True)
class Answer:
    """What a bundle says to one question: results as JSON, or why there are none."""

    served: Served
    hits: list[dict[str, Any]] | UserError


def ranked_by(served: Served, ask: Ask) -> str:
    """Returns what ranks the hits of a question, in words."""
    system, serving = served.retriever.bundle.system, served.retriever.bundle.serving
    if ask.rerank is None and not ask.explain and served.retriever.reranks(None, ask.fuse):
        return serving.system
    if ask.fuse:
        ranked = f"{LEXICAL} + {system}"
    elif ask.fuse is None and not ask.explain:
        ranked = serving.first_stage.system
    else:
        ranked = system
    return f"{ranked}, re-ranked" if ask.rerank else ranked


def answers_of(served: Served, asks: Sequence[Ask]) -> list[Answer]:
    """Answers all questions by one bundle, those with the same arguments together."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, ask in enumerate(asks):
        alone = (position,) if ask.explain else ()
        limits = json.dumps((ask.filter, ask.rights), sort_keys=True)
        groups.setdefault((ask.k, ask.fuse, ask.rerank, ask.min_confidence, limits, *alone), []).append(position)
    answers: dict[int, Answer] = {}
    for positions in groups.values():
        hit_lists = _hits(served, [asks[position] for position in positions])
        answers |= {position: Answer(served, hits) for position, hits in zip(positions, hit_lists, strict=True)}
    return [answers[position] for position in range(len(asks))]


def _hits(served: Served, asks: Sequence[Ask], rounds: int = ROUNDS) -> list[list[dict[str, Any]] | UserError]:
    """The hits of questions that have the same arguments, or for all of them the reason why there are none.

    A question that the service of an encoder refuses has that reason alone, and the others are asked again, for at most
    so many `rounds`: others wait meanwhile.
    """
    if not asks:
        return []
    first = asks[0]
    try:
        if first.explain:
            explained = served.retriever.explain(
                first.question, first.k, rerank=bool(first.rerank), filter=first.filter, rights=first.rights
            )
            return [[asdict(explanation.hit) | {"why": _why(explanation)} for explanation in explained]]
        hit_lists: list[list[Hit]] = served.retriever.search(
            [ask.question for ask in asks],
            first.k,
            fuse=first.fuse,
            rerank=first.rerank,
            filter=first.filter,
            rights=first.rights,
            min_confidence=first.min_confidence,
        )
    except RefusedText as error:
        refused = [ask.question[:LONGEST] == error.text for ask in asks]
        if not any(refused):
            return [error] * len(asks)
        left = [ask for ask, is_refused in zip(asks, refused, strict=True) if not is_refused]
        busy = Unreachable("the encoder's service refused several questions of this batch: ask again")
        others = iter(_hits(served, left, rounds - 1) if rounds > 1 else [busy] * len(left))
        return [error if is_refused else next(others) for is_refused in refused]
    except UserError as error:
        return [error] * len(asks)
    return [[asdict(hit) for hit in hits] for hits in hit_lists]


def without_paths(error: UserError, served: Served) -> str:
    """Returns an error's line without the server's folders."""
    retriever = served.retriever
    return one_line(error).replace(str(retriever.bundle.path), "the bundle").replace(f"{retriever.run}/", "")


def _why(explained: Explanation) -> dict[str, Any]:
    if explained.graph:
        ranks = {"rank": explained.graph.rank, "plain_rank": explained.graph.plain_rank}
        return {"graph": asdict(explained.graph.why) | ranks}
    return {"parts": [part._asdict() for part in explained.parts]}
