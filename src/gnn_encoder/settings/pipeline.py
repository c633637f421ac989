"""The settings of all steps, the rules between settings of several steps, and the steps of each pipeline."""

from collections.abc import Iterator
from typing import Self

from gnn_encoder.settings import foundation, fusion, graph, labels, outcome, reranking, written
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.settings.shared import Backbone
from gnn_encoder.settings.systems import DUAL_ENCODER
from gnn_encoder.settings.values import StepSettings


class Settings(StepSettings):
    """The settings of all steps. Field names are the names of the steps, in the order of the pipelines."""

    ingest: foundation.Ingest = foundation.Ingest()
    index_bm25: IndexBm25 = IndexBm25()
    write_queries: written.WriteQueries = written.WriteQueries()
    """For data that have too few queries."""
    select_queries: written.SelectQueries = written.SelectQueries()
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
    encode: foundation.Encode = foundation.Encode()
    choose_graph: graph.ChooseGraph = graph.ChooseGraph()
    encode_with_labels: labels.EncodeWithLabels = labels.EncodeWithLabels()
    make_parts: fusion.MakeParts = fusion.MakeParts()
    fuse_parts: fusion.FuseParts = fusion.FuseParts()
    train_gnn: graph.TrainGnn = graph.TrainGnn()
    train_converged: foundation.TrainConverged = foundation.TrainConverged()
    encode_corpus: outcome.EncodeCorpus = outcome.EncodeCorpus()
    evaluate: outcome.Evaluate = outcome.Evaluate()
    recommend: outcome.Recommend = outcome.Recommend()
    choose_bundle: outcome.ChooseBundle = outcome.ChooseBundle()
    promote: outcome.Promote = outcome.Promote()
    encode_queries: graph.EncodeQueries = graph.EncodeQueries()
    try_variant: graph.TryVariant = graph.TryVariant()
    compare_variants: graph.CompareVariants = graph.CompareVariants()
    first_stage: FirstStage = FirstStage()
    train_reranker: reranking.TrainReranker = reranking.TrainReranker()
    evaluate_passages: reranking.EvaluatePassages = reranking.EvaluatePassages()
    propagate_sections: reranking.PropagateSections = reranking.PropagateSections()
    weigh_reranker: reranking.WeighReranker = reranking.WeighReranker()
    compare_rerankers: reranking.CompareRerankers = reranking.CompareRerankers()

    def ingest_of(self, trains: bool) -> foundation.Ingest:
        """Returns how the data are read: with what they must have for a run that `trains`, or learns from labels."""
        needs = "passages" if self.write_queries.generator else "labels" if trains else "judged"
        return self.ingest.model_copy(update={"needs": needs})

    @property
    def with_windows(self) -> Self:
        """The same for a ladder, on which all encoders read long passages in windows if `encode` does."""
        if not self.encode.in_windows:
            return self
        return self.model_copy(update={"build_graph": self.build_graph.model_copy(update=self.encode.of_windows)})

    def _problems(self) -> Iterator[str]:
        if self.generate_queries.negative_below != self.select_training_set.negative_below:
            yield "negative_below of generate_queries and of select_training_set must be equal: set it under shared"
        for step in ("bm25_retrieve", "dense_retrieve", "first_stage"):
            if getattr(self, step).eval_depth < self.evaluate.depth:
                yield f"{step}.eval_depth must be at least evaluate.depth ({self.evaluate.depth}): set it higher"
        for step, section in self:
            if getattr(section, "keep", "") == "best" and not section.dev_queries:
                yield f"{step}.keep = best needs dev_queries: set keep to last, or dev_queries above 0"
        try:
            choice(self)
        except ValueError as error:
            yield str(error)
        depths = [changes.get("negative_depth", 0) for changes in self.train_reranker.systems.values()]
        if (deepest := max([self.train_reranker.negative_depth, *depths])) > self.bm25_retrieve.train_depth:
            yield f"bm25_retrieve.train_depth must be at least train_reranker.negative_depth ({deepest}): set it higher"
        if isinstance(depth := self.train_reranker.depth, int) and depth > self.bm25_retrieve.eval_depth:
            yield f"bm25_retrieve.eval_depth must be at least train_reranker.depth ({depth}): set it higher"
        if self.train_cross_encoder.published and self.build_graph.self_loop_features == "cross_encoder":
            yield "build_graph.self_loop_features = cross_encoder needs a trained cross-encoder: set it to learned"
        if self.promote.measure not in self.evaluate.measures:
            yield (
                f"promote.measure ({self.promote.measure}) must be one of evaluate.measures "
                f"({', '.join(self.evaluate.measures)})"
            )
        if self.evaluate.baseline == DUAL_ENCODER not in self.recommend.order:
            yield f"recommend.order needs {DUAL_ENCODER}, which is evaluate.baseline: other systems are held against it"
        if self.train_dual_encoder.start_from == "dual_encoder":
            yield "train_dual_encoder.start_from = dual_encoder: M_de cannot start from itself: set dpr or backbone"
        if self.train_dual_encoder.start_from == "dpr":
            for key in (*Backbone.model_fields, "share_encoders"):
                if getattr(self.train_dual_encoder, key) != getattr(self.train_dpr, key):
                    yield (
                        f"train_dual_encoder.{key} must equal train_dpr.{key} with start_from: dpr "
                        "(set it under shared), or start from the backbone"
                    )


def choice(settings: Settings) -> graph.ChooseGraph:
    """Returns the settings of `choose_graph` with its variants in full."""
    return settings.choose_graph.of(settings.build_graph, settings.train_gnn, settings.promote.measure)


_SECTIONS = tuple(Settings.model_fields)
FOUNDATION = _SECTIONS[: _SECTIONS.index("build_graph") + 1]
"""Steps from raw text to the graph. The pipelines `train` and `ablation` share the results of these steps."""
_DATA = ("ingest", "index_bm25", "write_queries", "select_queries")
_LABELS = ("encode_with_labels", "make_parts", "fuse_parts")
_CHOICE = ("evaluate", "recommend", "promote")
PIPELINES: dict[str, tuple[str, ...]] = {
    "train": (*FOUNDATION, "choose_graph", *_LABELS, "train_gnn", "encode_corpus", *_CHOICE),
    "ladder": (*_DATA, "bm25_retrieve", "encode", *_LABELS, *_CHOICE),
    "update": (*_DATA, "build_graph", *_LABELS, "encode_corpus", "choose_bundle"),
    "ablation": (*FOUNDATION, "encode_queries", "try_variant", "compare_variants"),
    "rerank": (
        *_DATA, "bm25_retrieve", "first_stage", "train_query_generator", "generate_queries", "select_training_set",
        "score_candidates", "train_reranker", "evaluate_passages", "propagate_sections", "evaluate",
        "compare_rerankers", "promote",
    ),
}  # fmt: skip
"""Pipeline → the sections that its graph is made from, in order; `encode_with_labels` stands for several calls."""
