"""How long the rungs of a climb take, and which encoders and passages' length fit a budget by that."""

from collections.abc import Sequence
from dataclasses import dataclass

from gnn_encoder.planning.facts import LONGEST, DataFacts
from gnn_encoder.planning.plan import DEV_QUERIES, LENGTHS
from gnn_encoder.planning.rates import Rates
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, WORDS
from gnn_encoder.settings.systems import RERANKED
from gnn_encoder.training.dev import CANDIDATES as DEV_CANDIDATES

FIXED = {WORDS: 10.0, AS_IT_IS: 6.0, LABELS: 18.0, RERANKING: 40.0}
"""Seconds of each rung for a small data set, beside what follows: somewhat more than two cores of an AMD EPYC take."""
PER_QUERY = {WORDS: 0.001, AS_IT_IS: 0.001, LABELS: 0.01, RERANKING: 0.03}
"""Seconds of each dev and test query: rankings and measures."""
PER_TOKEN = {WORDS: 8e-7, AS_IT_IS: 5e-7, LABELS: 0.0, RERANKING: 0.0}
"""Seconds of each token of the passages, 512 at most: reading and BM25's index, and the encoder's tokenizer, on two
cores."""
PER_PAIR = {WORDS: 0.0, AS_IT_IS: 4e-9, LABELS: 9e-8, RERANKING: 1e-8}
"""Seconds of each pair of a passage and a query that is searched for, exactly, by all of the rung's systems."""
TUNED = 1000
"""Training queries, at most, that the rung of labels searches for as well."""
OF_OTHERS = 0.5
"""What each further encoder adds to the rung as it is, besides its encoding, as a share of these seconds."""
PER_SEARCH, PER_SEARCHED = 0.01, 1.5e-8
"""Seconds of each query, and of each query and passage, in the search for hits that are re-ranked: 172 s for 7,000
queries and a million passages."""
TRAINED_SLOWER = 4.0
"""How many times as fast a model encodes as it trains, where its training was not measured."""
PER_LABEL = 0.0015
"""Seconds of each label: the choice among the uses of labels, and the examples of the fusions."""
GUARD = 0.9
"""Share of a budget that a rung's end may have in a forecast by which passages are cut shorter."""


@dataclass(frozen=True)
class Candidate:
    """An encoder that a climb may have."""

    name: str
    """Its short name."""
    encoder: str
    """Its name in the settings."""
    facts: DataFacts
    """With texts in its tokens."""
    rates: Rates

    def seconds(self, length: int) -> float:
        """Returns how long it takes to encode passages that are cut to a length, and all queries."""
        queries = sum(self.facts.queries.values()) * self.facts.mean_query(64)
        return (self.facts.passages * self.facts.mean_read(length) + queries) / self.rates.encoding


def rung_ends(candidates: Sequence[Candidate], length: int) -> dict[str, float]:
    """Returns the seconds from the start to the end of each rung that trains nothing."""
    facts = candidates[0].facts
    ends, end = {}, 0.0
    for rung in (WORDS, AS_IT_IS, LABELS):
        seconds = _tables(facts, rung)
        end += seconds
        if rung == AS_IT_IS:
            end += OF_OTHERS * seconds * (len(candidates) - 1) + sum(one.seconds(length) for one in candidates)
        end += PER_LABEL * facts.labels if rung == LABELS else 0.0
        ends[rung] = end
    return ends


def _tables(facts: DataFacts, rung: str) -> float:
    searched = facts.measured + (min(facts.queries["train"], TUNED) if rung == LABELS else 0)
    of_passage = PER_TOKEN[rung] * facts.mean_passage(LONGEST) + PER_PAIR[rung] * searched
    return FIXED[rung] + PER_QUERY[rung] * facts.measured + of_passage * facts.passages


def reranking_seconds(facts: DataFacts, rates: Rates, pair: int, depth: int, drawn: int) -> dict[str, float]:
    """Returns the seconds of the rung's calls by title, and of all others under the rung's name.

    Args:
        pair: tokens to which pairs are cut. drawn: queries that are trained on; 0: all.
    """
    trained = drawn or facts.queries["train"]
    query = facts.mean_query(64)
    tokens = facts.mean_pair(query, pair)
    trained_tokens = facts.labels * trained / facts.queries["train"] * (facts.mean_pair(query, pair, True) + tokens)
    watched = 2 * min(facts.queries["dev"], DEV_QUERIES) * min(DEV_CANDIDATES, facts.passages)
    return {
        "first_stage": (PER_SEARCH + PER_SEARCHED * facts.passages) * (trained + facts.measured),
        f"train_reranker: {RERANKED}": trained_tokens / (rates.training or rates.encoding / TRAINED_SLOWER)
        + watched * tokens / rates.encoding,
        f"rerank: {RERANKED}": facts.measured * min(depth, facts.passages) * tokens / rates.encoding,
        RERANKING: _tables(facts, RERANKING),
    }


def affordable(
    candidates: Sequence[Candidate], reachable: Sequence[str], budget: float, longest: int, fixed: bool = False
) -> tuple[Sequence[Candidate], int]:
    """Returns the candidates that fit, and the length to which passages are cut.

    The highest rung counts most, then the number of encoders, from the last named on. Passages are cut shorter, unless
    the length is `fixed`, only if more of the rungs fit the budget with it.
    """
    sizes = [(count, longest) for count in range(len(candidates), 0, -1)]
    sizes += [(1, length) for length in LENGTHS if length < longest and not fixed]
    for rung in (LABELS, AS_IT_IS):
        for count, length in sizes if rung in reachable else ():
            if rung_ends(candidates[:count], length)[rung] <= GUARD * budget:
                return candidates[:count], length
    return candidates[:1], longest
