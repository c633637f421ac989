"""One thin component per step: typed inputs and outputs, an image, and one call of the library."""

from components.bm25_retrieve import bm25_retrieve
from components.build_document_graph import build_document_graph
from components.build_graph import build_graph
from components.bundle_dual_encoder import bundle_dual_encoder
from components.bundle_reranker import bundle_reranker
from components.choose_bundle import choose_bundle
from components.choose_graph import choose_graph
from components.choose_reranker import choose_reranker
from components.compare_rerankers import compare_rerankers
from components.compare_variants import compare_variants
from components.dense_retrieve import dense_retrieve
from components.encode_context import encode_context
from components.encode_corpus import encode_corpus
from components.encode_nodes import encode_nodes
from components.encode_queries import encode_queries
from components.encode_with_labels import encode_with_labels
from components.evaluate import evaluate
from components.evaluate_passages import evaluate_passages
from components.first_stage import first_stage
from components.fuse import fuse
from components.generate_queries import generate_queries
from components.index_bm25 import index_bm25
from components.ingest import ingest
from components.measure_latency import measure_latency
from components.merge import merge
from components.promote import promote
from components.propagate_sections import propagate_sections
from components.rank import rank
from components.recommend import recommend
from components.report import report
from components.rerank import rerank
from components.score_candidates import score_candidates
from components.select_training_set import select_training_set
from components.train_cross_encoder import train_cross_encoder
from components.train_dpr import train_dpr
from components.train_dual_encoder import train_dual_encoder
from components.train_gnn import train_gnn
from components.train_query_generator import train_query_generator
from components.train_reranker import train_reranker
from components.try_variant import try_variant

__all__ = [
    "bm25_retrieve",
    "build_document_graph",
    "build_graph",
    "bundle_dual_encoder",
    "bundle_reranker",
    "choose_bundle",
    "choose_graph",
    "choose_reranker",
    "compare_rerankers",
    "compare_variants",
    "dense_retrieve",
    "encode_context",
    "encode_corpus",
    "encode_nodes",
    "encode_queries",
    "encode_with_labels",
    "evaluate",
    "evaluate_passages",
    "first_stage",
    "fuse",
    "generate_queries",
    "index_bm25",
    "ingest",
    "measure_latency",
    "merge",
    "promote",
    "propagate_sections",
    "rank",
    "recommend",
    "report",
    "rerank",
    "score_candidates",
    "select_training_set",
    "train_cross_encoder",
    "train_dpr",
    "train_dual_encoder",
    "train_gnn",
    "train_query_generator",
    "train_reranker",
    "try_variant",
]
