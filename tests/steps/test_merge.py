"""Tasks that share the work of scoring and generating: together the bits of one task, and only the complete set."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import write_bm25
from conftest import write_first_run, write_generator

from gnn_encoder.artifacts import Dataset, GeneratedQueries, PairScores, Run, drafting, read_manifest
from gnn_encoder.artifacts.arrays import JoinedRows
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines.local import calls_of
from gnn_encoder.engines.local_run import run_calls
from gnn_encoder.engines.processes import FORK_AFTER
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.foundation import (
    Bm25Retrieve,
    DenseRetrieve,
    GenerateQueries,
    ScoreCandidates,
    SelectTrainingSet,
)
from gnn_encoder.settings.shared import Merge
from gnn_encoder.steps import dense_retrieve as dense
from gnn_encoder.steps.bm25_retrieve import bm25_retrieve
from gnn_encoder.steps.generate_queries import generate_queries
from gnn_encoder.steps.merge import merge
from gnn_encoder.steps.score_candidates import score_candidates
from gnn_encoder.steps.select_training_set import select_training_set

SHARDS = 3


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path
) -> Path:
    """A run, a cross-encoder and a query generator."""
    folder = tmp_path_factory.mktemp("merge")
    write_first_run(tiny_dataset, folder / "run")
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(tiny_backbone), 40), draft.path)
    write_generator(tiny_seq2seq, folder / "generator", 12)
    return folder


def in_parts(target: Path, dataset: Dataset, settings: Any, make: Callable[[Any, Path], None]) -> tuple[Path, Path]:
    """What one task makes, and what several make, merged."""
    make(settings, target / "0 of 1")
    parts = [target / f"{shard} of {SHARDS}" for shard in range(SHARDS)]
    for shard, part in enumerate(parts):
        make(settings.model_copy(update={"shards": SHARDS, "shard": shard}), part)
    merge(Merge(), parts=parts[::-1], dataset=dataset.path, merged=target / "merged")
    return target / "0 of 1", target / "merged"


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def scored(request: pytest.FixtureRequest, folder: Path, tiny_dataset: Dataset) -> tuple[Path, Path]:
    settings = ScoreCandidates(candidates=5, precision=request.param, tokens_per_batch=128)
    inputs = {"dataset": tiny_dataset.path, "bm25_run": folder / "run", "cross_encoder": folder / "cross_encoder"}

    def make(settings: ScoreCandidates, target: Path) -> None:
        score_candidates(settings, **inputs, pair_scores=target)

    return in_parts(folder / f"scored {request.param}", tiny_dataset, settings, make)


@pytest.fixture(scope="module", params=[{"beams": 2}, {"top_k": 5, "temperature": 2.0}], ids=str)
def written(
    request: pytest.FixtureRequest, folder: Path, tiny_dataset: Dataset, tiny_backbone: Path
) -> tuple[Path, Path]:
    settings = GenerateQueries(
        sentence_encoder=str(tiny_backbone), precision="bf16", negative_depth=8, negatives_per_query=3, max_passages=40,
        tokens_per_batch=100, **request.param,
    )  # fmt: skip
    inputs = {"dataset": tiny_dataset.path, "candidates": folder / "run", "query_generator": folder / "generator"}

    def make(settings: GenerateQueries, target: Path) -> None:
        generate_queries(settings, **inputs, generated_queries=target)

    return in_parts(folder / f"written {request.param}", tiny_dataset, settings, make)


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def retrieved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path
) -> tuple[Path, Path]:
    """Hits in passages of which many have equal vectors; the search reads 16 passages at a time."""
    folder = tmp_path_factory.mktemp(f"retrieved {request.param}")
    lengths = {"query_length": 16, "passage_length": 4}
    with drafting(folder / "dpr", "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="no", share_encoders=False, **lengths
        ).save(draft.path)
    settings = DenseRetrieve(train_depth=6, eval_depth=70, precision=request.param, tokens_per_batch=128)
    inputs = {"dataset": tiny_dataset.path, "dpr": folder / "dpr"}

    def make(settings: DenseRetrieve, target: Path) -> None:
        dense.dense_retrieve(settings, **inputs, dpr_run=target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "CHUNK", 16)
        return in_parts(folder, tiny_dataset, settings, make)


def differing(one: Any, other: Any) -> set[str]:
    """The fields of two tables that differ in a bit."""
    return {
        field.name
        for field in fields(one)
        if not np.array_equal(*(np.array(getattr(folder, field.name)[:]) for folder in (one, other)))
    }


def figures(path: Path, step: str) -> dict[str, Any]:
    """The step's figures but time and memory."""
    metrics = read_history(path)[step].metrics
    return {name: value for name, value in metrics.items() if "second" not in name and name != "peak_memory_gib"}


@pytest.mark.slow
def test_tasks_score_the_bits_of_one_task(scored: tuple[Path, Path]) -> None:
    whole, parts = map(PairScores.read, scored)
    assert not differing(whole, parts) and len(whole.query) > 300
    assert differing(whole, PairScores.read(scored[0].parent / f"0 of {SHARDS}"))
    assert isinstance(whole.cls, np.memmap) and isinstance(parts.cls, JoinedRows)
    assert (parts.find(parts.query, parts.passage) == np.arange(len(parts.query))).all()
    one, several = (figures(path, "score_candidates") for path in scored)
    assert one.pop("headline").split(",")[0] == several.pop("headline").split(",")[0] and one == several


@pytest.mark.slow
def test_tasks_generate_the_bits_of_one_task(written: tuple[Path, Path]) -> None:
    whole, parts = map(GeneratedQueries.read, written)
    assert not differing(whole, parts) and len(whole.text) == 40 and len(set(whole.text)) > 1
    sizes = [len(GeneratedQueries.read(written[0].parent / f"{i} of {SHARDS}").text) for i in range(SHARDS)]
    assert min(sizes) > 5 and sum(sizes) == 40
    assert figures(written[0], "generate_queries") == figures(written[1], "generate_queries")


@pytest.mark.slow
def test_tasks_retrieve_the_bits_of_one_task(retrieved: tuple[Path, Path]) -> None:
    whole, several = map(Run.read, retrieved)
    assert not differing(whole, several)
    assert np.bincount(whole.query).tolist() == [6] * 60 + [70] * 40
    tied = (np.diff(whole.score) == 0) & (np.diff(whole.query) == 0)
    assert tied.sum() > 100 and (np.diff(whole.passage)[tied] > 0).all()
    of_parts = [Run.read(retrieved[0].parent / f"{i} of {SHARDS}").passage for i in range(SHARDS)]
    assert [(rows.min(), rows.max()) for rows in of_parts] == [(0, 31), (32, 63), (64, 99)]
    one, several = (figures(path, "dense_retrieve") for path in retrieved)
    assert one.pop("headline").split(",")[0] == several.pop("headline").split(",")[0] and one == several
    assert one["passages"] == 100 and "dev/R_at_100" in one
    assert "dev/R_at_100" not in read_manifest(retrieved[0].parent / f"0 of {SHARDS}").metrics
    assert read_manifest(retrieved[0]).digest == read_manifest(retrieved[1]).digest


@pytest.mark.parametrize("fields", ["joined", "separate"])
def test_tasks_search_bm25_with_the_bits_of_one_task(fields: Any, tiny_dataset: Dataset, tmp_path: Path) -> None:
    index = write_bm25(tiny_dataset.path, tmp_path / "index", fields=fields)

    def make(settings: Bm25Retrieve, target: Path) -> None:
        bm25_retrieve(settings, dataset=tiny_dataset.path, bm25_index=index, bm25_run=target)

    one, several = in_parts(tmp_path, tiny_dataset, Bm25Retrieve(train_depth=5), make)
    assert read_manifest(one).digest == read_manifest(several).digest
    assert figures(one, "bm25_retrieve") == figures(several, "bm25_retrieve")
    assert read_manifest(several).rows == read_manifest(one).rows and figures(one, "bm25_retrieve")["queries"] == 100
    queries = [np.unique(Run.read(tmp_path / f"{i} of {SHARDS}").query).tolist() for i in range(SHARDS)]
    assert queries == [
        [*range(20), *range(60, 73)],
        [*range(20, 40), *range(73, 86)],
        [*range(40, 60), *range(86, 100)],
    ]


def test_the_training_set_is_the_same(folder: Path, tmp_path: Path, tiny_dataset: Dataset, written: Any) -> None:
    digests = []
    for name, path in zip("ab", written, strict=True):
        inputs = {"dataset": tiny_dataset.path, "candidates": folder / "run", "generated_queries": path}
        settings = SelectTrainingSet(negative_depth=8, selection_threshold=0.0)
        select_training_set(settings, **inputs, training_set=tmp_path / name)
        digests.append(read_manifest(tmp_path / name).digest)
    assert digests[0] == digests[1]


def test_nothing_is_copied_and_the_history_has_one_record(scored: tuple[Path, Path]) -> None:
    one, several = scored
    assert read_manifest(several).files.keys() > {"parts.json", "parts/0/pairs.parquet", "parts/2/cls_vectors.npy"}
    assert all((several / name).stat().st_nlink > 1 for name in read_manifest(several).files if name != "parts.json")
    assert read_manifest(several).rows == {"pairs": len(PairScores.read(one).query)}
    assert read_manifest(several).step == "merge"
    assert list(read_history(several)) == ["score_candidates", "merge"]
    record = read_history(several)["score_candidates"]
    taken = [read_manifest(one.parent / f"{i} of {SHARDS}").metrics["seconds"] for i in range(SHARDS)]
    assert record.metrics["seconds"] == pytest.approx(sum(taken))
    assert (record.settings["shards"], record.settings["candidates"]) == (SHARDS, 5)


def test_more_tasks_than_pairs_leave_some_without_work(folder: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    with drafting(tmp_path / "few", "pair_scores") as draft:
        PairScores.create_cls(draft, 0, 32)
        PairScores.write(draft, *np.zeros((2, 0), np.int32), *np.zeros((2, 0), np.float32))
    assert PairScores.read(tmp_path / "few").cls.shape == (0, 32)
    settings = [ScoreCandidates(shards=5, shard=shard) for shard in range(5)]
    assert [task.share(3) for task in settings] == [slice(0, 0), slice(0, 1), slice(1, 1), slice(1, 2), slice(2, 3)]
    blocks = [task.share(25, 10) for task in settings]
    assert blocks == [slice(0, 0), slice(0, 10), slice(10, 10), slice(10, 20), slice(20, 25)]


def test_what_is_no_complete_set_is_refused(
    folder: Path, tiny_dataset: Dataset, tiny_backbone: Path, scored: tuple[Path, Path], tmp_path: Path
) -> None:
    parts = [scored[0].parent / f"{i} of {SHARDS}" for i in range(SHARDS)]
    inputs = {"dataset": tiny_dataset.path, "bm25_run": folder / "run", "cross_encoder": folder / "cross_encoder"}
    settings = ScoreCandidates.model_validate(read_manifest(parts[2]).settings)
    score_candidates(settings.model_copy(update={"candidates": 4}), **inputs, pair_scores=tmp_path / "settings")
    with drafting(tmp_path / "model", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(tiny_backbone), 24), draft.path)
    score_candidates(settings, **inputs | {"cross_encoder": tmp_path / "model"}, pair_scores=tmp_path / "inputs")
    shutil.copytree(parts[2], tmp_path / "same")
    for wrong, what in (
        (parts[:2], r"score_candidates has 3 parts, and merge was given 1, 2: run"),
        ([*parts[:2], parts[1]], "was given 1, 2, 2"),
        ([*parts, parts[0]], "was given 1, 1, 2, 3"),
        ([*parts[:2], tmp_path / "settings"], "differ in settings"),
        ([*parts[:2], tmp_path / "inputs"], "differ in inputs"),
        ([*parts[:2], folder / "run"], "differ in schema"),
        ([scored[0], *parts], "differ in settings"),
    ):
        with pytest.raises(UserError, match=what):
            merge(Merge(), parts=wrong, dataset=tiny_dataset.path, merged=tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
    merge(Merge(), parts=[*parts[:2], tmp_path / "same"], dataset=tiny_dataset.path, merged=tmp_path / "merged")


@pytest.mark.slow
def test_a_lost_part_is_made_again_alone(
    folder: Path, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(FORK_AFTER, "0")
    (tmp_path / "root").mkdir()
    paths = {"dataset": tiny_dataset.path, "bm25_run": folder / "run", "cross_encoder": folder / "cross_encoder"}
    scoring = Graph("scoring")
    settings = ScoreCandidates(candidates=5, shards=SHARDS, precision="fp32")
    scoring.parallel("score_candidates", settings, **{name: Given(str(path)) for name, path in paths.items()})
    calls = calls_of(scoring, graph_arguments(scoring))

    def go(name: str) -> tuple[dict[str, Path], dict[str, list[str]]]:
        events: list[Event] = []
        outcome = run_calls(calls, tmp_path / "root", name, {}, events.extend)
        assert outcome.status == "FINISHED", outcome.message
        kinds = ("starting", "cached")
        return outcome.outputs, {kind: [e["step"] for e in events if e["event"] == kind] for kind in kinds}

    titles = [f"score_candidates: {number + 1} of {SHARDS}" for number in range(SHARDS)]
    outputs, first = go("first")
    assert first == {"starting": [*titles, "merge: score_candidates"], "cached": []}
    whole = PairScores.read(outputs["merge: score_candidates/merged"])
    assert list(read_history(outputs["merge: score_candidates/merged"])) == [
        "score_candidates",
        "merge: score_candidates",
    ]
    vectors = whole.cls[:]
    _, again = go("again")
    assert again == {"starting": [], "cached": [*titles, "merge: score_candidates"]}
    shutil.rmtree(outputs[f"{titles[1]}/pair_scores"])
    outputs, repaired = go("repaired")
    assert repaired["starting"] == [titles[1]]
    assert repaired["cached"] == [titles[0], titles[2], "merge: score_candidates"]
    np.testing.assert_array_equal(PairScores.read(outputs["merge: score_candidates/merged"]).cls[:], vectors)
