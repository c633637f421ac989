"""A draw of training queries is trained on; the labels of all others count wherever nothing is trained."""

from pathlib import Path

import numpy as np
import pytest
from labelled_bundles import bundle_of, write_inputs
from tiny_graph import GRAPH
from trained_root import write_beir

from gnn_encoder.artifacts import (
    Bundle,
    Contents,
    Dataset,
    GeneratedQueries,
    Graph,
    PairScores,
    Run,
    TrainingSet,
    drafting,
    read_manifest,
    read_vectors,
)
from gnn_encoder.artifacts.arrays import read_rows
from gnn_encoder.evaluation.strata import warm_strata
from gnn_encoder.planning.facts import data_facts
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest, SelectTrainingSet
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.measures import WARM
from gnn_encoder.steps.bm25_retrieve import bm25_retrieve
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.ingest import ingest
from gnn_encoder.steps.score_candidates import candidate_pairs
from gnn_encoder.steps.select_training_set import select_training_set
from gnn_encoder.steps.train_dpr import lexical_examples

DRAWN = 6
DATA = {"all": {}, "drawn": {"max_trained_queries": DRAWN}, "cut": {"max_train_queries": DRAWN}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    """45 training queries of 15 needs: all of them trained on, a draw, and the draw alone as data; models, BM25."""
    folder = tmp_path_factory.mktemp("trained")
    tiny = write_inputs(folder, tiny_backbone)
    source = write_beir(Dataset(tiny["dataset"]), folder / "beir")
    for name, changes in DATA.items():
        ingest(Ingest.model_validate({"dataset": str(source), **changes}), dataset=folder / name)
    return {**tiny, **{name: folder / name for name in DATA}}


def build(inputs: dict[str, Path], name: str, out: Path, **settings: object) -> tuple[Graph, dict[str, Path]]:
    """The graph of one of `DATA`, and the folder of the inputs of `encode_with_labels`."""
    graph_settings = {**GRAPH, "precision": "fp32", "edge_features": "none", "edges": "retrieved+labelled", **settings}
    artifacts = {"dataset": inputs[name], "dual_encoder": inputs["dual_encoder"]}
    cross_encoder = inputs["dual_encoder"].with_name("cross_encoder")
    built = {"graph": out / "graph", "passage_vectors": out / "passage_vectors"}
    build_graph(BuildGraph.model_validate(graph_settings), **artifacts, cross_encoder=cross_encoder, **built)
    using = {**artifacts, "passage_vectors": built["passage_vectors"], "bm25_index": inputs["bm25_index"]}
    return Graph.read(built["graph"]), using


def edges_of(graph: Graph) -> dict[int, set[tuple[int, bool]]]:
    return {
        int(query): {(p, bool(mark)) for p, mark in zip(row.tolist(), marks.tolist(), strict=True) if p >= 0}
        for query, row, marks in zip(graph.queries, graph.edges, graph.labelled, strict=True)
    }


def test_a_draw_adds_one_file_and_changes_no_other(inputs: dict[str, Path]) -> None:
    files = {name: read_manifest(inputs[name]).files for name in DATA}
    assert set(files["drawn"]) - set(files["all"]) == {"trained.parquet"}
    assert all(files["drawn"][name].sha256 == entry.sha256 for name, entry in files["all"].items())
    every, drawn, cut = (Dataset(inputs[name]) for name in DATA)
    assert np.array_equal(every.trained, every.query_rows("train")) and len(drawn.query_rows("train")) == 45
    assert len(drawn.trained) == DRAWN == len(drawn.trained_labels.query)
    # The draw is that of `max_train_queries`, which leaves the others out of the data.
    ids = drawn.queries["query_id"].to_numpy(), cut.queries["query_id"].to_numpy()
    assert set(ids[0][drawn.trained]) == set(ids[1][cut.trained])
    manifest = read_manifest(inputs["drawn"])
    assert manifest.rows["trained"] == DRAWN == manifest.metrics["queries_trained"]
    assert manifest.metrics["headline"].endswith(f"queries, {DRAWN} of them trained on")
    assert "queries_trained" not in read_manifest(inputs["all"]).metrics


def test_labels_of_all_queries_say_what_is_warm(inputs: dict[str, Path], tiny_backbone: Path) -> None:
    every, drawn, cut = (Dataset(inputs[name]) for name in DATA)
    warm = [warm_strata(data.split_qrels("test"), data.split_qrels("train")).rows(WARM) for data in (every, drawn, cut)]
    assert warm[0].all() and warm[1].all() and 0 < warm[2].sum() < 15
    facts = data_facts(drawn, str(tiny_backbone), 0)
    assert (facts.queries["train"], facts.drawn, facts.labels) == (45, DRAWN, 45)
    assert data_facts(every, str(tiny_backbone), 0).drawn == 0


def test_only_the_drawn_queries_are_trained_on(inputs: dict[str, Path], tmp_path: Path) -> None:
    data = Dataset(inputs["drawn"])
    bm25_retrieve(
        Bm25Retrieve(train_depth=5, eval_depth=1000), dataset=data.path, bm25_index=inputs["bm25_index"],
        bm25_run=tmp_path / "run",
    )  # fmt: skip
    run, evaluated = Run.read(tmp_path / "run"), np.concatenate([data.query_rows("dev"), data.query_rows("test")])
    assert set(np.unique(run.query)) == {*data.trained, *evaluated}
    examples = lexical_examples(data, run, 5)
    assert sorted(examples.query) == data.trained.tolist() and len(negative_pool(data, [run], 5)) == DRAWN
    query, passage = candidate_pairs(data, [run], 5)
    assert set(query) == set(data.trained)
    with drafting(tmp_path / "pairs", "pair_scores") as draft:
        PairScores.create_cls(draft, len(query), 4)
        low = np.full(len(query), 0.01, np.float32)
        PairScores.write(draft, query, passage, low, low)
    none = np.empty(0, np.int32)
    with drafting(tmp_path / "generated", "generated_queries") as draft:
        GeneratedQueries(none, [], none, none, np.empty(0, np.float32)).write(draft)
    select_training_set(
        SelectTrainingSet(), dataset=data.path, candidates=tmp_path / "pairs",
        generated_queries=tmp_path / "generated", training_set=tmp_path / "set",
    )  # fmt: skip
    assert sorted(TrainingSet.read(tmp_path / "set").query) == data.trained.tolist()


def test_the_graph_has_the_labels_of_all_queries(inputs: dict[str, Path], tmp_path: Path) -> None:
    """A query that is not trained on has its labelled edge alone; one that is has the edges of a graph of all."""
    whole, _ = build(inputs, "all", tmp_path / "all")
    graph, _ = build(inputs, "drawn", tmp_path / "drawn")
    edges, expected, trained = edges_of(graph), edges_of(whole), set(Dataset(inputs["drawn"]).trained.tolist())
    assert len(edges) == 45
    for query, passages in expected.items():
        labelled = {edge for edge in passages if edge[1]}
        assert len(labelled) == 1 and len(passages) >= GRAPH["neighbors"]
        assert edges[query] == (passages if query in trained else labelled)
    assert np.array_equal(
        read_vectors(tmp_path / "all/passage_vectors"), read_vectors(tmp_path / "drawn/passage_vectors")
    )
    part, using = build(inputs, "drawn", tmp_path / "part", queries="trained")
    assert edges_of(part) == {query: expected[query] for query in trained}
    of_all = read_rows(tmp_path / "all/passage_vectors", "queries")
    assert np.array_equal(read_rows(using["passage_vectors"], "queries"), of_all) and len(of_all) == 45
    assert Contents.read(tmp_path / "all/passage_vectors").digests.keys() == {"texts", "evaluated"}, "as without a draw"


@pytest.mark.parametrize(("before", "now"), [("drawn", "drawn"), ("drawn", "all"), ("all", "drawn")])
@pytest.mark.parametrize("queries", ["all", "trained"])
def test_an_update_equals_a_graph_from_nothing(
    inputs: dict[str, Path], tmp_path: Path, before: str, now: str, queries: str
) -> None:
    build(inputs, before, tmp_path / "before", queries=queries)
    fresh, _ = build(inputs, now, tmp_path / "fresh", queries=queries)
    updated, _ = build(inputs, now, tmp_path / "updated", queries=queries, previous=str(tmp_path / "before"))
    assert edges_of(updated) == edges_of(fresh)
    assert np.array_equal(updated.retrieved, fresh.retrieved)
    for name in ("vectors", "queries"):
        fresh_rows, rows = (read_rows(tmp_path / run / "passage_vectors", name) for run in ("fresh", "updated"))
        np.testing.assert_array_equal(rows, fresh_rows)
    metrics = read_manifest(tmp_path / "updated/graph").metrics
    assert metrics["encoded"] == 0 == metrics["queries_encoded"], "all vectors are carried over"


@pytest.mark.parametrize(
    ("name", "share", "settings"),
    [
        ("sum", 0.7, {"sum_weights": (9.0,)}),  # other needs' sums may be nearer
        ("max", 1.0, {"memory_weights": (1000.0,)}),
        ("softmax", 1.0, {"memory_weights": (9.0,), "memory_neighbours": (1,), "memory_temperatures": (0.1,),
                     "memory_thresholds": (0.0,)}),
        ("clusters", 1.0, {"cluster_weights": (9.0,), "clusters": (16,)}),
    ],
)  # fmt: skip
def test_a_query_that_is_not_trained_on_finds_its_labelled_passage(
    inputs: dict[str, Path], tmp_path: Path, name: str, share: float, settings: dict[str, object]
) -> None:
    """With so large a weight the labels alone decide; in the data without the other queries, they are lost."""
    data, first = Dataset(inputs["drawn"]), {}
    left = np.setdiff1d(data.query_rows("train"), data.trained)
    labels, positives = data.split_qrels("train"), set(data.trained_labels.passage.tolist())
    passage = dict(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    queries = [query for query in left.tolist() if passage[query] not in positives]
    assert len(queries) > 10
    for of in ("drawn", "cut"):
        _, using = build(inputs, of, tmp_path / of, queries="trained")
        bundle = Bundle.read(bundle_of(using, tmp_path / of, name, **settings))
        assert len(bundle.labels.vectors) == (45 if of == "drawn" else DRAWN)
        searcher = Searcher(bundle)
        ids = searcher.bundle.passages.ids().to_pylist()
        first[of] = [ids[searcher.run(text, 1).passage[0]] for text in data.query_texts(np.array(queries))]
    ids = data.passages.ids().to_pylist()
    is_first = [hit == ids[passage[query]] for hit, query in zip(first["drawn"], queries, strict=True)]
    assert np.mean(is_first) >= share and not set(first["cut"]) & {ids[passage[query]] for query in queries}
