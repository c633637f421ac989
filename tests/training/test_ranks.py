"""Two processes that share the encoding of each batch train the weights that one process trains."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from small_training import examples_of, two_encoders
from torch import multiprocessing

from gnn_encoder.artifacts import Dataset, Graph, PairScores, reverse_csr
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training import ranks
from gnn_encoder.training.contrastive import train_contrastive
from gnn_encoder.training.distillation import Teacher
from gnn_encoder.training.masked_graph import MaskedGraphTraining

COMMON = {"precision": "fp32", "dropout": 0.0, "dev_queries": 0}


# Some gradients are zero but for rounding (a shift of all passages changes no softmax); with a small eps AdamW would
# make whole steps of them.
AdamW = partial(torch.optim.AdamW, eps=1e-4)


def train(folder: Path, backbone: Path, cached: bool, workers: int = 0) -> dict[str, torch.Tensor]:
    """20 steps with eq. 2 and distillation, then masked graph training over a random graph."""
    common = {"checkpoint_seconds": 1e-9, **COMMON, "gradient_cache": cached, "workers": workers}
    data, generator = Dataset(folder), np.random.default_rng(0)
    queries = data.query_rows("train")
    examples = examples_of(data, generator.integers(0, 100, (60, 4)).astype(np.int32))
    encoders = two_encoders(backbone)
    edges = np.stack([generator.permutation(100)[:8] for _ in queries]).astype(np.int32)
    features = generator.standard_normal((*edges.shape, 6)).astype(np.float16)
    graph = Graph(queries, edges, edges < -1, features, *reverse_csr(edges, 100))
    model = GnnEncoder(encoders, GNN(GnnConfig(width=32, edge_width=6)))
    size = -(-len(examples.query) // 5)  # five batches an epoch
    dual = TrainDualEncoder(epochs=4, batch_size=size, learning_rate=1e-3, distillation=0.4, **common)
    scored = np.sort(generator.permutation(len(queries) * 100)[:600])
    scores = generator.standard_normal(600).astype(np.float32)
    teacher = Teacher(PairScores(queries[scored // 100], scored % 100, scores, scores, features), dual)
    joint = TrainGnn(epochs=1, batch_size=size, mask_fraction=0.2, learning_rate=1e-3, **common)
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        with suppress(ranks.TrainingOver):  # which ends a follower's step
            trained = train_contrastive(encoders, examples, data, dual, Context("dual", run, "key"), teacher)
            assert trained["steps"] == 20
        vectors = generator.standard_normal((100, 32)).astype(np.float32)
        with suppress(ranks.TrainingOver):
            MaskedGraphTraining(model, data, examples, graph, vectors, joint).fit(Context("joint", run, "key"))
    return model.state_dict()


def process(rank: int, world: int, folder: Path, dataset: Path, backbone: Path) -> None:
    """One of the processes."""
    os.environ[CHECKPOINTS] = str(folder / f"checkpoints-{rank}")
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/{rank}.db"
    torch.set_num_threads(1)
    torch.optim.AdamW = AdamW  # type: ignore[assignment, misc]
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=world)
    save_file(train(dataset, backbone, cached=True, workers=1), folder / f"{rank}.safetensors")
    assert (folder / f"checkpoints-{rank}").exists() == (rank == 0)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_what_one_trains(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiprocessing.spawn(process, (2, tmp_path, tiny_dataset.path, tiny_backbone), nprocs=2)
    monkeypatch.setattr(torch.optim, "AdamW", AdamW)
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "alone"))
    alone = train(tiny_dataset.path, tiny_backbone, cached=False)
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    for name, weight in alone.items():
        assert torch.equal(first[name], second[name])
        assert (first[name] - weight).abs().max() < 1e-5, name
    # Control: with gradients left unshared a process learns from its own texts alone.
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "other"))
    monkeypatch.setattr(ranks, "world_size", lambda: 1)
    monkeypatch.setattr("gnn_encoder.training.embed.shared", half)
    other = train(tiny_dataset.path, tiny_backbone, cached=False)
    assert max(float((other[name] - alone[name]).abs().max()) for name in alone) > 1e-3


def test_a_parameter_that_no_process_uses_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would decay, as it does in no training of one process."""
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.mul_(2))  # the other process has the same
    used, unused = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(3))
    used.grad = torch.arange(4.0).reshape(2, 2)
    assert ranks.average_gradients([unused, used], torch.tensor(3.0)) == 3.0
    assert unused.grad is None and torch.equal(used.grad, torch.arange(4.0).reshape(2, 2))
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.mul_(2).add_(1))  # control: only the other process has it
    assert ranks.average_gradients([unused, used], torch.tensor(3.0)) == 3.5
    assert unused.grad is not None


def test_the_leader_alone_has_the_threads_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    monkeypatch.setattr(ranks, "world_size", lambda: 3)
    with pytest.raises(KeyboardInterrupt), ranks.alone():
        assert torch.get_num_threads() == 3 * threads
        raise KeyboardInterrupt
    assert torch.get_num_threads() == threads


def half(embed, rows: np.ndarray, none: torch.Tensor) -> torch.Tensor:
    """Gradient into every other text only."""
    vectors = embed(rows)
    keep = (torch.arange(len(rows)) % 2 == 0)[:, None]
    return torch.where(keep, vectors, vectors.detach())
