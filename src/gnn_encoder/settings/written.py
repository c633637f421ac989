"""The settings of the steps that write queries for passages, and select those that serve as labels."""

from gnn_encoder.settings.values import Count, Fraction, PositiveInt, StepSettings

TITLES = "titles"


class WriteQueries(StepSettings):
    """Writes queries for passages of data that have too few queries of their own."""

    generator: str = TITLES
    """What writes them. `titles`: headings and sentences of the documents, without a model."""
    per_passage: PositiveInt = 3
    """Most queries for a passage."""
    max_passages: Count = 0
    """Most passages that get queries, by a seeded draw. 0: all."""
    seed: Count = 0
    """Of all draws."""


class SelectQueries(StepSettings):
    """Selects written queries, each a label of the passage that it was written for, and assigns splits."""

    found_within: Count = 20
    """A query is kept if its passage is among this many first hits of BM25. 0: whatever BM25 finds."""
    similarity: Fraction = 0.8
    """A query is left out if its set of words is at least this similar (Jaccard) to that of an earlier one, or of a
    query that came with the data."""
    quoted_words: PositiveInt = 8
    """A query is left out if it has so many words in a row from the beginning of its passage's text, or all its words
    are this beginning."""
    dev_fraction: Fraction = 0.1
    """Share of the documents whose queries become dev queries, where the data have none of their own."""
    test_fraction: Fraction = 0.2
    """Share of the documents whose queries become test queries, where the data have none of their own."""
    seed: Count = 0
    """Of the draw of documents."""
