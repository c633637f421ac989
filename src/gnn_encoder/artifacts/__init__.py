"""The folders of artifacts. No other package knows the names of the files inside them."""

from gnn_encoder.artifacts.arrays import Contents, Encoding, Graph, create_vectors, read_vectors, reverse_csr
from gnn_encoder.artifacts.bundle import Bundle
from gnn_encoder.artifacts.dataset import Asked, Dataset, Qrels, Texts
from gnn_encoder.artifacts.dataset_writer import DatasetWriter
from gnn_encoder.artifacts.document_context import DocumentContext
from gnn_encoder.artifacts.document_graph import DocumentGraph
from gnn_encoder.artifacts.folder import Draft, Manifest, drafting, read_manifest
from gnn_encoder.artifacts.known_positives import KnownPositives
from gnn_encoder.artifacts.passages import Passages, PassageTable, passage_text
from gnn_encoder.artifacts.report import Decision, Evaluation, Figures, GraphChoice, Latency, Recommended, Report
from gnn_encoder.artifacts.tables import PairScores, Run, pair_keys
from gnn_encoder.artifacts.training_examples import GeneratedQueries, TrainingSet
from gnn_encoder.artifacts.written_queries import WrittenQueries
