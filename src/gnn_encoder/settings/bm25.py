"""BM25's parameters: the settings of the step that indexes the passages."""

from typing import Literal

from gnn_encoder.settings.values import Fraction, PositiveFloat, StepSettings


class IndexBm25(StepSettings):
    """Indexes all passages for BM25: how texts are split into terms, and how they are scored."""

    k1: PositiveFloat = 1.5
    """Saturation of the term frequency."""
    b: Fraction = 0.75
    """Share of length normalisation."""
    stemmer: Literal["english", "none"] = "english"
    stopwords: Literal["english", "none"] = "english"
    fields: Literal["joined", "separate"] = "joined"
    """Title and text as one field, or as two fields whose scores are added."""
