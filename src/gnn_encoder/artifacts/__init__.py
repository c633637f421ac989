"""What each artifact's folder holds: the only place that knows a file name inside one."""

from gnn_encoder.artifacts.arrays import (
    Contents,
    Encoding,
    Graph,
    create_rows,
    create_vectors,
    read_rows,
    read_vectors,
    reverse_csr,
)
from gnn_encoder.artifacts.bundle import Bundle
from gnn_encoder.artifacts.dataset import Dataset, DatasetWriter, Passages, PassageTable, Qrels, passage_text
from gnn_encoder.artifacts.folder import Draft, Manifest, drafting, read_manifest
from gnn_encoder.artifacts.report import Decision, Evaluation, Figures, Latency, Report
from gnn_encoder.artifacts.tables import (
    CONVEX,
    ORIGINS,
    RECIPROCAL,
    GeneratedQueries,
    KnownPositives,
    PairScores,
    Run,
    System,
    TrainingSet,
    pair_keys,
)

__all__ = [
    "CONVEX",
    "ORIGINS",
    "RECIPROCAL",
    "Bundle",
    "Contents",
    "Dataset",
    "DatasetWriter",
    "Decision",
    "Draft",
    "Encoding",
    "Evaluation",
    "Figures",
    "GeneratedQueries",
    "Graph",
    "KnownPositives",
    "Latency",
    "Manifest",
    "PairScores",
    "PassageTable",
    "Passages",
    "Qrels",
    "Report",
    "Run",
    "System",
    "TrainingSet",
    "create_rows",
    "create_vectors",
    "drafting",
    "pair_keys",
    "passage_text",
    "read_manifest",
    "read_rows",
    "read_vectors",
    "reverse_csr",
]
