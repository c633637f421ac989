"""All steps' settings together, and the rules that hold between steps."""

import pydantic

from gnn_encoder.settings import steps, study
from gnn_encoder.settings.shared import Backbone, StepSettings


class Settings(StepSettings):
    """All steps' settings, in the pipeline's order. Field names are the steps' names."""

    ingest: steps.Ingest = steps.Ingest()
    bm25_retrieve: steps.Bm25Retrieve = steps.Bm25Retrieve()
    train_dpr: steps.TrainDpr = steps.TrainDpr()
    dense_retrieve: steps.DenseRetrieve = steps.DenseRetrieve()
    train_cross_encoder: steps.TrainCrossEncoder = steps.TrainCrossEncoder()
    score_candidates: steps.ScoreCandidates = steps.ScoreCandidates()
    train_query_generator: steps.TrainQueryGenerator = steps.TrainQueryGenerator()
    generate_queries: steps.GenerateQueries = steps.GenerateQueries()
    select_training_set: steps.SelectTrainingSet = steps.SelectTrainingSet()
    train_dual_encoder: steps.TrainDualEncoder = steps.TrainDualEncoder()
    build_graph: steps.BuildGraph = steps.BuildGraph()
    train_gnn: steps.TrainGnn = steps.TrainGnn()
    encode_corpus: steps.EncodeCorpus = steps.EncodeCorpus()
    evaluate: steps.Evaluate = steps.Evaluate()
    promote: steps.Promote = steps.Promote()
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


STUDY: tuple[str, ...] = ("encode_queries", "try_variant", "compare_variants")
"""Steps of the ablation pipeline alone."""
STEPS: tuple[str, ...] = tuple(name for name in Settings.model_fields if name not in STUDY)
"""The training pipeline's steps, in its order."""


def step_settings(step: str) -> type[StepSettings]:
    """The settings class of a step."""
    annotation = Settings.model_fields[step].annotation
    assert isinstance(annotation, type)
    return annotation
