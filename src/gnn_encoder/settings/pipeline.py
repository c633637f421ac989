"""All steps' settings together, the rules that hold between steps, and the steps of each pipeline."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from gnn_encoder.settings import foundation, graph, outcome
from gnn_encoder.settings.outcome import CROSS_ENCODER, DUAL_ENCODER, GNN_ENCODER, UNTRAINED, Fuse, Rank
from gnn_encoder.settings.shared import Backbone
from gnn_encoder.settings.values import StepSettings


class Settings(StepSettings):
    """All steps' settings. Field names are the steps' names, in the pipelines' order."""

    ingest: foundation.Ingest = foundation.Ingest()
    bm25_retrieve: foundation.Bm25Retrieve = foundation.Bm25Retrieve()
    train_dpr: foundation.TrainDpr = foundation.TrainDpr()
    dense_retrieve: foundation.DenseRetrieve = foundation.DenseRetrieve()
    train_cross_encoder: foundation.TrainCrossEncoder = foundation.TrainCrossEncoder()
    score_candidates: foundation.ScoreCandidates = foundation.ScoreCandidates()
    train_query_generator: foundation.TrainQueryGenerator = foundation.TrainQueryGenerator()
    generate_queries: foundation.GenerateQueries = foundation.GenerateQueries()
    select_training_set: foundation.SelectTrainingSet = foundation.SelectTrainingSet()
    train_dual_encoder: foundation.TrainDualEncoder = foundation.TrainDualEncoder()
    build_graph: graph.BuildGraph = graph.BuildGraph()
    train_gnn: graph.TrainGnn = graph.TrainGnn()
    encode_corpus: outcome.EncodeCorpus = outcome.EncodeCorpus()
    evaluate: outcome.Evaluate = outcome.Evaluate()
    promote: outcome.Promote = outcome.Promote()
    encode_queries: graph.EncodeQueries = graph.EncodeQueries()
    try_variant: graph.TryVariant = graph.TryVariant()
    compare_variants: graph.CompareVariants = graph.CompareVariants()

    def _problems(self) -> Iterator[str]:
        if self.generate_queries.negative_below != self.select_training_set.negative_below:
            yield (
                "generate_queries.negative_below and select_training_set.negative_below must be equal: "
                "set it under shared"
            )
        for step in ("bm25_retrieve", "dense_retrieve"):
            if getattr(self, step).eval_depth < self.evaluate.depth:
                yield (
                    f"{step}.eval_depth must be at least evaluate.depth ({self.evaluate.depth}): "
                    "a shorter ranking would not compare"
                )
        if self.promote.measure not in self.evaluate.measures:
            yield (
                f"promote.measure ({self.promote.measure}) must be one of evaluate.measures "
                f"({', '.join(self.evaluate.measures)})"
            )
        if self.train_dual_encoder.start_from == "dpr":
            for key in (*Backbone.model_fields, "share_encoders"):
                if getattr(self.train_dual_encoder, key) != getattr(self.train_dpr, key):
                    yield (
                        f"train_dual_encoder.{key} must equal train_dpr.{key} with start_from: dpr "
                        "(set it under shared), or start from the backbone"
                    )


_SECTIONS = tuple(Settings.model_fields)
FOUNDATION = _SECTIONS[: _SECTIONS.index("build_graph") + 1]
"""Steps that lead from raw text to the graph. `train` and `ablation` share their results."""
PIPELINES: dict[str, tuple[str, ...]] = {
    "train": (*FOUNDATION, "train_gnn", "encode_corpus", "evaluate", "promote"),
    "update": ("ingest", "build_graph", "encode_corpus"),
    "ablation": (*FOUNDATION, "encode_queries", "try_variant", "compare_variants"),
}
"""Pipeline → its steps in their order. A pipeline's settings are those of its steps."""
ORIGIN = ("run.data", "run.settings", "run.code")
"""Names of the digests of a whole run, among `promote`'s source digests and a registered version's tags."""


class StepArguments(BaseModel):
    """What a component is called with besides artifacts, as JSON.

    A step's result does not depend on the digests. They are there because KFP's cache compares arguments alone, and a
    step must run again when its code, its data source or its backbone has changed. `promote` also writes the whole
    run's (`ORIGIN`) to what it registers, so that a retraining knows whether anything has changed.
    """

    settings: dict[str, Any] = {}
    code_digest: str = ""
    source_digests: dict[str, str] = {}
    label: str = ""
    """As in `Call`."""

    def title(self, step: str) -> str:
        """The call's name in the console and in MLflow."""
        return f"{step}: {self.label}" if self.label else step


class Call(NamedTuple):
    """One call of a step in a pipeline."""

    step: str
    settings: StepSettings
    label: str = ""
    """Which call it is, where a pipeline calls the step more than once."""


def calls(settings: Settings, steps: Iterable[str]) -> dict[str, Call]:
    """Parameter of a pipeline → the call that it holds, in the pipeline's order.

    Each of `steps` is called with its own section's settings; `evaluate` brings the calls of `ranking_calls`.
    """
    found: dict[str, Call] = {}
    for step in steps:
        if step == "evaluate":
            found |= ranking_calls(settings.evaluate, settings.train_dual_encoder)
        else:
            found[step] = Call(step, getattr(settings, step))
    return found


def ranking_calls(evaluate: outcome.Evaluate, dual_encoder: foundation.TrainDualEncoder) -> dict[str, Call]:
    """Parameter of the training pipeline → call of a step that ranks, compares or shows the systems, in their order.

    A user sets in `evaluate` how systems are ranked and compared: the other steps' settings are derived from it.
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
        "rerank": Call("rerank", outcome.Rerank(system=CROSS_ENCODER, depth=evaluate.rerank_depth, **speed)),
        "fuse_dual_encoder": Call("fuse", fuse, DUAL_ENCODER),
        "fuse_gnn_encoder": Call("fuse", fuse, GNN_ENCODER),
        "evaluate": Call("evaluate", evaluate),
        "measure_latency": Call("measure_latency", outcome.MeasureLatency()),
        "report": Call("report", outcome.Report(**speed)),
    }


_TRAINING_CALLS = calls(Settings(), PIPELINES["train"]).values()
TRAINING: tuple[str, ...] = tuple(dict.fromkeys(call.step for call in _TRAINING_CALLS))
"""The training pipeline's steps, in its order, with those that have no section of their own."""
TITLES: tuple[str, ...] = tuple(StepArguments(label=call.label).title(call.step) for call in _TRAINING_CALLS)
"""The names of its calls, in the same order."""
STEP_SETTINGS: dict[str, type[StepSettings]] = {step: type(section) for step, section in Settings()}
"""The settings class of every step."""
STEP_SETTINGS |= {call.step: type(call.settings) for call in _TRAINING_CALLS}
