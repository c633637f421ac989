"""The nodes that labels change in a run's graph, with the edges and features that `build_graph` would give them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from gnn_encoder.artifacts import Asked, Bundle, read_manifest, read_vectors
from gnn_encoder.artifacts.added_labels import AddedLabel, AddedNodes, new_query_id
from gnn_encoder.artifacts.arrays import Rows, eight_bits
from gnn_encoder.artifacts.finished_run import place_of, run_folder
from gnn_encoder.errors import UserError
from gnn_encoder.explanation.passages import Sources
from gnn_encoder.explanation.search import sources_of
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.scoring import Pairs, PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.labels.requests import Known
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.scorers import CrossEncoderScorer, load_cross_encoder
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.shared import Inference
from gnn_encoder.settings.systems import GNN_ENCODER

Edges = dict[int, bool]
"""{passage row: whether the edge is labelled}, of one query, in the order of the edges."""


@dataclass(frozen=True)
class FinishedRun:
    """A bundle, and the artifacts beside it that the bundle was made from."""

    bundle: Bundle
    sources: Sources

    @classmethod
    def of(cls, bundle: Bundle) -> "FinishedRun":
        """Opens the artifacts; a UserError if one is missing, or the bundle is of a kind that has no graph."""
        if bundle.manifest.step != "encode_corpus":
            raise UserError(
                f"{bundle.path} is of {bundle.system} and has no graph of queries: give --bundle "
                f"ROOT/latest/{place_of(GNN_ENCODER)} of a run with a training; to add labels, a bundle that uses "
                "labels serves as well, as of a run --until labels"
            )
        return cls(bundle, sources_of(bundle))

    @cached_property
    def known(self) -> Known:
        """The run's queries, passages and labels."""
        return Known(self.sources.dataset, self.bundle)

    @cached_property
    def graph_settings(self) -> BuildGraph:
        """The settings with which the graph was built."""
        return BuildGraph.model_validate(read_manifest(self._beside("graph")).settings)

    def _beside(self, name: str) -> Path:
        return run_folder(self.bundle.path) / name

    def model(self, name: str) -> Path:
        """Returns the folder of a model that built the graph; a UserError if another model is there."""
        folder = self._beside(name)
        if not folder.exists():
            raise UserError(
                f"{self.bundle.path}: no {name} beside it; give --bundle ROOT/latest/bundle of a finished run"
            )
        if read_manifest(folder, "model").digest != read_manifest(self._beside("graph")).inputs.get(name):
            raise UserError(f"{folder} is not the model that built the graph; give --bundle ROOT/latest/bundle")
        return folder

    def _rows_of(self, query_id: str) -> np.ndarray:
        return np.flatnonzero(pc.equal(self.sources.dataset.queries.column("query_id"), query_id).to_numpy())

    def node_of(self, query_id: str) -> int:
        """Returns the node of a query in the run's graph, -1 if there is none."""
        nodes = np.flatnonzero(np.isin(self.sources.graph.queries, self._rows_of(query_id)))
        return int(nodes[0]) if len(nodes) else -1

    def may_have_node(self, query_id: str) -> bool:
        """Whether the graph that `build_graph` makes with a new label of a query has a node for the query."""
        is_new = not len(self._rows_of(query_id))
        return is_new or self.graph_settings.queries == "all" or self.node_of(query_id) >= 0

    def stored_edges(self, node: int) -> Edges:
        """Returns the edges of a node of the run's graph; none for -1."""
        graph = self.sources.graph
        return edges_of(graph.edges[node], graph.labelled[node]) if node >= 0 else {}


def encoded(bundle: Bundle, texts: Sequence[str]) -> np.ndarray:
    """Returns the vectors fp32 [n, d] of queries, with the query encoder of a bundle and the settings of its step."""
    settings = bundle.manifest.settings
    encoding = Inference.model_validate({name: settings[name] for name in Inference.model_fields})
    return encode_texts(TextEncoder.load(bundle.query_encoder_path), texts, **encoding.speed)


def edges_of(edges: np.ndarray, labelled: np.ndarray) -> Edges:
    """Returns the edges in a row of `Graph.edges` and `Graph.labelled` [k]."""
    pairs = zip(edges.tolist(), labelled.tolist(), strict=True)
    return {passage: mark for passage, mark in pairs if passage >= 0}


def changed_nodes(run: FinishedRun, labels: Sequence[AddedLabel], former: AddedNodes | None) -> AddedNodes:
    """Returns the queries whose edges differ from the run's graph if exactly `labels` are added to the data.

    A graph of `build_graph.queries: trained` has no node for a query of the data that is not trained on, and gets none.
    Vectors and features come from the run's graph or from `former`, and are computed for new queries and pairs alone.
    """
    before, now = _passages_of(run.sources.dataset.added), _passages_of(labels)
    texts = {label.query_id: label.query for label in (*run.sources.dataset.added, *labels)}
    ids = [query for query in texts if set(before[query]) != set(now[query]) and run.may_have_node(query)]
    queries = [texts[query] for query in ids]
    rows = run.known.passage_rows([passage for query in ids for passage in (*before[query], *now[query])])
    nodes = np.array([run.node_of(query) for query in ids], np.int64)
    known = {query: row for row, query in enumerate(former.ids)} if former else {}
    former_rows = np.array([known.get(query, -1) for query in ids], np.int64)
    retrieved = _retrieved(run, queries, nodes, former_rows, former)
    edges = []
    for query, node, near in zip(ids, nodes.tolist(), retrieved, strict=True):
        added_before = {rows[passage] for passage in before[query] if passage in rows}
        positives = sorted(_positives(run, node) - added_before) + [rows[passage] for passage in now[query]]
        is_gone = not positives and query == new_query_id(texts[query])
        edges.append({} if is_gone else _joined(near, positives, run.graph_settings.edge_kinds))
    return _with_vectors(run, ids, queries, nodes, edges, former, former_rows)


def _passages_of(labels: Sequence[AddedLabel]) -> dict[str, list[str]]:
    passages = defaultdict[str, list[str]](list)
    for label in labels:
        passages[label.query_id].append(label.passage_id)
    return passages


def _positives(run: FinishedRun, node: int) -> set[int]:
    if node < 0:
        return set()
    labels = run.sources.dataset.qrels.positive()
    return set(labels.passage[labels.query == run.sources.graph.queries[node]].tolist())


def _joined(near: np.ndarray, positives: Sequence[int], kinds: frozenset[str]) -> Edges:
    """Returns the edges that `build_graph` makes of retrieved passages and labelled positives."""
    edges: Edges = dict.fromkeys(near.tolist(), False)
    if "labelled" in kinds:
        edges |= dict.fromkeys(positives, True)
    return edges


def _retrieved(
    run: FinishedRun, texts: Sequence[str], nodes: np.ndarray, former_rows: np.ndarray, former: AddedNodes | None
) -> list[np.ndarray]:
    """Returns the retrieved passages of each query: stored ones, or M_de's first for a query that is new."""
    graph, settings = run.sources.graph, run.graph_settings
    trained = np.isin(graph.queries, run.sources.dataset.trained)  # the others have no retrieved passages
    near = [np.empty(0, np.int32)] * len(texts)
    if "retrieved" not in settings.edge_kinds:
        return near
    k = min(settings.neighbors, len(run.bundle.passages))
    new = []
    for i, (node, former_row) in enumerate(zip(nodes.tolist(), former_rows.tolist(), strict=True)):
        if node >= 0:
            near[i] = graph.edges[node, :k] if trained[node] else near[i]
        elif former and former_row >= 0 and (former.edges[former_row, :k] >= 0).all():
            near[i] = former.edges[former_row, :k]
        else:
            new.append(i)
    if new:
        encoder = DualEncoder.load_query_encoder(run.model("dual_encoder"))
        query_vectors = encode_texts(encoder, [texts[i] for i in new], **settings.speed)
        vectors = read_vectors(run._beside("passage_vectors"))
        for i, row in zip(new, exact.search(vectors, query_vectors, k)[1], strict=True):
            near[i] = row
    return near


def _with_vectors(
    run: FinishedRun,
    ids: list[str],
    texts: list[str],
    nodes: np.ndarray,
    edges: Sequence[Edges],
    former: AddedNodes | None,
    former_rows: np.ndarray,
) -> AddedNodes:
    """Returns the nodes with h_q, edge features and self-loops."""
    graph, encoding = run.sources.graph, run.sources.encoding
    width = max([len(of_query) for of_query in edges], default=0) or 1
    array, labelled = np.full((len(ids), width), -1, np.int32), np.zeros((len(ids), width), bool)
    for i, of_query in enumerate(edges):
        array[i, : len(of_query)], labelled[i, : len(of_query)] = list(of_query), list(of_query.values())

    def reused(
        stored: Rows, former_values: np.ndarray | None, compute: Callable[[list[int]], np.ndarray]
    ) -> np.ndarray:
        """A row per query: of the graph, of `former`, or made for the remaining queries."""
        out = np.empty((len(ids), stored.shape[1]), stored.dtype)
        out[nodes >= 0] = stored[nodes[nodes >= 0]]
        old = (nodes < 0) & (former_rows >= 0)
        if former_values is not None:
            out[old] = former_values[former_rows[old]]
        if new := np.flatnonzero((nodes < 0) & (former_rows < 0)).tolist():
            out[new] = compute(new)
        return out

    scorer = _PairVectors(run)
    features, scales = _features(run, texts, nodes, array, former, former_rows, scorer)
    loops = None
    if graph.query_loops is not None:
        former_loops = former.loops if former else None
        loops = reused(graph.query_loops, former_loops, lambda new: scorer.loops([texts[i] for i in new]))
    former_vectors = former.vectors if former else None
    vectors = reused(encoding.queries, former_vectors, lambda new: encoded(run.bundle, [texts[i] for i in new]))
    return AddedNodes(ids, texts, nodes, vectors, array, labelled, features, scales, loops)


def _features(
    run: FinishedRun,
    texts: Sequence[str],
    nodes: np.ndarray,
    edges: np.ndarray,
    former: AddedNodes | None,
    former_rows: np.ndarray,
    scorer: "_PairVectors",
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns edge features and scales of all edges, as stored in a graph; None as in the run's graph."""
    graph = run.sources.graph
    if graph.features is None:
        return None, None
    features = np.zeros((*edges.shape, graph.features.shape[2]), graph.features.dtype)
    scales = None if graph.scales is None else np.zeros(edges.shape, graph.scales.dtype)
    missing = []
    for i, slot in zip(*np.nonzero(edges >= 0), strict=True):
        for row, source in ((former_rows[i], former), (nodes[i], graph)):
            if source is None or row < 0 or source.features is None:
                continue
            if len(slots := np.flatnonzero(source.edges[row] == edges[i, slot])):
                features[i, slot] = source.features[row, slots[0]]
                if scales is not None and source.scales is not None:
                    scales[i, slot] = source.scales[row, slots[0]]
                break
        else:
            missing.append((int(i), int(slot)))
    if missing:
        rows, slots = np.array(missing).T
        fresh = scorer.edges([texts[i] for i in rows], edges[rows, slots])
        if scales is None:
            features[rows, slots] = fresh
        else:
            features[rows, slots], scales[rows, slots] = eight_bits(fresh)
    return features, scales


class _PairVectors:
    """The cross-encoder's [CLS] vectors of new pairs; loads the model at the first pair."""

    def __init__(self, run: FinishedRun) -> None:
        self._run = run

    @cached_property
    def _scorer(self) -> CrossEncoderScorer:
        return load_cross_encoder(self._run.model("cross_encoder"))

    def edges(self, texts: Sequence[str], passages: np.ndarray) -> np.ndarray:
        """Vectors fp16 [e, d_e] of queries and passage rows [e]."""
        data = Asked(list(texts), self._run.bundle.passages)
        return self._vectors(*self._scorer.pairs(data, np.arange(len(texts)), passages.astype(np.int64)))

    def loops(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors fp16 [e, d_e] of the pairs of each query with itself."""
        model, rows = self._scorer.model, np.arange(len(texts))
        tokens = Tokens.of(model.tokenizer, texts, model.max_length)
        return self._vectors(PairTokens(model.tokenizer, tokens, tokens, model.max_length), rows, rows)

    def _vectors(self, pairs: Pairs, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        model = self._scorer.model
        vectors = np.empty((len(first), model.width), np.float16)
        score_pairs(model, pairs, first, second, None, vectors, **self._run.graph_settings.speed)
        return vectors
