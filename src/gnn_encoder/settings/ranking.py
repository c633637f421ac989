"""The settings of the steps that rank, compare and show the systems; `ranking_calls` derives them from `Evaluate`."""

from typing import NamedTuple

from gnn_encoder.settings import measures as names
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.shared import Count, Inference, PositiveInt, StepSettings

UNTRAINED, DUAL_ENCODER, GNN_ENCODER, CROSS_ENCODER = "Untrained", "Dual encoder", "GNN-encoder", "Cross-encoder"
"""Names of the systems that the training pipeline ranks by steps of their own."""


class Rank(Inference):
    """Ranks the dev and test queries by one dense system."""

    system: str
    """Its name in every table."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""
    backbone: str = ""
    """Rank by this pretrained encoder as it is, with the two lengths below. Empty: by the models given to the step."""
    query_length: PositiveInt = 32
    passage_length: PositiveInt = 128


class Fuse(StepSettings):
    """Fuses a dense run with BM25's."""

    measure: names.Measure = "RR@10"
    """The weight is tuned by this measure on dev queries."""
    depth: PositiveInt = 1000
    """Hits kept for each query."""


class Rerank(Inference):
    """Orders the first hits of a run anew, by a scorer of pairs."""

    system: str
    """Name of the re-ranked run in every table."""
    depth: Count = 0
    """Hits of each query that are scored. 0: none; the run is empty, and no table has it."""


class MeasureLatency(StepSettings):
    """Times single questions."""


class Report(Inference):
    """Writes the page. How the won and lost queries are encoded for their explanation."""


class Call(NamedTuple):
    """One call of a step in a pipeline."""

    step: str
    settings: StepSettings
    label: str = ""
    """Which call it is, where a pipeline calls the step more than once."""


def ranking_calls(evaluate: Evaluate, dual_encoder: TrainDualEncoder) -> dict[str, Call]:
    """Parameter of the training pipeline → call, of the steps that rank, compare and show the systems, in their order.

    All but `evaluate` have their settings from it: a user sets there how systems are ranked and compared.
    """
    speed, depth = evaluate.speed, evaluate.depth
    untrained = Rank(
        system=UNTRAINED, depth=depth, backbone=evaluate.untrained_backbone, **speed,
        query_length=dual_encoder.query_length, passage_length=dual_encoder.passage_length,
    )  # fmt: skip
    fuse = Fuse(measure=evaluate.measures[0], depth=depth)
    return {
        "rank_untrained": Call("rank", untrained, UNTRAINED),
        "rank_dual_encoder": Call("rank", Rank(system=DUAL_ENCODER, depth=depth, **speed), DUAL_ENCODER),
        "rank_gnn_encoder": Call("rank", Rank(system=GNN_ENCODER, depth=depth, **speed), GNN_ENCODER),
        "rerank": Call("rerank", Rerank(system=CROSS_ENCODER, depth=evaluate.rerank_depth, **speed)),
        "fuse_dual_encoder": Call("fuse", fuse, DUAL_ENCODER),
        "fuse_gnn_encoder": Call("fuse", fuse, GNN_ENCODER),
        "evaluate": Call("evaluate", evaluate),
        "measure_latency": Call("measure_latency", MeasureLatency()),
        "report": Call("report", Report(**speed)),
    }


CALLED: dict[str, type[StepSettings]] = {
    "rank": Rank,
    "rerank": Rerank,
    "fuse": Fuse,
    "measure_latency": MeasureLatency,
    "report": Report,
}
"""The settings classes of the steps without a section of their own."""
