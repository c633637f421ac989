"""What a run of the training pipeline writes to the disk, step by step, from sizes of the data and of the models.

Arrays are counted exactly. Rankings, postings and texts are counted per row, with the bytes of a row measured on a
finished run of `obliqa`. A file that an input of its step has, too, takes no space (`artifacts.folder.Draft`). The
forecast is of a run without anything to reuse, and at most: it has the bundle of DPR, which is made only if DPR is
recommended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts.arrays import STORED
from gnn_encoder.flow.graph import Node
from gnn_encoder.models.backbone_files import backbone_width, read_config, resolve_backbone, vector_width
from gnn_encoder.pipelines.train import train
from gnn_encoder.planning.data_size import PACKED, DataSize
from gnn_encoder.planning.plan import MISSED
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.shared import SMOLLM2, shared_tokens
from gnn_encoder.settings.systems import DUAL_ENCODER

FP32, FP16 = 4, 2
ARTIFACT = 90_000
"""Manifest and history of an artifact: in `obliqa` 84 to 112 kB before the evaluation, 390 kB after it."""
HIT = 4.8
"""Bytes of a hit in a run besides its passage: a score that compresses badly, rank and query (4.7 in `obliqa`)."""
WORDS, REPEATED = 0.45, 0.7
"""BM25's postings of a text of b bytes are `WORDS` b^`REPEATED`: long texts repeat their words. That is 18 % more than
104 bytes of documentation have, 15 % more than `obliqa`'s 400, 3 % fewer than `medquad`'s 2,270, 22 % fewer than
`scifact`'s 1,490."""
POSTING, VOCABULARY_GROWTH = 8, 700
"""Bytes of a posting, passage int32 and weight fp32; and of a vocabulary, for each root of the number of postings."""
WRITTEN = 400.0
"""Bytes of a written query with its prompt and answer, about."""
PARTS = 5
"""Postings of a text in another language, with the parts of its words, to a posting of its words; `auto` counts as
English."""
TOKENIZER = 720_000
"""Tokenizer and configuration beside the weights of a BERT."""
VOCABULARY, POSITIONS, BASE_WIDTH = 30_522, 512, 768
"""Of BERT, for a backbone that is not on this machine. Twelve layers have 12 d² parameters each."""
BART = 560_000_000
"""Bytes of a query generator that is not on this machine: BART-base."""
OPTIMIZED = 3
"""Numbers per parameter in a checkpoint: the parameter and the optimizer's two moments."""
FEATURES, CANDIDATES, TREES = 18, 110, 400_000
"""Of a fusion: features, candidates of a training query, and bytes of 200 trees."""
RANKED = ("bm25_retrieve", "dense_retrieve", "rerank")
"""Steps of which the merge writes a new table."""
TOKEN_IDS, IN_MLFLOW = "token ids", "report in MLflow"
SMALL, FIGURES, PAGE = 10_000, 150_000, 1_200_000
"""Bytes of an artifact with some figures, such as the decision; of all systems' figures; and of the report's page and
plots."""
PER_QUERY, BROWSED = 250, 2_500
"""Bytes of a judged query's figures and first hits; and of what the report's page reads of it from beside the page."""


@dataclass(frozen=True)
class Space:
    """What a call of a step needs: bytes that stay, and bytes on top while it runs."""

    title: str
    kept: int
    meanwhile: int = 0


def width_of(backbone: str, dimension: int | None = None) -> int:
    """Returns the width of a text's vector; for a backbone that is not on this machine, BERT-base's width."""
    return vector_width(backbone, dimension) or BASE_WIDTH


def weights_of(backbone: str) -> int:
    """Returns the bytes of a backbone in fp32; if it is not on this machine, the bytes of a BERT with twelve layers."""
    folder = Path(resolve_backbone(backbone))
    if files := list(folder.rglob("*.safetensors")) or list(folder.rglob("pytorch_model*.bin")):
        tokenizer = folder / "tokenizer.json"
        files += [tokenizer] * tokenizer.is_file()
        return sum(file.stat().st_size for file in files)
    width = backbone_width(backbone) or BASE_WIDTH
    return FP32 * ((VOCABULARY + POSITIONS) * width + 12 * 12 * width**2) + TOKENIZER


def run_space(settings: Settings, size: DataSize) -> list[Space]:
    """Returns the space of each call of the training pipeline that the settings ask for, in order.

    Before them are the files of token ids, which steps share, and after them the report's copy in MLflow.
    """
    forecast = _Forecast(settings, size)
    steps = [forecast.of(call) for call in forecast.calls]
    return [Space(TOKEN_IDS, forecast.tokens()), *steps, Space(IN_MLFLOW, int(forecast.report()))]


def needed(spaces: Sequence[Space]) -> int:
    """Returns the most bytes that are taken at a time: what is kept so far, and what a step needs while it runs."""
    kept = np.cumsum([space.kept for space in spaces])
    return int((kept + [space.meanwhile for space in spaces]).max())


class _Forecast:
    """The sizes of a run's artifacts."""

    def __init__(self, settings: Settings, size: DataSize) -> None:
        self.settings, self.size, self.m = settings, size, size.passages
        flow = train(settings)
        self.calls = flow.nodes
        self.systems = sum(name == "runs" for name, _ in flow["evaluate"].artifacts())
        self.graph = BuildGraph.model_validate(flow["build_graph"].settings.model_dump())
        self.n, self.judged = size.queries["train"], size.queries["dev"] + size.queries["test"]
        self.trained = min(self.n, settings.ingest.max_trained_queries or self.n)
        self.nodes = self.n if self.graph.queries == "all" else self.trained
        self.trained_labels = self.size.labels * self.trained / max(self.n, 1)
        backbone = settings.train_dual_encoder.backbone
        self.width = width_of(backbone, settings.train_dual_encoder.truncate_dimension)
        self.encoder = weights_of(backbone)
        scorer = settings.train_cross_encoder.published or settings.train_cross_encoder.backbone
        self.scorer_width, self.scorer = backbone_width(scorer) or BASE_WIDTH, weights_of(scorer)
        self.wide = self.m * self.width * FP32
        self.number = STORED[self.graph.vector_type].itemsize
        self.vectors = self.m * self.width * self.number
        self.windows = self._windows(settings.train_dual_encoder.passage_length)
        self.scored = self.windows * self.vectors
        self.scratch = self.wide * (1 + self.windows * self.graph.in_windows)
        self.query_vectors = self.n * self.width * FP32
        self.steps: dict[str, Callable[[Any], tuple[float, float]]] = {
            "ingest": lambda _: (size.dataset, 0),
            "index_bm25": lambda step: (self._postings() * (1 if step.language in ("en", "auto") else PARTS), 0),
            "write_queries": lambda step: (WRITTEN * (step.max_passages or self.m) * step.per_passage, 0),
            "select_queries": lambda _: (size.dataset, 0),  # the corpus once more
            "bm25_retrieve": self._retrieved,
            "train_dpr": self._dual_encoder,
            "dense_retrieve": lambda step: (self._retrieved(step)[0] * step.shards, self.scratch),  # hits in each part
            "train_cross_encoder": lambda step: (self.scorer, self._checkpoint(self.scorer, step)),
            "score_candidates": lambda _: (self.pairs() * (self.scorer_width * FP16 + 16), 0),
            "train_query_generator": self._generator,
            "generate_queries": self._generated,
            "merge": lambda _: (0, 0),  # hard links to the parts' files
            "select_training_set": self._selected,
            "train_dual_encoder": self._dual_encoder,
            "find_neighbours": self._neighbours,
            "build_graph": self._graph,
            "choose_graph": self._chosen_graph,
            "encode_with_labels": self._labelled_bundle,
            "make_parts": lambda step: (self._parts(step), self.n * self.width * FP32),  # pulls of hard negatives
            "fuse_parts": lambda step: (self.windows * self._bundle(step) + TREES, 0),
            "train_gnn": self._gnn,
            "encode_nodes": lambda _: (self.vectors + self.nodes * (4 * self.width + 16) + 16 * self.m, 0),
            "encode_corpus": self._encoded,
            "bundle_dual_encoder": self._bundled,
            "rank": lambda step: (self._ranked(step), self.scratch if step.backbone else 0),
            "rerank": lambda step: (self._ranked(step), 0),
            "fuse": lambda step: (2 * self._ranked(step) + ARTIFACT, 0),
            "evaluate": lambda _: (self.trec() + FIGURES + self.judged * PER_QUERY, 0),
            "recommend": lambda _: (SMALL, 0),
            "choose_bundle": lambda _: (SMALL, 0),  # hard links to the bundle's files
            "measure_latency": lambda _: (0, 0),
            "report": lambda _: (self.report() - self.trec(), 0),  # the evaluation has the runs
            "promote": lambda _: (SMALL, 0),
        }  # fmt: skip

    def of(self, call: Node) -> Space:
        """Returns the space of a call; a KeyError for a step that nobody has measured."""
        whole, tasks = self.steps[call.step](call.settings), getattr(call.settings, "shards", 1)
        if call.step == "merge" and call.label in RANKED:
            settings: Any = next(node.settings for node in self.calls if node.step == call.label)
            whole = self.steps["rerank"](settings) if call.label == "rerank" else self._retrieved(settings)
        kept, meanwhile = (size / tasks for size in whole)
        return Space(call.title, int(kept) + ARTIFACT, int(meanwhile))

    def _windows(self, length: int) -> float:
        """Vectors of a passage that is read in windows, at most; else 1."""
        if not self.graph.in_windows:
            return 1.0
        return 1 + float(self.size.tokens.mean()) / (length - shared_tokens(self.graph.window_overlap, length))

    def pairs(self) -> int:
        """Candidates of the queries that are trained on, and those of their labels that are no candidates."""
        candidates = min(self.settings.score_candidates.candidates, self.m)
        return int(self.trained * candidates + MISSED * self.trained_labels)

    def hits(self, count: int) -> float:
        """Bytes of a run of so many hits."""
        return count * (HIT + log2(max(self.m, 2)) / 8)

    def trec(self) -> int:
        """Bytes of the TREC runs of all ranked systems."""
        return int(self.systems * self.judged * min(self.settings.evaluate.run_depth, self.m) * self.size.trec)

    def report(self) -> float:
        """Bytes of the report: the evaluation's runs and figures, page and plots."""
        return self.trec() + FIGURES + PAGE + self.judged * (PER_QUERY + BROWSED)

    def tokens(self) -> int:
        """Bytes of the passages' token ids, a file for each length to which they are cut."""
        lengths = {
            getattr(self.settings, step).passage_length for step in ("train_dpr", "train_dual_encoder")
        } | {self.settings.train_cross_encoder.pair_length}  # fmt: skip
        return int(sum(self.m * (8 + FP32 * np.minimum(self.size.tokens, length).mean()) for length in lengths))

    def _retrieved(self, settings: Any) -> tuple[float, float]:
        train, judged = self.trained * min(settings.train_depth, self.m), self.judged * min(settings.eval_depth, self.m)
        return self.hits(train + judged), 0

    def _ranked(self, settings: Any) -> float:
        return self.hits(self.judged * min(settings.depth, self.m))

    def _checkpoint(self, weights: float, settings: Any) -> float:
        """The old and the new checkpoint lie beside each other for a moment; `keep: best` keeps the best epoch, too.

        Of adapters they hold r (m + n) numbers for each weight matrix [m, n], about 2 r / m of it.
        """
        rank = getattr(settings, "lora_rank", 0)
        weights *= min(1.0, 2 * rank / self.width) if rank else 1.0
        return 2 * (OPTIMIZED + (getattr(settings, "keep", "") == "best")) * weights

    def _dual_encoder(self, settings: Any) -> tuple[float, float]:
        return 2 * self.encoder, self._checkpoint(2 * self.encoder, settings)

    def _generator(self, settings: Any) -> tuple[float, float]:
        weights = _generator_weights(settings.generator)
        return weights, self._checkpoint(weights, settings)

    def _generated(self, settings: Any) -> tuple[float, float]:
        triples = self.trained * settings.negatives_per_query
        distinct = min(settings.max_passages or self.m, triples, self.m)
        return distinct * (self.size.query_text * PACKED + 12) + triples * 12, 0

    def _selected(self, settings: Any) -> tuple[float, float]:
        examples = self.trained_labels * (1 + settings.selection + settings.augmentation)
        return examples * (16 + 4 * settings.negatives_per_example), 0

    def _columns(self, graph: BuildGraph) -> int:
        """Edges of a query in the graph's arrays."""
        retrieved = min(graph.neighbors, self.m) if "retrieved" in graph.edge_kinds else 0
        return max(1, retrieved + (self.size.most_labels if "labelled" in graph.edge_kinds else 0))

    def _graph(self, settings: Any) -> tuple[float, float]:
        columns, loops = self._columns(settings), 0
        if settings.edge_features == "cross_encoder" and settings.self_loop_features == "cross_encoder":
            loops = (self.nodes + self.m) * self.scorer_width * FP16
        structure = self.nodes * (columns * 13 + 4 * settings.retrieved + 20) + 8 * self.m
        vectors = self._passages(settings) + self.query_vectors + self.judged * self.width * FP32 + 16 * self.m
        return self._edge_features() + loops + structure + vectors + ARTIFACT, self._edge_features()

    def _passages(self, settings: Any) -> float:
        """M_de's vectors of all passages. Windows have their vectors, digests and passages."""
        return self.vectors + int(settings.in_windows * (self.scored + self.windows * 20 * self.m))

    def _neighbours(self, settings: Any) -> tuple[float, float]:
        """The vectors, which `build_graph` copies; and in each part hits of every query: a row and a score."""
        return self._passages(settings) + settings.shards * self.trained * min(settings.depth, self.m) * (4 + FP32), 0

    def _edge_features(self) -> float:
        """Bytes of the edges' features. A scratch file has the features of edges to non-candidates, at most as many."""
        graph = self.graph
        number = 1 if graph.edge_feature_type == "int8" else FP16
        return self.nodes * self._columns(graph) * self.scorer_width * number * (graph.edge_features == "cross_encoder")

    def _chosen_graph(self, settings: Any) -> tuple[float, float]:
        """A chosen part of the graph has at most the features of the whole; the whole graph is shared."""
        return ARTIFACT + (self._edge_features() if settings.variants else 0), self.n * self.width * FP32

    def _gnn(self, settings: Any) -> tuple[float, float]:
        # W_t, W_s and W_e of both layers, and the merging matrices of 2 d × d.
        weights = 2 * self.encoder + FP32 * (6 * self.width**2 + 4 * self.width**2)
        return weights, self._checkpoint(weights, settings)

    def _bundled(self, settings: Any) -> tuple[float, float]:
        is_encoded = settings.system != DUAL_ENCODER
        index, first = self.windows * self._bundle(settings), self.vectors * self.graph.in_windows
        return index + self.scored * is_encoded, first * is_encoded

    def _bundle(self, settings: Any) -> float:
        """A bundle's index. Its passages, query encoder and BM25 index are inputs', and its vectors may be, too."""
        return float(self.m * self._index(settings))

    def _query_index(self, settings: Any) -> float:
        """The index over labelled queries, and their pairs by query."""
        index = self._index(settings.of_queries(self.query_vectors))
        return float(self.n * (index + 8) + 4 * self.size.labels)

    def _index(self, settings: Any) -> int:
        """Bytes of a vector in an index."""
        return {"flat_fp16": 2 * self.width, "sq8": self.width, "ivf": 2 * self.width + 8,
                "hnsw": 2 * self.width + 8 * getattr(settings, "hnsw_links", 0)}.get(settings.index, 0)  # fmt: skip

    def _postings(self) -> float:
        """BM25's postings and vocabulary."""
        count = self.m * _words(self.size.text)
        return count * POSTING + sqrt(count) * VOCABULARY_GROWTH

    def _labelled_bundle(self, settings: Any) -> tuple[float, float]:
        labelled = min(self.m, self.size.labels)
        labels = (
            self.windows * labelled * self.width * self.number + self.n * self.size.query_text * PACKED + 8 * self.m
        )
        # Clusters add vectors of labelled passages, if they are chosen. A use that changes no vector, such as a weight
        # of 0 or a softmax, has M_de's file.
        return self.windows * self._bundle(settings) + self.scored + labels + self._query_index(settings), 0

    def _parts(self, settings: Any) -> float:
        """The labelled queries, the postings of the labels' field, lengths, the adapter, and the examples' features."""
        size, labelled = self.size, min(self.m, self.size.labels)
        postings = size.labels * _words(size.query_text) + labelled * _words(size.text)
        queries = self.n * (self.width * FP32 + size.query_text * PACKED) + 8 * self.m
        features = min(self.n, settings.examples) * CANDIDATES * (FEATURES * FP32 + 1)
        learned = POSTING * postings + FP32 * (self.m + self.width**2) + features
        return float(queries + learned) + self._query_index(settings)

    def _encoded(self, settings: Any) -> tuple[float, float]:
        return self._bundle(settings) + self.vectors + 16 * self.m, self.nodes * self._columns(self.graph) * FP32 * 4


def _words(size: float) -> float:
    """Returns the postings of a text of so many bytes."""
    return WORDS * float(size**REPEATED)


def _generator_weights(name: str) -> float:
    """Returns the bytes of a query generator; an encoder becomes a pair with cross-attention."""
    if name == SMOLLM2:
        return 4 * 135_000_000
    folder = Path(resolve_backbone(name))
    if not list(folder.glob("*.safetensors")):
        return BART
    config, weights = read_config(name), weights_of(name)
    if config.get("is_encoder_decoder") or "num_hidden_layers" not in config:
        return weights
    return float(2 * weights + FP32 * config["num_hidden_layers"] * 4 * config["hidden_size"] ** 2)
