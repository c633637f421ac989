"""An update equals a run from nothing, and does a part of its work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_graph import GRAPH, ROUNDED, encode, write_models

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, Encoding, Graph, drafting, read_manifest
from gnn_encoder.artifacts.digests import find
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.inference.encoding import fast_bf16
from gnn_encoder.models.gnn import GnnEncoder
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import ChooseBundle
from gnn_encoder.settings.reranking import BundleReranker
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.bundle_reranker import bundle_reranker
from gnn_encoder.steps.choose_bundle import choose_bundle


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"), tiny_backbone)


def changed(dataset: Dataset, path: Path) -> Path:
    """The tiny dataset on another day: 3 passages gone, 2 changed, 2 new, 1 query new, rows in another order."""
    table = dataset.passages.take(np.arange(len(dataset.passages)))
    rows = list(zip(table.ids, table.titles, table.texts, strict=True))[3:][::-1]
    rows[0], rows[1] = (*rows[0][:2], "an early letter of winter"), (*rows[1][:2], "a market about copper")
    rows += [("new1", "", "what is the hidden violin about"), ("new2", "", "the broken stone in the garden")]
    queries = dataset.queries.slice(0, 60).select(["query_id", "text"]).to_pydict()
    ids, texts = ["q-new", *queries["query_id"]], ["is the warm cloud narrow", *queries["text"]]
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(*(list(column) for column in zip(*rows, strict=True)))
        writer.queries(ids, texts, ["train"] * len(ids), [[] for _ in ids])
        writer.qrels(["q-new"], ["new1"], [1], [0], [len(rows) - 2])
        writer.close()
    return path


@pytest.fixture(scope="module")
def yesterday(tiny_dataset: Dataset, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode(tiny_dataset.path, models, tmp_path_factory.mktemp("yesterday"))


@pytest.fixture(scope="module")
def today(tiny_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(tiny_dataset, tmp_path_factory.mktemp("today") / "dataset")


def work(folder: Path) -> tuple[int, int, int]:
    """The passages that were encoded for the graph and for the bundle, and those that were propagated."""
    history = read_history(folder / "bundle")
    encoded = (history[step].metrics["encoded"] for step in ("build_graph", "encode_nodes"))
    return *encoded, history["encode_corpus"].metrics["propagated"]


@pytest.mark.parametrize(
    ("precision", "stored"), [("fp32", "fp16"), ("fp32", "fp32"), *([("bf16", "fp16")] if fast_bf16() else [])]
)
def test_equal_to_a_run_from_nothing(
    precision: str, stored: str, tiny_dataset: Dataset, today: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    both = {"precision": precision, "vector_type": stored}
    yesterday = encode(tiny_dataset.path, models, tmp_path / "yesterday", **both)
    full = encode(today, models, tmp_path / "full", **both)
    update = encode(today, models, tmp_path / "update", yesterday, **both)
    for name in (
        "encoding/passages",
        "encoding/queries",
        "passage_vectors/vectors",
        "passage_vectors/queries",
        "passage_vectors/evaluated",
    ):
        assert np.array_equal(*(np.load(folder / f"{name}.npy") for folder in (full, update))), name
    expected, updated = Graph.read(full / "graph"), Graph.read(update / "graph")
    for name in ("edges", "labelled", "indptr", "reverse"):
        assert np.array_equal(getattr(expected, name), getattr(updated, name)), name
    assert expected.retrieved is not None and updated.retrieved is not None
    known = updated.retrieved >= 0  # a list that lost a passage ends earlier
    assert np.array_equal(expected.retrieved[known], updated.retrieved[known]) and 0.9 < known.mean() < 1
    assert np.array_equal(updated.features, expected.features)
    vectors = Bundle.read(full / "bundle").vectors
    step = ROUNDED if stored == "fp16" else 0
    np.testing.assert_allclose(Bundle.read(update / "bundle").vectors, vectors, rtol=step, atol=1e-5)

    assert work(full) == (99, 99, 99)
    *encoded, propagated = work(update)
    assert encoded == [4, 4] and read_manifest(update / "graph").metrics["queries_encoded"] == 1
    assert 4 < propagated < 60
    # What only gained or lost a neighbour: not propagating it again would have been wrong.
    old, new = (Encoding.read(folder / "encoding").contents.digests["passages"] for folder in (yesterday, full))
    kept = np.flatnonzero((before := find(old, new)) >= 0)
    stale = Bundle.read(yesterday / "bundle").vectors[before[kept]]
    drifted = ~np.isclose(stale, vectors[kept], rtol=step, atol=1e-5).all(axis=1)
    assert np.abs(stale - vectors[kept]).max() > 1e-3 and 0 < drifted.sum() <= propagated - 4


@pytest.mark.parametrize("known", [None, {}, {"passages": "of others"}, {"structure": "of others"}])
def test_nothing_changed(
    known: dict[str, str] | None, yesterday: Path, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    """`known`: how the corpus differs whose context the re-ranker has; None: it has no context."""
    with drafting(tmp_path / "scorer", "model") as draft:
        (draft / "scorer.json").write_text("{}")
        if known is not None:
            (draft / "context").mkdir()
            (draft / "context" / "corpus.json").write_text(json.dumps(tiny_dataset.corpus_digests | known))
    before = Path(shutil.copytree(yesterday, tmp_path / "before"))
    folders = {"first_stage": yesterday / "bundle", "reranker": tmp_path / "scorer", "bundle": before / "bundle"}
    bundle_reranker(BundleReranker(), **folders)
    update = encode(tiny_dataset.path, models, tmp_path, before)
    assert np.array_equal(Bundle.read(update / "bundle").vectors, Bundle.read(yesterday / "bundle").vectors)
    assert work(update) == (0, 0, 0)
    chosen = tmp_path / "chosen"
    settings = ChooseBundle(previous=str(before))
    choose_bundle(settings, dataset=tiny_dataset.path, bundles=[update / "bundle"], chosen_bundle=chosen)
    assert (chosen / "reranker" / "scorer.json").is_file() == (not known)
    headline = read_history(chosen)["choose_bundle"].metrics["headline"]
    assert ("run gnn-encoder rerank" in headline) == bool(known)


def test_edges_and_features_that_the_earlier_graph_had_not(
    yesterday: Path, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    inputs = {"dataset": tiny_dataset.path, **{name: models[name] for name in ("dual_encoder", "cross_encoder")}}
    for name, chosen in (
        ("none", {"edges": "none", "edge_features": "none"}),
        ("now", {"previous": tmp_path / "none"}),
    ):
        settings = BuildGraph.model_validate({**GRAPH, "precision": "fp32", **{k: str(v) for k, v in chosen.items()}})
        out = {"graph": tmp_path / name / "graph", "passage_vectors": tmp_path / name / "passage_vectors"}
        build_graph(settings, **inputs, **out)
    updated, expected = Graph.read(tmp_path / "now" / "graph"), Graph.read(yesterday / "graph")
    assert np.array_equal(updated.edges, expected.edges) and np.array_equal(updated.features, expected.features)
    assert read_manifest(tmp_path / "now" / "graph").metrics["encoded"] == 0


@pytest.mark.slow
def test_vectors_of_another_type_carry_nothing_over(
    yesterday: Path, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    wide = encode(tiny_dataset.path, models, tmp_path / "wide", yesterday, vector_type="fp32")
    assert work(wide) == (100, 100, 100)
    names = ("passage_vectors/vectors", "encoding/passages", "bundle/vectors")
    for folder, dtype in ((yesterday, np.float16), (wide, np.float32)):
        assert {np.load(folder / f"{name}.npy").dtype for name in names} == {np.dtype(dtype)}
    rounded, exact = (np.load(folder / "bundle" / "vectors.npy") for folder in (yesterday, wide))
    np.testing.assert_allclose(rounded, exact, rtol=ROUNDED, atol=1e-3)
    update = encode(tiny_dataset.path, models, tmp_path / "update", wide, vector_type="fp32")
    assert work(update) == (0, 0, 0)


def test_other_models_carry_nothing_over(
    yesterday: Path, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    joint = GnnEncoder.load(models["gnn_encoder"])
    with torch.no_grad():
        joint.gnn.gate.bias.add_(1.0)
    with drafting(tmp_path / "other", "model") as draft:
        joint.save(draft.path)
    update = encode(tiny_dataset.path, {**models, "gnn_encoder": tmp_path / "other"}, tmp_path / "update", yesterday)
    assert work(update) == (0, 100, 100)
