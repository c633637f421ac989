"""Settings of the systems that use labels without training: labelled training queries lift their passages."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from gnn_encoder.settings.measures import Measure
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.settings.shared import Inference
from gnn_encoder.settings.systems import LabelKind, label_systems
from gnn_encoder.settings.values import Count, Fraction, PositiveFloat, PositiveInt

Candidates = Annotated[tuple[Annotated[float, Field(ge=0.0, strict=True)], ...], Field(min_length=1)]


class EncodeWithLabels(Inference, IndexKind):
    """Makes a bundle of M_de's vectors, in which labelled training queries lift their passages, without training.

    The section chooses the systems, and the numbers that are tried for each; the index is as in `encode_corpus`, and
    precision and tokens per batch as in `build_graph`, which encodes. What is tried on dev is ranked by the first of
    `evaluate.measures`.
    """

    kinds: tuple[LabelKind, ...] = tuple(label_systems())
    """The systems that a run makes and measures. `sum`: a passage's vector plus w times the sum of its queries.
    `memory`: a passage gains by the training queries nearest to the query, at search (LADER, Jin, Shin and Lu, 2023).
    `clusters`: several vectors a passage, one for each cluster of its queries. None of them: []."""
    kind: LabelKind = "sum"
    """The system of this call."""
    system: str = ""
    """Its name in every table. Empty: the name of that kind over M_de."""
    measure: Measure = "RR@10"
    """The measure that chooses among the numbers below."""
    sum_weights: Candidates = (0.0, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
    """w of the sum. 0: the dual encoder as it is, so that a run may say that labels gain nothing."""
    memory_forms: tuple[Literal["max", "softmax"], ...] = ("max", "softmax")
    """`max`: w · the best similarity with a labelled query. `softmax`: w · the softmax, over the nearest training
    queries, of those that the passage is labelled for (`gnn_encoder.retrieval.memory`)."""
    memory_weights: Candidates = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
    """w of the memory. 0: the dual encoder as it is."""
    memory_neighbours: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (5, 20, 100)
    """Numbers of nearest training queries in the softmax."""
    memory_temperatures: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (0.05, 0.1, 0.2)
    """Temperatures of the softmax; for vectors that have no unit length, multiples of their mean squared length."""
    memory_thresholds: Candidates = (0.0, 0.5, 0.6, 0.7)
    """Training queries with a lower similarity get no share of the softmax; 0: all nearest ones get theirs. For vectors
    without unit length they are multiples of the mean squared length, too."""
    cluster_weights: Candidates = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    """w of the clusters. 0: the dual encoder as it is."""
    clusters: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 4, 16)
    """Numbers of vectors that a passage has at most, besides its own."""
    margin: Annotated[float, Field(ge=0.0)] = 0.005
    """How much of `measure` warm or cold queries may lose; see the next setting."""
    floor_significance: Fraction = 0.1
    """A use of the labels is not chosen if warm or cold queries lose more than the margin by it, unless chance explains
    the loss: as `recommend.margin` and `recommend.floor_significance`. A margin of 1 chooses by the mean alone."""
    significance: Fraction = 0.05
    """The chosen use must gain over the dual encoder with at most this p-value, two-sided and not corrected: the best
    of many uses gains something by chance. Otherwise the weight is 0, if 0 is among the weights. 1: any gain."""
    smallest_dev: Count = 100
    """With fewer labelled dev queries, the numbers are chosen by cross-validation over training queries."""
    folds: Annotated[int, Field(ge=2, strict=True)] = 5
    """Folds of the cross-validation. Twins are in one fold; a fold is ranked with the labels of the other folds."""
    bm25: bool = True
    """As in `encode_corpus`."""

    def _problems(self) -> Iterator[str]:
        if not self.memory_forms:
            yield "memory_forms needs a form: max, softmax, or both"


def settings_of_use(kind: LabelKind, use: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the settings that try one use alone; `use` are the fields of a `LabelUse`."""
    names = {"weight": f"{'cluster' if kind == 'clusters' else kind}_weights"}
    if kind == "clusters":
        names["clusters"] = "clusters"
    elif kind == "memory":
        names["method"] = "memory_forms"
        if use["method"] == "softmax":
            names |= {
                "neighbours": "memory_neighbours",
                "temperature": "memory_temperatures",
                "threshold": "memory_thresholds",
            }
    return {setting: [use[field]] for field, setting in names.items()}
