"""Long passages in windows: a trained dual encoder, uses of labels, and fusions score a passage by its best window."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import write_bm25
from labelled_bundles import bundle_of, with_labels
from published_folders import write_transformer

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, Run, drafting, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, read_rows, read_scored
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.embedding import figures_by_dimension
from gnn_encoder.evaluation.label_tuning import Trial
from gnn_encoder.explanation.labels import explain_by_labels
from gnn_encoder.labels.adding import add_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.learned_search import LearnedSearch
from gnn_encoder.retrieval.parts import FEATURES
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.foundation import DenseRetrieve
from gnn_encoder.settings.fusion import FuseParts, MakeParts
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import BundleDualEncoder, Rank
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.dense_retrieve import dense_retrieve
from gnn_encoder.steps.fuse_parts import fuse_parts
from gnn_encoder.steps.make_parts import make_parts
from gnn_encoder.steps.rank import rank

WORDS = ["old", "river", "violin", "copper", "heavy", "garden", "winter", "letter", "stone", "market"]
WINDOWS: dict[str, Any] = {"long_passages": "windows", "window_overlap": 2}
EXACT: dict[str, Any] = {"precision": "fp32", "vector_type": "fp32", **WINDOWS}
PASSAGES, TRAIN, LABELLED = 30, 24, 12
ONE = {  # one use of each method, so that nothing is chosen
    "sum": {"kind": "sum", "sum_weights": (0.5,)},
    "max": {"kind": "memory", "memory_forms": ("max",), "memory_weights": (0.5,)},
    "clusters": {"kind": "clusters", "cluster_weights": (0.5,), "clusters": (TRAIN,)},
    "softmax": {
        "kind": "memory", "memory_forms": ("softmax",), "memory_weights": (0.5,), "memory_neighbours": (5,),
        "memory_temperatures": (0.2,), "memory_thresholds": (0.0,),
    },
}  # fmt: skip


def embedded(dataset: Path, models: Path, folder: Path, **settings: Any) -> dict[str, Path]:
    """The outputs of `build_graph`, as inputs of the steps after it."""
    built = {"graph": folder / "graph", "passage_vectors": folder / "passage_vectors"}
    inputs = {"dataset": dataset, "dual_encoder": models / "dual_encoder"}
    build = BuildGraph(neighbors=3, retrieved=5, edge_features="none", **{**EXACT, **settings})
    build_graph(build, **inputs, cross_encoder=models / "cross_encoder", **built)
    return {**inputs, "passage_vectors": built["passage_vectors"]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Passages of 1 to 40 words; each of the first twelve has two training queries."""
    folder, draw = tmp_path_factory.mktemp("long"), np.random.default_rng(3)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 41))) for _ in range(PASSAGES)]
    with drafting(folder / "dataset", "dataset") as draft:
        writer, ids = DatasetWriter(draft), [f"q{row}" for row in range(TRAIN + 12)]
        writer.passages([f"p{row}" for row in range(PASSAGES)], [""] * PASSAGES, texts)
        questions = [f"{' '.join(draw.choice(WORDS, 5))} {row}" for row in range(len(ids))]
        writer.queries(ids, questions, ["train"] * TRAIN + ["dev"] * 6 + ["test"] * 6, [[] for _ in ids])
        of = [row % LABELLED for row in range(len(ids))]
        writer.qrels(ids, [f"p{row}" for row in of], [1] * len(ids), [*range(len(ids))], of)
        writer.close()
    backbone = str(write_transformer(folder / "bert"))
    with drafting(folder / "dual_encoder", "model") as draft:
        reading = {"pooling": "mean", "normalize": "yes", "query_length": 32, "passage_length": 8}
        DualEncoder.from_backbone(backbone, share_encoders=True, **reading).save(draft.path)
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(backbone, 32), draft.path)
    bm25_index = write_bm25(folder / "dataset", folder / "bm25_index")
    return {**embedded(folder / "dataset", folder, folder), "bm25_index": bm25_index}


def windows_of(inputs: dict[str, Path]) -> list[np.ndarray]:
    vectors, of = read_scored(inputs["passage_vectors"])
    return [np.asarray(vectors[of == passage]) for passage in range(PASSAGES)]


def labels_of(inputs: dict[str, Path], passage: int) -> np.ndarray:
    """The vectors of a passage's training queries."""
    return read_rows(inputs["passage_vectors"], QUERIES)[[q for q in range(TRAIN) if q % LABELLED == passage]]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def lifted(name: str, windows: np.ndarray, queries: np.ndarray) -> list[np.ndarray]:
    """All vectors of a passage, by a loop; the passages of these tests have no more queries than clusters."""
    vectors = []
    for number, window in enumerate(windows):
        near = [query for query in queries if int(np.argmax(windows @ query)) == number]
        if name == "sum":
            vectors.append(unit(window + 0.5 * np.sum(near, axis=0)) if near else window)
        elif name == "max":
            vectors += [window + 0.5 * query for query in near] or [window]
        else:
            vectors += [window, *(unit(window + 0.5 * query) for query in near)]
    return vectors


def every_score(index: PassageIndex, queries: np.ndarray) -> np.ndarray:
    scores, rows = index.search(queries, PASSAGES)
    by_passage = np.full(scores.shape, np.nan, np.float32)
    np.put_along_axis(by_passage, rows, scores, axis=1)
    return by_passage


def best_windows(inputs: dict[str, Path], queries: np.ndarray) -> np.ndarray:
    return np.stack([(queries @ windows.T).max(axis=1) for windows in windows_of(inputs)], axis=1)


def test_a_trained_encoder_scores_by_the_best_window(inputs: dict[str, Path], tmp_path: Path) -> None:
    queries = read_rows(inputs["passage_vectors"], EVALUATED)
    expected = best_windows(inputs, queries)
    first = queries @ np.asarray(read_vectors(inputs["passage_vectors"])).T
    assert (expected >= first - 1e-5).all() and (expected > first + 1e-2).any()  # control: later windows are better
    inputs_of = {"dataset": inputs["dataset"], "dual_encoder": inputs["dual_encoder"]}
    bundling = BundleDualEncoder(bm25=False, **EXACT)
    bundle_dual_encoder(bundling, **inputs_of, passage_vectors=inputs["passage_vectors"], bundle=tmp_path / "shared")
    bundle_dual_encoder(bundling, **inputs_of, bundle=tmp_path / "encoded")
    for name in ("shared", "encoded"):
        index_scores = every_score(PassageIndex.read(Bundle.read(tmp_path / name)), queries)
        np.testing.assert_allclose(index_scores, expected, atol=1e-5)

    data = Dataset(inputs["dataset"])
    for shards in (1, 2):
        retrieving = DenseRetrieve(precision="fp32", train_depth=1, eval_depth=PASSAGES, shards=shards, **WINDOWS)
        dense_retrieve(retrieving, dataset=data.path, dpr=inputs["dual_encoder"], dpr_run=tmp_path / f"run{shards}")
        run = Run.read(tmp_path / f"run{shards}").of(evaluated_queries(data))
        query_row = np.searchsorted(evaluated_queries(data), run.query)
        np.testing.assert_allclose(run.score, expected[query_row, run.passage], atol=1e-5)

    lengths = {"query_length": 32, "passage_length": 8, "pooling": "mean", "normalize": "yes"}
    untrained = Rank(system="Untrained", backbone=str(inputs["dual_encoder"].parent / "bert"), **lengths, **WINDOWS)
    rank(untrained.model_copy(update={"precision": "fp32"}), dataset=data.path, run=tmp_path / "untrained")
    run = Run.read(tmp_path / "untrained")
    query_row = np.searchsorted(evaluated_queries(data), run.query)
    np.testing.assert_allclose(run.score, expected[query_row, run.passage], atol=1e-5)

    ranks = 1 + (expected > expected[np.arange(12), np.arange(12)][:, None]).sum(axis=1)
    reciprocal = np.where(ranks <= 10, 1 / ranks, 0)
    ((row),) = figures_by_dimension(inputs["passage_vectors"], data, (32,), "RR@10")
    assert row["means"] == pytest.approx({"dev": reciprocal[:6].mean(), "test": reciprocal[6:].mean()})


def test_an_update_encodes_no_window_again(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnn_encoder.update.windows.encode_texts", None)
    before = inputs["passage_vectors"].parent
    again = embedded(inputs["dataset"], before, tmp_path, previous=str(before))
    for one, other in zip(read_scored(again["passage_vectors"]), read_scored(inputs["passage_vectors"]), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("name", ONE)
def test_labels_lift_the_window_that_they_are_nearest_to(inputs: dict[str, Path], tmp_path: Path, name: str) -> None:
    queries = read_rows(inputs["passage_vectors"], EVALUATED)
    bundle = Bundle.read(bundle_of(inputs, tmp_path, name, **ONE[name]))
    plain, windows = best_windows(inputs, queries), windows_of(inputs)
    if name == "softmax":
        train, expected = read_rows(inputs["passage_vectors"], QUERIES), plain.copy()
        for row, query in enumerate(queries):
            near = np.argsort(-(train @ query))[:5]
            weights = np.exp(train[near] @ query / 0.2)
            for neighbour, weight in zip(near, 0.5 * weights / weights.sum(), strict=True):
                expected[row, neighbour % LABELLED] += weight
    else:
        every = [lifted(name, windows[p], labels_of(inputs, p)) for p in range(PASSAGES)]
        expected = np.stack([(queries @ np.stack(vectors).T).max(axis=1) for vectors in every], axis=1)
        first = [[*lifted(name, w[:1], labels_of(inputs, p)), *w[1:]] for p, w in enumerate(windows)]
        others = np.stack([(queries @ np.stack(vectors).T).max(axis=1) for vectors in first], axis=1)
        assert np.abs(expected - others).max() > 1e-2  # control: the first window instead
    assert np.abs(expected - plain).max() > 1e-2
    np.testing.assert_allclose(every_score(PassageIndex.read(bundle), queries), expected, atol=1e-5)

    # The use is chosen by the same scores.
    vectors, of = read_scored(inputs["passage_vectors"])
    assert bundle.labels and bundle.label_use
    run = Trial(np.arange(12), queries, bundle.labels, vectors, PASSAGES, None, of).ranked(bundle.label_use)
    np.testing.assert_allclose(run.score, expected[run.query, run.passage], atol=1e-5)

    searcher = Searcher(bundle)
    for hit, parts in explain_by_labels(searcher, "old river in winter", PASSAGES):
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-4)


@pytest.mark.parametrize("name", ["sum", "clusters"])
def test_an_added_label_equals_one_in_the_data(inputs: dict[str, Path], tmp_path: Path, name: str) -> None:
    wanted = [Wanted("a letter about the market", "p3"), Wanted("a letter about the market", "p20")]
    dataset = with_labels(Dataset(inputs["dataset"]), tmp_path / "dataset", wanted)
    more = embedded(dataset, inputs["dual_encoder"].parent, tmp_path / "with")
    expected = Bundle.read(bundle_of({**inputs, **more}, tmp_path, name, **ONE[name]))
    latest = tmp_path / "run" / "latest"
    latest.mkdir(parents=True)
    (latest / "dataset").symlink_to(inputs["dataset"])
    (latest / "bundle").symlink_to(bundle_of(inputs, tmp_path / "before", name, **ONE[name]))
    queries = read_rows(inputs["passage_vectors"], EVALUATED)
    before = every_score(PassageIndex.read(Bundle.read(latest / "bundle")), queries)
    add_labels(latest / "bundle", wanted)
    index_scores = every_score(PassageIndex.read(Bundle.read(latest / "bundle")), queries)
    np.testing.assert_allclose(index_scores, every_score(PassageIndex.read(expected), queries), atol=1e-5)
    assert np.abs(index_scores - before).max() > 1e-3


def test_parts_of_a_fusion(inputs: dict[str, Path], tmp_path: Path) -> None:
    read = {name: inputs[name] for name in ("dataset", "passage_vectors", "bm25_index")}
    make_parts(MakeParts(strengths=(0.1,), hub_exponent=0.0, margin=0.0), **read, parts=tmp_path / "parts")
    bundles = {}
    for kind in ("adapter", "linear"):
        bundles[kind] = tmp_path / kind
        fuse_parts(FuseParts(kind=kind), **inputs, parts=tmp_path / "parts", bundle=bundles[kind])
    queries, windows = read_rows(inputs["passage_vectors"], EVALUATED), windows_of(inputs)

    # The adapter's targets are the windows nearest to their queries.
    train = np.asarray(read_rows(inputs["passage_vectors"], QUERIES), np.float64)
    nearest = [windows[q % LABELLED][np.argmax(windows[q % LABELLED] @ train[q])] for q in range(TRAIN)]
    square = train.T @ train
    ridge = 0.1 * np.trace(square) / 32 * np.eye(32)
    adapter = np.eye(32) + np.linalg.solve(square + ridge, train.T @ (np.stack(nearest) - train))
    adapted = best_windows(inputs, queries @ adapter)
    index = PassageIndex.read(Bundle.read(bundles["adapter"]))
    assert isinstance(index.learned, LearnedSearch)
    run = index.learned.run(np.arange(12), ["old river"] * 12, np.asarray(queries), PASSAGES)
    np.testing.assert_allclose(run.score, adapted[run.query, run.passage], atol=1e-3)

    learned = PassageIndex.read(Bundle.read(bundles["linear"])).learned
    assert learned
    candidates = learned.parts.candidates(["old river"] * 12, np.asarray(queries))
    summed = []
    for passage in range(PASSAGES):
        near = labels_of(inputs, passage)
        of = [[q for q in near if np.argmax(windows[passage] @ q) == number] for number in range(len(windows[passage]))]
        pairs = zip(windows[passage], of, strict=True)
        vectors = [unit(window + 0.3 * np.sum(some, axis=0)) if some else window for window, some in pairs]
        summed.append((queries @ np.stack(vectors).T).max(axis=1))
    expected = {"dense": best_windows(inputs, queries), "adapted": adapted, "summed": np.stack(summed, axis=1)}
    for name, scores in expected.items():
        column = candidates.features[:, FEATURES.index(name)]
        np.testing.assert_allclose(column, scores[candidates.query, candidates.passage], atol=1e-3, err_msg=name)


def test_the_setting_of_the_ladder_is_that_of_its_training() -> None:
    from gnn_encoder.pipelines.ladder import ladder
    from gnn_encoder.pipelines.train import train
    from gnn_encoder.settings.rungs import TRAINING

    def read(graph: Any) -> set[tuple[str, int]]:
        steps = ("encode", "build_graph", "dense_retrieve", "bundle_dual_encoder")
        nodes = [node.settings for node in graph.nodes if node.step in steps]
        assert len(nodes) > 3
        return {(settings.long_passages, settings.window_overlap) for settings in nodes}

    ask = ["encode.long_passages=windows", "encode.window_overlap=7"]
    assert read(ladder(load_settings("quickstart", ask), TRAINING)) == {("windows", 7)}
    assert read(ladder(load_settings("quickstart"), TRAINING)) == {("cut", 32)}
    of_preset = load_settings("quickstart", ["build_graph.long_passages=windows"])
    assert read(train(of_preset)) == {("windows", 32)}
