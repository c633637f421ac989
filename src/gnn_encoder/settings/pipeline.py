"""All steps' settings together, the rules that hold between steps, and the steps of each pipeline."""

from collections.abc import Iterable

import pydantic

from gnn_encoder.settings import foundation, graph, outcome, ranking, study
from gnn_encoder.settings.shared import Backbone, StepSettings


class Settings(StepSettings):
    """All steps' settings. Field names are the steps' names."""

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
    encode_queries: study.EncodeQueries = study.EncodeQueries()
    try_variant: study.TryVariant = study.TryVariant()
    compare_variants: study.CompareVariants = study.CompareVariants()

    @pydantic.model_validator(mode="after")
    def _negatives_are_one_set(self) -> "Settings":
        if self.generate_queries.negative_below != self.select_training_set.negative_below:
            raise ValueError(
                "generate_queries.negative_below and select_training_set.negative_below must be equal: "
                "set it under shared"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _every_system_is_ranked_as_deep(self) -> "Settings":
        for step in ("bm25_retrieve", "dense_retrieve"):
            if getattr(self, step).eval_depth < self.evaluate.depth:
                raise ValueError(
                    f"{step}.eval_depth must be at least evaluate.depth ({self.evaluate.depth}): "
                    "a shorter ranking would not compare"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _promotion_looks_at_a_measured_figure(self) -> "Settings":
        if self.promote.measure not in self.evaluate.measures:
            raise ValueError(
                f"promote.measure ({self.promote.measure}) must be one of evaluate.measures "
                f"({', '.join(self.evaluate.measures)})"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _going_on_from_dpr_is_the_same_model(self) -> "Settings":
        if self.train_dual_encoder.start_from == "dpr":
            for key in (*Backbone.model_fields, "share_encoders"):
                if getattr(self.train_dual_encoder, key) != getattr(self.train_dpr, key):
                    raise ValueError(
                        f"train_dual_encoder.{key} must equal train_dpr.{key} with start_from: dpr "
                        "(set it under shared), or start from the backbone"
                    )
        return self


FOUNDATION: tuple[str, ...] = (
    "ingest",
    "bm25_retrieve",
    "train_dpr",
    "dense_retrieve",
    "train_cross_encoder",
    "score_candidates",
    "train_query_generator",
    "generate_queries",
    "select_training_set",
    "train_dual_encoder",
    "build_graph",
)
"""Steps that lead from raw text to the graph. `train` and `ablation` share their results."""
PIPELINES: dict[str, tuple[str, ...]] = {
    "train": (*FOUNDATION, "train_gnn", "encode_corpus", "evaluate", "promote"),
    "update": ("ingest", "build_graph", "encode_corpus"),
    "ablation": (*FOUNDATION, "encode_queries", "try_variant", "compare_variants"),
}
"""Pipeline → its steps in their order. A pipeline's settings are those of its steps."""


def calls(settings: Settings, steps: Iterable[str]) -> dict[str, ranking.Call]:
    """Parameter of a pipeline → the call that it holds, in the pipeline's order.

    Each of `steps` is called with its own section's settings; `evaluate` brings the calls of `ranking_calls`.
    """
    made: dict[str, ranking.Call] = {}
    for step in steps:
        if step == "evaluate":
            made |= ranking.ranking_calls(settings.evaluate, settings.train_dual_encoder)
        else:
            made[step] = ranking.Call(step, getattr(settings, step))
    return made


def step_settings(step: str) -> type[StepSettings]:
    """The settings class of a step."""
    if step in ranking.CALLED:
        return ranking.CALLED[step]
    annotation = Settings.model_fields[step].annotation
    assert isinstance(annotation, type)
    return annotation


TRAINING: tuple[str, ...] = tuple(dict.fromkeys(call.step for call in calls(Settings(), PIPELINES["train"]).values()))
"""The training pipeline's steps, in its order, those without a section of their own among them."""
TITLES: tuple[str, ...] = tuple(
    f"{call.step}: {call.label}" if call.label else call.step for call in calls(Settings(), PIPELINES["train"]).values()
)
"""What its calls are shown as."""
