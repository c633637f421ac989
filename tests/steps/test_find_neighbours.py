"""Tasks that share the work of `build_graph`: together the bits of one task's graph, features and vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from identical_ids import with_identical_ids
from trained_root import write_beir

from gnn_encoder.artifacts import Contents, Dataset, Graph, drafting, read_manifest, read_vectors
from gnn_encoder.artifacts.arrays import NEIGHBOURS, QUERIES, WINDOW_PASSAGES, read_rows
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.shared import Merge
from gnn_encoder.steps import find_neighbours as module
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.find_neighbours import find_neighbours
from gnn_encoder.steps.ingest import ingest
from gnn_encoder.steps.merge import merge

SHARDS, BLOCK, DRAWN = 3, 16, 25
SHAPE = {"neighbors": 3, "retrieved": 7, "edges": "retrieved+labelled", "tokens_per_batch": 128}
CASES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32", "vector_type": "fp32"},
    "ten vectors": {"precision": "fp32", "edge_features": "none"},
    "bf16, windows": {"precision": "bf16", "long_passages": "windows", "window_overlap": 1},
    "a draw of queries": {"precision": "fp32", "edge_features": "none"},
    "more tasks than blocks": {"precision": "fp32", "edge_features": "none", "long_passages": "windows"},
}


@pytest.fixture(scope="module")
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data in which queries have the ids of passages, and a draw of the plain data; a dual encoder, and one that reads
    so few tokens that there are ten vectors."""
    folder = tmp_path_factory.mktemp("neighbours")
    with_identical_ids(tiny_dataset, folder / "dataset")
    drawn = Ingest(dataset=str(write_beir(tiny_dataset, folder / "beir")), max_trained_queries=DRAWN)
    ingest(drawn, dataset=folder / "drawn")
    generator = torch.Generator().manual_seed(0)
    for name, length in (("dual_encoder", 5), ("short", 4)):
        encoders = DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="no", query_length=16, passage_length=length,
            share_encoders=False,
        )  # fmt: skip
        with torch.no_grad():  # larger weights than a fresh BERT's, so that queries have different neighbours
            for weight in (p for p in encoders.parameters() if p.dim() > 1):
                weight.normal_(std=0.3, generator=generator)
        with drafting(folder / name, "model") as draft:
            encoders.save(draft.path)
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(tiny_backbone), 40), draft.path)
    return {name: folder / name for name in ("dataset", "drawn", "dual_encoder", "short", "cross_encoder")}


def build(settings: BuildGraph, out: Path, data: Path, inputs: dict[str, Path], **neighbours: Path) -> Path:
    models = {name: inputs[name] for name in ("dual_encoder", "cross_encoder")}
    written = {"graph": out / "graph", "passage_vectors": out / "vectors"}
    build_graph(settings, dataset=data, **models, **neighbours, **written)
    return out


def in_tasks(settings: BuildGraph, out: Path, data: Path, inputs: dict[str, Path]) -> list[Path]:
    """The outputs of all tasks, which are merged in the folder `merged`."""
    parts = [out / f"{shard} of {settings.shards}" for shard in range(settings.shards)]
    for shard, part in enumerate(parts):
        task = settings.find_neighbours.model_copy(update={"shard": shard})
        find_neighbours(task, dataset=data, dual_encoder=inputs["dual_encoder"], neighbours=part)
    merge(Merge(), parts=parts[::-1], dataset=data, merged=out / "merged")
    return parts


@pytest.mark.parametrize("case", CASES)
def test_tasks_make_the_graph_and_the_vectors_of_one_task(
    case: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case != "more tasks than blocks":
        monkeypatch.setattr(module, "CHUNK", BLOCK)
        monkeypatch.setitem(exact.search.__kwdefaults__, "chunk", BLOCK)
    inputs = inputs | ({"dual_encoder": inputs["short"]} if case == "ten vectors" else {})
    settings = BuildGraph.model_validate({**SHAPE, **CASES[case], "shards": SHARDS})
    data = Dataset(inputs["drawn" if case == "a draw of queries" else "dataset"])
    parts = in_tasks(settings, tmp_path, data.path, inputs)
    one = build(settings.model_copy(update={"shards": 1}), tmp_path / "one", data.path, inputs)
    several = build(
        settings.model_copy(update={"shards": 1}),
        tmp_path / "several",
        data.path,
        inputs,
        neighbours=tmp_path / "merged",
    )
    for name in ("graph", "vectors"):
        whole, joined = (read_manifest(folder / name) for folder in (one, several))
        assert whole.files == joined.files and whole.rows == joined.rows, "also the features, digests and windows"
    sizes = [len(read_vectors(part)) for part in parts]
    assert sizes == ([0, 0, 100] if case == "more tasks than blocks" else [32, 32, 36])
    assert read_manifest(several / "graph").metrics["encoded"] == 100
    assert list(read_history(several / "graph"))[-3:] == ["find_neighbours", "merge", "build_graph"]

    # The graph against all products in float64, and of equal vectors the first passages.
    graph, vectors = Graph.read(several / "graph"), read_vectors(several / "vectors")
    trained = np.flatnonzero(np.isin(graph.queries, data.trained))
    queries = read_rows(several / "vectors", QUERIES).astype(np.float64)[trained]
    scores, same = queries @ np.asarray(vectors, np.float64).T, data.identical[data.trained]
    scores[np.flatnonzero(same >= 0), same[same >= 0]] = -np.inf
    expected = np.argsort(-scores.round(5), axis=1, kind="stable")[:, :7]
    assert graph.retrieved is not None and len(trained) == (DRAWN if case == "a draw of queries" else 60)
    np.testing.assert_array_equal(graph.retrieved[trained], expected)
    assert (np.delete(graph.retrieved, trained, axis=0) == -1).all()
    assert len(np.unique(vectors, axis=0)) == (10 if case == "ten vectors" else 100)

    # Control: no part alone has all hits, and the last windows are of the last passages.
    if case != "more tasks than blocks":
        alone = [read_rows(part, NEIGHBOURS) for part in parts]
        assert all((hits != expected).any() for hits in alone)
        assert case == "ten vectors" or set((expected // 32).ravel()) >= {0, 1, 2}, "all parts have hits"
        with pytest.raises(UserError, match="not the vectors of all passages"):
            build(settings, tmp_path / "lost", data.path, inputs, neighbours=parts[0])
    if settings.in_windows:
        assert read_rows(several / "vectors", WINDOW_PASSAGES)[-1] == 99
        assert len(Contents.read(several / "vectors").digests["windows"]) > 200


def test_parts_of_another_encoder_are_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    settings = BuildGraph.model_validate({**SHAPE, "shards": 1})
    task = settings.find_neighbours
    find_neighbours(task, dataset=inputs["dataset"], dual_encoder=inputs["short"], neighbours=tmp_path / "other")
    with pytest.raises(UserError, match="not the vectors of all passages"):
        build(settings, tmp_path, inputs["dataset"], inputs, neighbours=tmp_path / "other")
