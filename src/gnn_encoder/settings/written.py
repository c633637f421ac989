"""The settings of the steps that write queries for passages, and select those that serve as labels."""

from gnn_encoder.settings.values import Count, Fraction, PositiveInt, StepSettings

TITLES = "titles"


class WriteQueries(StepSettings):
    """Writes queries for passages of data that have too few queries of their own."""

    generator: str = ""
    """What writes them. `titles`: headings and sentences of the documents, without a model. Empty: nothing does; the
    data have queries of their own."""
    per_passage: PositiveInt = 3
    """Most queries for a passage."""
    max_passages: Count = 0
    """Most passages that get queries, by a seeded draw. 0: all."""
    seed: Count = 0
    """Of all draws."""


class SelectQueries(StepSettings):
    """Selects written queries, each a label of the passage that it was written for, and assigns splits."""

    found_within: PositiveInt = 20
    """A query is kept if its passage is among this many first hits of BM25."""
    similarity: Fraction = 0.8
    """A query is left out if its set of words is at least this similar (Jaccard) to that of an earlier one, or of a
    query that came with the data. 0: all stay, but for equal texts."""
    quoted_words: PositiveInt = 8
    """A query is left out if so many words in a row are the beginning of its passage's text, or all its words are."""
    dev_fraction: Fraction = 0.1
    """Share of the queries, by whole documents, that become dev queries where the data have none of their own."""
    test_fraction: Fraction = 0.2
    """The same of test queries."""
    fewest_units: PositiveInt = 20
    """Of fewer documents the top sections are divided among the splits, or those below them."""
    max_train: Count = 2_000
    """Most written queries that become training queries, by a seeded draw. 0: all."""
    max_evaluated: Count = 500
    """The same of dev, and of test queries: each system ranks them all."""
    quoting: Fraction = 0.9
    """If words alone find a passage of so many of the written dev queries first, they are quotations, and tune no
    weight of a sum with BM25."""
    seed: Count = 0
    """Of all draws."""
