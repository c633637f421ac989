"""BM25's parameters."""

from typing import Literal

from gnn_encoder.settings.values import Fraction, PositiveFloat, StepSettings


class Lexical(StepSettings):
    """How BM25 splits texts into terms and scores the texts."""

    k1: PositiveFloat = 1.5
    """Saturation of the term frequency."""
    b: Fraction = 0.75
    """Share of length normalisation."""
    stemmer: Literal["english", "none"] = "english"
    stopwords: Literal["english", "none"] = "english"
    fields: Literal["joined", "separate"] = "joined"
    """Title and text as one field, or as two fields whose scores are added."""


class IndexBm25(Lexical):
    """Indexes all passages for BM25, by bm25s: for `bm25_retrieve` and for the bundles."""
