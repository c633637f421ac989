"""Cached passage vectors that are made anew: by the encoder as it is then, and the same after an interruption."""

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_states import wait_for_each
from small_training import examples_of, two_encoders

from gnn_encoder.artifacts import Dataset, Graph, reverse_csr
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.checkpoint import Saver
from gnn_encoder.training.masked_graph import MaskedGraphTraining, SampledBatches
from gnn_encoder.training.passage_cache import PassageCache
from gnn_encoder.training.prefetch import batches_of

SETTINGS = TrainGnn(
    epochs=2, cache_refreshes=2, batch_size=15, mask_fraction=0.5, learning_rate=1e-3, gnn_learning_rate=1e-2,
    checkpoint_seconds=1e-9, dev_queries=0, precision="fp32",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _states(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)


class Interrupted(Exception):
    pass


@pytest.fixture
def job(tiny_dataset: Dataset, tiny_backbone: Path) -> MaskedGraphTraining:
    encoders, generator = two_encoders(tiny_backbone, 16), np.random.default_rng(0)
    nodes = tiny_dataset.query_rows("train")
    edges = np.stack([generator.permutation(50)[:3] for _ in nodes]).astype(np.int32)
    graph = Graph(nodes, edges, edges < -1, None, *reverse_csr(edges, 100))
    examples = examples_of(tiny_dataset, generator.integers(0, 100, (60, 4)).astype(np.int32))
    model = GnnEncoder(encoders, GNN(GnnConfig(width=32, edge_width=0, cached_passages=False)))
    stored = generator.standard_normal((100, 32)).astype(np.float32)
    return MaskedGraphTraining(model, tiny_dataset, examples, graph, stored, SETTINGS)


def fit(job: MaskedGraphTraining) -> dict[str, torch.Tensor]:
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        job.fit(Context("test", run, "key"))
    return {name: value.clone() for name, value in job.model.state_dict().items()}


def stop_before(job: MaskedGraphTraining, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, loss = 0, job.loss

    def failing(*arguments: object) -> torch.Tensor:
        nonlocal taken
        taken += 1
        if taken > step:
            raise Interrupted
        return loss(*arguments)

    monkeypatch.setattr(job, "loss", failing)


@pytest.mark.parametrize(("versions", "due"), [(0, [0] * 8), (1, [0] * 4 + [1] * 4), (2, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_versions_are_spread_over_the_epochs(job: MaskedGraphTraining, versions: int, due: list[int]) -> None:
    plan = SampledBatches(job.plan(), job.neighbourhood, versions)
    assert plan.steps_per_epoch == 4
    assert [version for epoch in range(2) for *_, version in batches_of(plan, epoch)] == due


def test_each_version_is_the_encoders_of_its_time(
    job: MaskedGraphTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    vectors_of, seen, advance = job.cache.vectors, {}, job.cache.advance
    reached = np.isin(np.arange(100), job.graph.edges)

    def watched(version: int, *rest: object) -> None:
        if version not in seen:
            seen[version] = copy.deepcopy(job.model.dual_encoder)
            advance(version, *rest)
            job.passages.encoder, now = seen[version].passage_encoder, job.passages.encoder
            expected = vectors_of if version == 0 else job.passages.vectors(np.arange(100))
            job.passages.encoder = now
            np.testing.assert_allclose(job.cache.vectors[reached], expected[reached], atol=1e-6)
            assert version == 0 or not job.cache.vectors[~reached].any(), "of passages without an edge nothing is made"

    monkeypatch.setattr(job.cache, "advance", watched)
    fit(job)
    assert list(seen) == [0, 1, 2, 3]
    left = sorted(file.name for file in tmp_path.rglob("passages-*"))
    assert left == ["passages-2.npy", "passages-3.npy"], "1 went: the last checkpoint was written with its successor"


@pytest.mark.parametrize("lost", [False, True])
def test_a_resumed_training_has_the_vectors_that_it_had(
    job: MaskedGraphTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, capsys: Any
) -> None:
    start, stored = copy.deepcopy(job.model.state_dict()), job.cache.vectors
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "whole"))
    expected = fit(job)

    def again() -> MaskedGraphTraining:
        job.model.load_state_dict(start)
        job.cache.vectors, job.cache.version = stored, 0
        return job

    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "cut"))
    with monkeypatch.context() as patch:
        stop_before(again(), 3, patch)  # the first version was due before the third step
        with pytest.raises(Interrupted):
            fit(job)
    (vectors_file,) = (tmp_path / "cut").rglob("passages-1.npy")
    if lost:  # the control: made anew later, by other weights
        vectors_file.unlink()
    resumed = fit(again())
    assert all(torch.equal(expected[name], resumed[name]) for name in expected) != lost
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_version_stays_as_long_as_a_checkpoint_may_need_it(
    job: MaskedGraphTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    monkeypatch.setattr(Saver, "ready", lambda saver: job.cache.version == 1)
    fit(job)
    assert sorted(file.name for file in tmp_path.rglob("passages-*")) == [f"passages-{i}.npy" for i in (1, 2, 3)]


def test_what_an_attempt_left_that_came_further_outdates_nothing(tmp_path: Path) -> None:
    """Version 2 is of an attempt that was killed before a checkpoint; the next ones checkpoint while 1 is in use."""
    checkpoint = tmp_path / "checkpoint.safetensors"

    def started(encoder: float) -> PassageCache:
        return PassageCache(np.zeros((4, 2), np.float32), np.arange(4), lambda rows: np.full((len(rows), 2), encoder))

    def advance(cache: PassageCache, version: int) -> None:
        cache.advance(version, tmp_path, lambda total: Progress("test", "version", total, "passages"))
        time.sleep(0.01)

    cache = started(1.0)
    advance(cache, 1)
    advance(cache, 2)
    for _ in range(2):
        cache = started(9.0)
        advance(cache, 1)
        assert (cache.vectors == 1.0).all()
        checkpoint.write_bytes(b"")
        advance(cache, 2)
    checkpoint.write_bytes(b"")  # while 2 is in use: now nothing asks for 1
    advance(cache, 3)
    assert sorted(file.name for file in tmp_path.glob("passages-*")) == ["passages-2.npy", "passages-3.npy"]
