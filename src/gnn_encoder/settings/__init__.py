"""One typed, validated settings class per step.

A paper's number is a default with its source beside it; a deviation from a paper is a setting and
says so. `presets` fills them from YAML files.
"""

from gnn_encoder.settings.pipeline import STEPS, Settings, step_settings
from gnn_encoder.settings.shared import MINILM, ContrastiveTraining, Optimization, Speed, StepSettings, WatchedTraining
from gnn_encoder.settings.steps import (
    Bm25Retrieve,
    BuildGraph,
    DenseRetrieve,
    EncodeCorpus,
    Evaluate,
    GenerateQueries,
    Ingest,
    Promote,
    ScoreCandidates,
    SelectTrainingSet,
    TrainCrossEncoder,
    TrainDpr,
    TrainDualEncoder,
    TrainGnn,
    TrainQueryGenerator,
)

__all__ = [
    "MINILM",
    "STEPS",
    "Bm25Retrieve",
    "BuildGraph",
    "ContrastiveTraining",
    "DenseRetrieve",
    "EncodeCorpus",
    "Evaluate",
    "GenerateQueries",
    "Ingest",
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
    "WatchedTraining",
    "step_settings",
]
