"""One typed, validated settings class per step.

A paper's number is a default with its source beside it; a deviation from a paper is a setting and
says so. `presets` fills them from YAML files.
"""

from gnn_encoder.settings.foundation import (
    Bm25Retrieve,
    DenseRetrieve,
    GenerateQueries,
    Ingest,
    ScoreCandidates,
    SelectTrainingSet,
    TrainCrossEncoder,
    TrainDpr,
    TrainDualEncoder,
    TrainQueryGenerator,
)
from gnn_encoder.settings.graph import BuildGraph, GnnShape, GraphShape, TrainGnn
from gnn_encoder.settings.outcome import EncodeCorpus, Evaluate, Promote
from gnn_encoder.settings.pipeline import (
    FOUNDATION,
    PIPELINES,
    TITLES,
    TRAINING,
    Settings,
    calls,
    step_settings,
)
from gnn_encoder.settings.shared import (
    MINILM,
    ContrastiveTraining,
    Lexical,
    MeasuredTraining,
    Optimization,
    Speed,
    StepSettings,
    WatchedTraining,
)
from gnn_encoder.settings.study import CompareVariants, EncodeQueries, TryVariant

__all__ = [
    "FOUNDATION",
    "MINILM",
    "PIPELINES",
    "TITLES",
    "TRAINING",
    "Bm25Retrieve",
    "BuildGraph",
    "CompareVariants",
    "ContrastiveTraining",
    "DenseRetrieve",
    "EncodeCorpus",
    "EncodeQueries",
    "Evaluate",
    "GenerateQueries",
    "GnnShape",
    "GraphShape",
    "Ingest",
    "Lexical",
    "MeasuredTraining",
    "Optimization",
    "Promote",
    "ScoreCandidates",
    "SelectTrainingSet",
    "Settings",
    "Speed",
    "StepSettings",
    "TrainCrossEncoder",
    "TrainDpr",
    "TrainDualEncoder",
    "TrainGnn",
    "TrainQueryGenerator",
    "TryVariant",
    "WatchedTraining",
    "calls",
    "step_settings",
]
