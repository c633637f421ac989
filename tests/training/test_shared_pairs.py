"""Two processes that share the scoring of each batch of pairs train the re-ranker that one process trains."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import write_first_run
from safetensors.torch import load_file, save_file
from torch import multiprocessing

from gnn_encoder.artifacts import Dataset, DocumentGraph, KnownPositives, Run
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training import pairs, ranks
from gnn_encoder.training.document_rerankers import document_reranker
from gnn_encoder.training.loop import Objective, fit
from gnn_encoder.training.pairs import PairBatch, PairBatches, in_batch_loss, pair_loss
from gnn_encoder.training.rerankers import new_reranker

KINDS: dict[str, dict[str, Any]] = {
    "cross_encoder": {"loss": "pointwise"},
    "colbert": {"in_batch_negatives": True},
    "lim": {"in_batch_negatives": True, "graph_dropout": 0.0, "neighbours": "live"},
}


def train(folder: Path, first: Path, backbone: Path, name: str) -> dict[str, torch.Tensor]:
    """The weights after two epochs. A small ε would make whole steps of gradients that are zero but for rounding."""
    settings = TrainReranker.model_validate({
        "kind": name, "backbone": str(backbone), "pair_length": 48, "batch_size": 26, "negatives": 2,
        "epochs": 2, "learning_rate": 1e-3, "head_learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0,
        "dev_queries": 0, "keep": "last", "token_width": 16, "query_length": 24, "passage_length": 40, "graph_heads": 4,
        "document_negatives": 0.0, "adam_epsilon": 1e-4, **KINDS[name],
    })  # fmt: skip
    data = Dataset(folder)
    plan = PairBatches(data.split_qrels("train").positive(), negative_pool(data, [Run.read(first)], 8), settings)
    known, context = KnownPositives.of(data, "train"), Context("train_reranker", StepLog(), "key")
    of = data.structure
    if name == "lim":
        assert of is not None
        graph: DocumentGraph = document_graph(of.passages, of.document, of.parent, of.place, *of.citations)
        trained = document_reranker(settings, data, graph, plan.pairs[1], context)
    else:
        trained = new_reranker(settings, data, plan.pairs[1])

    def loss(batch: PairBatch) -> torch.Tensor:
        if trained.before:
            trained.before(batch)
        if settings.in_batch_negatives:
            assert trained.table
            return in_batch_loss(trained.table, batch, known, len(data.queries))
        return pair_loss(trained.score, trained.lengths, batch, loss=settings.loss)

    with suppress(ranks.TrainingOver):  # which ends a follower's step
        fit(Objective(trained.model, plan, loss, trained.groups(settings)), settings, context)
    state: dict[str, torch.Tensor] = trained.model.state_dict()
    return {key: value.clone() for key, value in state.items()}


def process(rank: int, world: int, folder: Path, *arguments: Path) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=world)
    for number, name in enumerate(KINDS):
        os.environ[CHECKPOINTS] = str(folder / f"checkpoints-{number}")
        save_file(train(*arguments, name), folder / f"{number}-{rank}.safetensors")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_what_one_trains(
    tiny_documents: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_first_run(tiny_documents, tmp_path / "first_run")
    arguments = tiny_documents.path, first, tiny_backbone
    multiprocessing.spawn(process, (2, tmp_path, *arguments), nprocs=2)
    for number, name in enumerate(KINDS):
        monkeypatch.setenv(CHECKPOINTS, str(tmp_path / f"alone-{number}"))
        alone = train(*arguments, name)
        one, other = (load_file(tmp_path / f"{number}-{rank}.safetensors") for rank in range(2))
        for key, weight in alone.items():
            assert torch.equal(one[key], other[key])
            assert (one[key] - weight).abs().max() < 1e-5, (name, key)
    # Control: a process that learns from its own pairs alone.
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "other"))
    monkeypatch.setattr(pairs, "shared", half)
    changed = train(*arguments, name)
    assert max(float((changed[key] - alone[key]).abs().max()) for key in alone) > 1e-3


def half(read: Any, rows: Any, none: torch.Tensor) -> torch.Tensor:
    """Gradient into every other row only."""
    scores: torch.Tensor = read(rows)
    return torch.where((torch.arange(len(rows)) % 2 == 0)[:, None], scores, scores.detach())
