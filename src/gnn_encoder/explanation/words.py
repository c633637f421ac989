"""Explains the hits of words alone: what each word of the query adds to a passage's score."""

from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import Hit, Searcher, bm25_of


def explain_by_words(
    searcher: Searcher, question: str, k: int = 5, only: Selection | None = None
) -> list[tuple[Hit, list[Contribution]]]:
    """Returns the best `k` passages for a query by BM25, best first, each with its words' scores, the largest first.

    A word that stands twice in the query counts twice. With `only`, the best of these passages.

    Raises UserError as `Searcher.check`.
    """
    searcher.check(question, k)
    bm25 = bm25_of(searcher.bundle)
    scores, rows = bm25.search([question], searcher.at_most(k), only=only)
    is_hit = rows[0] >= 0
    hits, passages = searcher.hits(scores[0][is_hit], rows[0][is_hit]), rows[0][is_hit]
    amounts = {}
    for word, texts in bm25.words(question).items():
        totals = [total[passages] for total in bm25.totals(texts) if total is not None]
        if totals:
            amounts[f"word {word}"] = sum(totals)
    explained = []
    for i, hit in enumerate(hits):
        parts = [Contribution(word, float(of[i])) for word, of in amounts.items() if of[i]]
        explained.append((hit, sorted(parts, key=lambda part: -part.amount)))
    return explained
