"""Explains the hits of a learned fusion: what each part adds to a score, by which words and which training query."""

import numpy as np

from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.learned_search import LearnedSearch
from gnn_encoder.retrieval.parts import FEATURES, Candidates
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import Hit, Searcher

TERMS = 3
"""Words that are named."""


def explain_by_fusion(
    searcher: Searcher, question: str, k: int = 5, only: Selection | None = None
) -> list[tuple[Hit, list[Contribution]]]:
    """Returns the best `k` passages for a query, best first, each with the parts of its score, the largest first.

    The parts sum to the score, up to rounding. A hit behind the candidates is not explained. With `only`, the best of
    these passages, and no query or word of a query that it does not name.

    Raises:
        UserError: as `Searcher.find`.
    """
    learned, labelled = searcher.index.learned, searcher.bundle.labelled
    assert learned and labelled, "a bundle without a fusion"
    searcher.check(question, k)
    vector = searcher.encode(question)
    candidates = learned.parts.candidates([question], vector, only=only)
    if not len(candidates.passage):
        return []
    scores, amounts = learned.fusion.scores(candidates.features), learned.fusion.contributions(candidates.features)
    order = np.lexsort((candidates.passage, -scores))[:k]
    hits = searcher.hits(scores[order], candidates.passage[order])
    of_word = {
        word: _totals(learned, texts, candidates.passage[order])
        for word, texts in learned.parts.words.words(question).items()
    }
    similarity, near = (array[0] for array in learned.parts.nearest(vector))
    if only:
        near = np.where(only.names(*learned.parts.labels.by_query.into(near), len(near)), near, -1)
    hides, explained = only is not None and only.seen is not None, []
    for rank, (hit, row) in enumerate(zip(hits, order.tolist(), strict=True)):
        behind = ""
        _, asking = learned.parts.labels.by_passage.into(candidates.passage[[row]])
        labelled_near = near[(near >= 0) & np.isin(near, asking)]
        if len(labelled_near):
            (name,), (text,) = labelled.names(labelled_near[:1])
            behind = f": “{text}” [{name}], similarity {similarity[near == labelled_near[0]][0]:.2f}"
        words = {
            "dense": f"vectors ({_value(candidates, row, 'dense')}{_rank(candidates, row, 'dense')})",
            "words": f"words{_terms(of_word, 0, rank)}",
            "labelled": f"words of passage and labelled queries{'' if hides else _terms(of_word, 1, rank)}",
            "adapted": f"query adapter ({_value(candidates, row, 'adapted')}{_rank(candidates, row, 'adapted')})",
            "summed": "vectors with the sum of labelled queries",
            "memory": f"similar training query{behind}",
            "nearest": "nearness of any training query",
            "terms": "number of words",
            "length": "length of the passage",
        }
        parts = [Contribution("all candidates", float(amounts[row, -1]))]
        for part, words_of_part in words.items():
            columns = [i for i, name in enumerate(FEATURES) if name.split()[0] == part]
            parts.append(Contribution(words_of_part, float(amounts[row, columns].sum())))
        explained.append((hit, sorted(parts, key=lambda part: -abs(part.amount))))
    return explained


def _totals(learned: LearnedSearch, texts: list[str], passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a word's scores of some passages [k]: by the passages' own words, and with those of labelled queries.

    `texts`: those of the word by `Bm25.words`, each of which counts once.
    """
    distinct = list(dict.fromkeys(texts))
    with_labels = learned.parts.field.totals(distinct, learned.parts.word_scores(distinct))
    plain, labelled = (
        sum(total[passages] for total in totals) for totals in (learned.parts.word_scores(distinct), with_labels)
    )
    return np.asarray(plain), np.asarray(labelled)


def _terms(of_word: dict[str, tuple[np.ndarray, np.ndarray]], part: int, rank: int) -> str:
    """Returns the words of the query with the largest scores of a passage, in words."""
    scores = {word: float(totals[part][rank]) for word, totals in of_word.items()}
    best = sorted((word for word in scores if scores[word] > 0), key=lambda word: -scores[word])[:TERMS]
    return f": {', '.join(f'{word} {scores[word]:.1f}' for word in best)}" if best else ": none"


def _value(candidates: Candidates, row: int, feature: str) -> str:
    return f"{candidates.features[row, FEATURES.index(feature)]:.3f}"


def _rank(candidates: Candidates, row: int, feature: str) -> str:
    return f", rank {1 / candidates.features[row, FEATURES.index(f'{feature} rank')]:.0f}"
