"""Rankings without the query itself, of every step that ranks, against those of the same data without the rule."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import fill_bundle, write_bm25
from hypothesis import given, settings
from hypothesis import strategies as st
from identical_ids import with_identical_ids

from gnn_encoder.artifacts import Bundle, Dataset, Graph, KnownPositives, Run, drafting
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse, labelled_pairs
from gnn_encoder.evaluation.label_tuning import Trial
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.identical import run_without, search_without
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import served_run
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.settings.foundation import Bm25Retrieve, DenseRetrieve, TrainDualEncoder
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.steps.bm25_retrieve import bm25_retrieve
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.dense_retrieve import dense_retrieve
from gnn_encoder.steps.first_stage import first_stage
from gnn_encoder.steps.rank import rank
from gnn_encoder.training.dev import DevPool

DEPTH = 12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_a_search_without_passages_is_a_loop_over_all(seed: int, k: int) -> None:
    generator = np.random.default_rng(seed)
    vectors, queries = (generator.integers(-2, 3, (n, 2)).astype(np.float32) for n in (7, 5))  # many ties
    left_out = generator.integers(-1, 7, 5)
    scores, rows = search_without(lambda depth: exact.search(vectors, queries, depth), left_out, k)
    assert scores.shape == rows.shape == (5, k)
    for query, identical in enumerate(left_out.tolist()):
        products = vectors @ queries[query]
        order = [row for row in np.argsort(-products, kind="stable").tolist() if row != identical][:k]
        assert rows[query].tolist() == order + [-1] * (k - len(order))
        np.testing.assert_array_equal(scores[query, : len(order)], products[order])
        assert np.isneginf(scores[query, len(order) :]).all()


def test_hits_of_a_run_move_up() -> None:
    run = Run.from_hits(np.array([0, 2]), np.array([[4, 1, 2], [1, 3, 4]]), np.array([[3.0, 2, 1], [3, 2, 1]]))
    left = run_without(run, np.array([4, -1, 0]))
    assert (left.query.tolist(), left.passage.tolist()) == ([0, 0, 2, 2, 2], [1, 2, 1, 3, 4])
    assert (left.rank.tolist(), left.score.tolist()) == ([1, 2, 1, 2, 3], [2, 1, 3, 2, 1])
    assert run_without(run, np.full(3, -1)) is run


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset) -> Dataset:
    return with_identical_ids(tiny_dataset, tmp_path_factory.mktemp("alike") / "dataset")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    path = tmp_path_factory.mktemp("models") / "dual_encoder"
    torch.manual_seed(0)
    with drafting(path, "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="yes", query_length=16, passage_length=24, share_encoders=True
        ).save(draft.path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, alike: Dataset, encoder: Path) -> Bundle:
    path, model = tmp_path_factory.mktemp("bundles") / "bundle", DualEncoder.load(encoder)
    vectors = np.empty((len(alike.passages), model.passage_encoder.width), np.float32)
    encode_passages(model.passage_encoder, alike.passages, vectors, precision="fp32")
    with drafting(path, "bundle") as draft:
        bm25 = Bm25.build(alike.passages, IndexBm25())
        fill_bundle(draft, vectors, alike, model.query_encoder.save, bm25=bm25)
    return Bundle.read(path)


def ranked_by_bm25(data: Dataset, folder: Path, *_: object) -> Run:
    index = write_bm25(data.path, folder / "index")
    bm25_retrieve(
        Bm25Retrieve(train_depth=DEPTH, eval_depth=DEPTH), dataset=data.path, bm25_index=index, bm25_run=folder / "run"
    )
    return Run.read(folder / "run")


def ranked_by_dpr(data: Dataset, folder: Path, encoder: Path, _: Bundle) -> Run:
    chosen = DenseRetrieve(train_depth=DEPTH, eval_depth=DEPTH, precision="fp32")
    dense_retrieve(chosen, dataset=data.path, dpr=encoder, dpr_run=folder / "run")
    return Run.read(folder / "run")


def ranked_by_bundle(data: Dataset, folder: Path, _: Path, bundle: Bundle) -> Run:
    chosen = Rank(system="Dual encoder", depth=DEPTH, precision="fp32")
    rank(chosen, dataset=data.path, bundle=bundle.path, run=folder / "run")
    return Run.read(folder / "run")


def ranked_by_sum(data: Dataset, folder: Path, _: Path, bundle: Bundle) -> Run:
    """As fused bundles are served: the passage is out before scores are normalised."""
    fused = folder / "fused"
    with drafting(fused, "bundle") as draft:
        bundle.serve(draft, Serving("BM25 + Dual encoder", 0.5, None), None)
    opened, rows = Bundle.read(fused), data.query_rows("test")
    vectors = encode_texts(TextEncoder.load(opened.query_encoder_path), data.query_texts(rows), precision="fp32")
    questions, index = data.query_texts(rows), PassageIndex.read(opened)
    return served_run(opened, index, rows, questions, vectors, DEPTH, data.identical[rows])


def ranked_by_labels(data: Dataset, folder: Path, _: Path, bundle: Bundle) -> Run:
    encode = TextEncoder.load(bundle.query_encoder_path)
    rows, train = data.query_rows("test"), data.query_rows("train")
    query_vectors, of_train = (encode_texts(encode, data.query_texts(r), precision="fp32") for r in (rows, train))
    labels = LabelledQueries.of(*labelled_pairs(data), len(data.passages), of_train)
    trial = Trial(rows, query_vectors, labels, np.asarray(bundle.vectors), DEPTH, data.identical[rows])
    runs = [
        trial.ranked(LabelUse(method, 0.5, neighbours=3, temperature=0.1, clusters=2))
        for method in ("sum", "max", "softmax", "clusters")
    ]
    order = np.argsort(np.concatenate([run.query for run in runs]), kind="stable")
    return Run(*(np.concatenate([getattr(run, name) for run in runs])[order] for name in Run.__dataclass_fields__))


def ranked_by_first_stage(data: Dataset, folder: Path, encoder: Path, bundle: Bundle) -> Run:
    index, lexical = write_bm25(data.path, folder / "index"), folder / "lexical"
    with drafting(lexical, "run") as draft:
        Run.from_hits(np.arange(100), np.full((100, 1), 99), np.ones((100, 1))).write(draft, "BM25")
    chosen = FirstStage(source=str(bundle.path), train_depth=DEPTH, eval_depth=DEPTH, precision="fp32")
    first_stage(chosen, dataset=data.path, bm25_run=lexical, bm25_index=index, run=folder / "run")
    return Run.read(folder / "run")


SYSTEMS = [ranked_by_bm25, ranked_by_dpr, ranked_by_bundle, ranked_by_sum, ranked_by_labels, ranked_by_first_stage]


@pytest.mark.parametrize("ranked", SYSTEMS)
def test_no_system_ranks_the_query_itself(
    ranked: Callable[..., Run], tmp_path: Path, tiny_dataset: Dataset, alike: Dataset, encoder: Path, bundle: Bundle
) -> None:
    run, plain = (
        ranked(data, folder, encoder, bundle)
        for data, folder in ((alike, tmp_path / "alike"), (tiny_dataset, tmp_path / "plain"))
    )
    assert (alike.identical[plain.query] == plain.passage).sum() > 5, "the control: they are found without the rule"
    assert not (alike.identical[run.query] == run.passage).any()
    counts = np.bincount(run.query)
    np.testing.assert_array_equal(counts, np.bincount(plain.query), "the depth is kept")
    for query in np.unique(run.query):
        before, now = plain.of(np.array([query])).passage.tolist(), run.of(np.array([query])).passage.tolist()
        if alike.identical[query] < 0:
            assert now == before
        elif ranked not in (ranked_by_sum, ranked_by_labels):
            kept = [passage for passage in before if passage != alike.identical[query]]
            assert now[: len(kept)] == kept


def test_the_graph_has_no_edge_to_the_query_itself(tmp_path: Path, alike: Dataset, encoder: Path) -> None:
    artifacts = {"dataset": alike.path, "dual_encoder": encoder, "cross_encoder": encoder}
    chosen = BuildGraph(neighbors=8, retrieved=20, edge_features="none", edges="retrieved", precision="fp32")
    build_graph(chosen, **artifacts, graph=tmp_path / "graph", passage_vectors=tmp_path / "vectors")
    graph = Graph.read(tmp_path / "graph")
    same = alike.identical[graph.queries][:, None]
    assert (graph.edges >= 0).all() and not (graph.edges == same).any() and not (graph.retrieved == same).any()


def test_files_of_others_and_pools_lose_the_query_itself(tmp_path: Path, alike: Dataset) -> None:
    ids, names = alike.queries.column("query_id").to_pylist(), alike.passages.ids().to_pylist()
    lines = [f"{ids[q]} Q0 {names[p]} 1 {-p} t" for q in (81, 82, 90) for p in (alike.identical[q], 3, 4) if p >= 0]
    (tmp_path / "other.run").write_text("\n".join(lines))
    with drafting(tmp_path / "lexical", "run") as draft:
        Run.from_hits(np.arange(100), np.full((100, 1), 99), np.ones((100, 1))).write(draft, "BM25")
    index = write_bm25(alike.path, tmp_path / "index")
    first_stage(
        FirstStage(source=str(tmp_path / "other.run")), dataset=alike.path, bm25_run=tmp_path / "lexical",
        bm25_index=index, run=tmp_path / "run",
    )  # fmt: skip
    run = Run.read(tmp_path / "run").of(alike.query_rows("test"))
    assert run.passage.tolist() == [3, 4] * 3 and run.rank.tolist() == [1, 2] * 3


def test_the_query_itself_is_no_negative(alike: Dataset) -> None:
    known, query = KnownPositives.of(alike, "train"), 1
    assert known.contains(np.arange(100), alike.identical)[alike.identical >= 0].all()
    labels = alike.split_qrels("train")
    passages = np.unique([alike.identical[query], *labels.passage[np.isin(labels.query, [1, 2])]])
    positive = np.searchsorted(passages, labels.passage[labels.query == query])
    excluded = known.excluded(np.array([query]), passages, positive)
    assert excluded.tolist() == [[0], [int(np.searchsorted(passages, alike.identical[query]))]]


def test_the_pool_of_dev_passages_leaves_it_out(alike: Dataset, tiny_dataset: Dataset) -> None:
    """Each query's own passage is nearest to it, the relevant one second."""
    labels = alike.split_qrels("dev")
    for data, expected in ((alike, 1.0), (tiny_dataset, 0.5)):
        pool = DevPool(data, TrainDualEncoder(dev_queries=20, dev_pool=100))
        vectors = np.zeros((len(pool), 100), np.float32)
        for row, query in enumerate(pool.queries):
            vectors[row, labels.passage[labels.query == query]] = 1
            vectors[row, (labels.passage[labels.query == query] + 1) % 100] = 2 if alike.identical[query] >= 0 else 0
        figures = pool.measure(vectors, np.eye(100, dtype=np.float32)[pool.passages])
        few = (alike.identical[pool.queries] < 0).mean()
        assert figures["dev_pool/RR_at_10"] == pytest.approx(few + (1 - few) * expected)
