"""Explains the hits of a learned fusion: what each part adds to a score, by which words and which training query."""

import numpy as np

from gnn_encoder.artifacts.words import words
from gnn_encoder.retrieval.learned_search import LearnedSearch
from gnn_encoder.retrieval.parts import FEATURES, Candidates
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import Hit, Searcher

TERMS = 3
"""Words that are named."""


def explain_by_fusion(searcher: Searcher, question: str, k: int = 5) -> list[tuple[Hit, list[Contribution]]]:
    """Returns the best `k` passages for a query, best first, each with the parts of its score, the largest first.

    The parts sum to the score, up to rounding. A hit behind the candidates is not explained.

    Raises:
        UserError: as `Searcher.find`.
    """
    learned, labelled = searcher.index.learned, searcher.bundle.labelled
    assert learned and labelled, "a bundle without a fusion"
    searcher.check(question, k)
    vector = searcher.encode(question)
    found = learned.parts.candidates([question], vector)
    scores, amounts = learned.fusion.scores(found.features), learned.fusion.contributions(found.features)
    order = np.lexsort((found.passage, -scores))[:k]
    hits = searcher.hits(scores[order], found.passage[order])
    of_word = {word: _totals(learned, word, found.passage[order]) for word in dict.fromkeys(words(question))}
    similarity, near = (array[0] for array in learned.parts.nearest(vector))
    explained = []
    for place, (hit, row) in enumerate(zip(hits, order.tolist(), strict=True)):
        behind = ""
        asked = near[(near >= 0) & np.isin(near, learned.parts.labels.into(found.passage[[row]])[1])]
        if len(asked):
            (name,), (text,) = labelled.names(asked[:1])
            behind = f": “{text}” [{name}], similarity {similarity[near == asked[0]][0]:.2f}"
        said = {
            "dense": f"vectors ({_value(found, row, 'dense')}{_rank(found, row, 'dense')})",
            "words": f"words{_terms(of_word, 0, place)}",
            "labelled": f"words of passage and labelled queries{_terms(of_word, 1, place)}",
            "adapted": f"query adapter ({_value(found, row, 'adapted')}{_rank(found, row, 'adapted')})",
            "summed": "vectors with the sum of labelled queries",
            "memory": f"similar training query{behind}",
            "nearest": "nearness of any training query",
            "terms": "number of words",
            "length": "length of the passage",
        }
        parts = [Contribution("all candidates", float(amounts[row, -1]))]
        for part, words_of_part in said.items():
            columns = [i for i, name in enumerate(FEATURES) if name.split()[0] == part]
            parts.append(Contribution(words_of_part, float(amounts[row, columns].sum())))
        explained.append((hit, sorted(parts, key=lambda part: -abs(part.amount))))
    return explained


def _totals(learned: LearnedSearch, word: str, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a word's scores of some passages [k]: by the passages' own words, and with those of labelled queries."""
    (plain,) = learned.parts.word_scores([word])
    (labelled,) = learned.parts.field.totals([word], iter([plain]))
    return plain[passages], labelled[passages]


def _terms(of_word: dict[str, tuple[np.ndarray, np.ndarray]], part: int, place: int) -> str:
    """Returns the words of the query with the largest scores of a passage, in words."""
    scores = {word: float(totals[part][place]) for word, totals in of_word.items()}
    best = sorted((word for word in scores if scores[word] > 0), key=lambda word: -scores[word])[:TERMS]
    return f": {', '.join(f'{word} {scores[word]:.1f}' for word in best)}" if best else ": none"


def _value(found: Candidates, row: int, feature: str) -> str:
    return f"{found.features[row, FEATURES.index(feature)]:.3f}"


def _rank(found: Candidates, row: int, feature: str) -> str:
    return f", rank {1 / found.features[row, FEATURES.index(f'{feature} rank')]:.0f}"
