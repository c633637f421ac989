"""The forecast of a run's disk space. A finished run is compared with its forecast in test_pipeline.py."""

from pathlib import Path

import pytest

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.planning.data_size import DataSize
from gnn_encoder.planning.disk import ARTIFACT, Space, needed, run_space, weights_of, width_of
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings, preset_names


def forecast(size: DataSize, *overrides: str) -> dict[str, int]:
    return {space.title: space.kept for space in run_space(load_settings("msmarco", overrides), size)}


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_has_a_forecast(preset: str) -> None:
    spaces = run_space(load_settings(preset), DataSize.assumed(10_000, 1000))
    assert all(space.kept > 0 and space.meanwhile >= 0 for space in spaces)
    assert needed(spaces) >= sum(space.kept for space in spaces)


def test_arrays_are_counted_exactly() -> None:
    m, n = 2_000_000, 100_000
    size = DataSize.assumed(m, n)
    train = size.queries["train"]
    with_features, without = (
        forecast(size, f"build_graph.edge_features={kind}", "build_graph.self_loop_features=learned")["build_graph"]
        for kind in ("cross_encoder", "none")
    )
    assert with_features - without == train * 25 * 768 * 2
    names = ("encode_nodes", "encode_corpus", "bundle_dual_encoder: Dual encoder", "encode_with_labels: Query sum")
    more, now = forecast(DataSize.assumed(2 * m, n)), forecast(size)
    for name, copies in zip(names, (1, 1, 0, 1), strict=True):  # the dual encoder's bundle shares M_de's vectors
        others = (more[name] - now[name]) / m - copies * 768 * 2
        assert 0 <= others < 100, f"{name}: digests, and no other array"
    wide = forecast(size, "build_graph.vector_type=fp32")
    for name, copies in zip(("build_graph", *names[:3]), (1, 1, 1, 0), strict=True):
        assert wide[name] - now[name] == copies * m * 768 * 2
    labelled = min(m, size.labels)
    assert wide[names[3]] - now[names[3]] == (m + labelled) * 768 * 2, "all vectors, and those without labels"
    hnsw = forecast(size, "encode_corpus.index=hnsw", "encode_corpus.hnsw_links=32")
    for name in names[1:3]:
        assert hnsw[name] - now[name] == m * (2 * 768 + 2 * 4 * 32)


def test_queries_that_will_be_written_are_counted(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.md").write_text(f"# Page {number}\n\nThe otter sleeps below stone {number}.")
    ask = [f"ingest.dataset={tmp_path}", "ingest.format=documents"]
    with pytest.raises(UserError, match="has passages but no queries"):
        DataSize.read(load_settings("msmarco", ask))
    settings = load_settings("msmarco", [*ask, "write_queries.generator=titles"])
    size = DataSize.read(settings)
    assert size.passages == 40 and size.queries == {"train": 42, "dev": 6, "test": 12} and size.labels == 42
    assert size.query_text > 0 and needed(run_space(settings, size)) > 0


def test_windows_are_counted() -> None:
    m = 1_000_000
    size = DataSize.assumed(m, 10_000)
    changes = ("build_graph.long_passages=windows", "build_graph.window_overlap=28")
    cut, windows = forecast(size), forecast(size, *changes)
    length = load_settings("msmarco").train_dual_encoder.passage_length
    vector, several = 768 * 2, size.tokens.mean() / (length - 28)  # windows after the first one, at most
    assert several > 0.5
    for title, more in (("build_graph", 1 + several), ("bundle_dual_encoder: DPR", several), ("encode_nodes", 0)):
        assert windows[title] - cut[title] == pytest.approx(more * m * vector, rel=0.05), title
    assert windows["encode_with_labels: Query sum"] > cut["encode_with_labels: Query sum"] + several * m * vector - 1000


def test_tasks_that_share_a_step_take_its_space_together() -> None:
    size = DataSize.assumed(1000, 100)
    scoring = ("evaluate.rerank_depth=10", "score_candidates.shards=4", "generate_queries.shards=4")
    one = forecast(size, "evaluate.rerank_depth=10")
    several = forecast(size, *scoring, "encode_corpus.shards=4", "evaluate.rerank_shards=4")
    assert several["evaluate"] == one["evaluate"], "re-ranked by several tasks, it is one system"
    assert several["merge: rerank"] == one["rerank"] > several["rerank: 1 of 4"] > ARTIFACT
    for step in ("score_candidates", "generate_queries", "encode_nodes"):
        parts = [several[f"{step}: {number} of 4"] - ARTIFACT for number in (1, 2, 3, 4)]
        assert sum(parts) == pytest.approx(one[step] - ARTIFACT, abs=4) and one[step] > ARTIFACT
        assert several[f"merge: {step}"] == ARTIFACT and f"merge: {step}" not in one
    several = forecast(size, "dense_retrieve.shards=4", "bm25_retrieve.shards=4")
    for title in ("dense_retrieve: 1 of 4", "dense_retrieve: 4 of 4", "merge: dense_retrieve"):
        assert several[title] == one["dense_retrieve"], "each part has hits of every query"
    parts = forecast(size, "build_graph.shards=4")
    assert parts["build_graph"] == one["build_graph"], "it joins the vectors in one file"
    vectors, hits = 1000 * 768 * 2, size.queries["train"] * 50 * 8
    assert parts["find_neighbours: 1 of 4"] == ARTIFACT + vectors // 4 + hits and "find_neighbours: 1 of 4" not in one
    assert several["merge: bm25_retrieve"] == one["bm25_retrieve"] > several["bm25_retrieve: 1 of 4"]


def test_what_a_step_takes_while_it_runs_counts_once() -> None:
    assert needed([Space("a", 10, 100), Space("b", 20, 5)]) == 110
    assert needed([Space("a", 10, 5), Space("b", 20, 5)]) == 35


def test_models_that_are_here_are_measured_and_others_are_berts(tiny_backbone: Path) -> None:
    weights = (tiny_backbone / "model.safetensors").stat().st_size
    assert weights <= weights_of(str(tiny_backbone)) < weights + 20_000 and width_of(str(tiny_backbone)) == 32
    assert width_of("nobody/has-this") == 768 and 435e6 < weights_of("nobody/has-this") < 440e6


def test_a_data_set_is_measured(tiny_dataset: Dataset) -> None:
    size = DataSize.of(tiny_dataset)
    assert (size.passages, size.queries, size.labels) == (100, {"train": 60, "dev": 20, "test": 20}, 60)
    assert size.dataset == sum(file.stat().st_size for file in tiny_dataset.path.rglob("*.*"))
    spaces = {space.title: space.kept for space in run_space(Settings(), size)}
    assert spaces["ingest"] == size.dataset + ARTIFACT
