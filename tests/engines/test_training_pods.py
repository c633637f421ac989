"""The pods of a TrainJob train what one process trains, killed and resumed, too."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_first_run
from slow_store import SlowStore, slow_store
from tiny_graph import write_gnn_inputs
from trainjobs import ROOT, assert_close, cluster, source, stored, trained, weights_of
from waiting import wait_for

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError
from gnn_encoder.flow.declared import declared
from gnn_encoder.settings.documents import BuildDocumentGraph
from gnn_encoder.settings.foundation import TrainCrossEncoder, TrainDpr, TrainDualEncoder, TrainQueryGenerator
from gnn_encoder.settings.graph import BuildGraph, TrainGnn
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.build_document_graph import build_document_graph
from gnn_encoder.steps.train_cross_encoder import train_cross_encoder
from gnn_encoder.steps.train_dpr import train_dpr
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder
from gnn_encoder.steps.train_gnn import train_gnn
from gnn_encoder.steps.train_query_generator import train_query_generator
from gnn_encoder.steps.train_reranker import train_reranker

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    with slow_store(monkeypatch) as store:
        yield store


TRAIN = {
    "epochs": 2, "batch_size": 6, "learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0, "dev_queries": 0,
    "checkpoint_seconds": 1e-9,
}  # fmt: skip
LENGTHS = {"query_length": 16, "passage_length": 24}
CASES: dict[str, tuple[Any, Any, dict[str, Any], tuple[str, ...]]] = {
    "train_dpr": (train_dpr, TrainDpr, LENGTHS, ("bm25_run",)),
    "train_cross_encoder": (train_cross_encoder, TrainCrossEncoder, {"pair_length": 40}, ("bm25_run", "dpr_run")),
    "train_query_generator": (train_query_generator, TrainQueryGenerator, LENGTHS, ()),
    "converged": (
        train_dual_encoder,
        TrainDualEncoder,
        {**LENGTHS, "start_from": "dual_encoder", "keep": "best", "patience": 1, "epochs": 4, "dev_queries": 20},
        ("training_set", "start"),
    ),
    "train_gnn": (
        train_gnn,
        TrainGnn,
        {"mask_fraction": 0.2, "hard_negatives": "retrieved", "cache_refreshes": 2, "batch_size": 3, "epochs": 1},
        ("graph", "dual_encoder", "training_set"),
    ),
}  # fmt: skip
"""Training → its step, settings and inputs besides the dataset."""


@pytest.fixture
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> dict[str, Path]:
    """What trainings read."""
    build = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
    artifacts = write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path / "given", build)
    run = write_first_run(tiny_dataset, tmp_path / "first_run")
    return {**artifacts, "start": artifacts["dual_encoder"], "bm25_run": run, "dpr_run": run}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_pods_train_what_one_process_trains(
    name: str, inputs: dict[str, Path], tiny_backbone: Path, store: SlowStore, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    step, kind, changes, names = CASES[name]
    artifacts = inputs if name == "train_gnn" else {key: inputs[key] for key in ("dataset", *names)}
    artifacts = {key: path for key, path in artifacts.items() if key in declared(step.__name__).inputs}
    values = {**TRAIN, "backbone": str(tiny_backbone), "generator": str(tiny_backbone), **changes}
    values = {key: value for key, value in values.items() if key in kind.model_fields}
    with cluster(monkeypatch, tmp_path / "cluster", ROOT) as api:
        alone = trained(step, kind.model_validate(values), artifacts, tmp_path / "alone")
        addresses = stored(artifacts, "s3://bucket/run")
        settings = kind.model_validate({**values, "nodes": 2})
        assert_close(trained(step, settings, artifacts, tmp_path / "several", addresses), alone)
        assert [process.returncode for process in api.processes] == [0, 0]
    assert len(api.created) == 1 and not api.jobs
    assert not [key for key in store.objects if not key.startswith("run/")], "no call, no result, no checkpoints"
    one, several = (read_history(tmp_path / folder)[step.__name__] for folder in ("alone", "several"))
    assert several.curves.keys() == one.curves.keys()
    assert read_manifest(tmp_path / "several").metrics["steps"] == read_manifest(tmp_path / "alone").metrics["steps"]


@pytest.mark.slow
def test_two_pods_train_the_re_ranker_that_two_processes_train(
    tiny_documents: Dataset, tiny_backbone: Path, store: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lim`: a passage that another process reads is in the cache of the epoch's start; see `test_shared_pairs`."""
    graph, run = tmp_path / "document_graph", write_first_run(tiny_documents, tmp_path / "first_run")
    build_document_graph(BuildDocumentGraph(), dataset=tiny_documents.path, document_graph=graph)
    artifacts = {"dataset": tiny_documents.path, "first_run": run, "document_graph": graph}
    values = {**TRAIN, **LENGTHS, "backbone": str(tiny_backbone), "token_width": 16, "graph_heads": 4, "keep": "last"}
    values |= {"in_batch_negatives": True, "graph_dropout": 0.0, "document_negatives": 0.0}
    values |= {"head_learning_rate": 1e-3, "adam_epsilon": 1e-4}
    counts = {"processes": 1, "nodes": 2}, {"processes": 2, "nodes": 1}
    several, alone = (TrainReranker.model_validate({**values, **count}).for_system("lim") for count in counts)
    with cluster(monkeypatch, tmp_path / "cluster", ROOT):
        one = trained(train_reranker, alone, artifacts, tmp_path / "alone")
        addresses = stored(artifacts, "s3://bucket/run")
        assert_close(trained(train_reranker, several, artifacts, tmp_path / "several", addresses), one)


STEP = """import json, sys
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.steps.train_gnn import train_gnn
from gnn_encoder.engines import trainer
trainer.POLL_SECONDS = 0.2
given = json.loads(sys.argv[1])
train_gnn(TrainGnn(**given["settings"]), addresses=given["addresses"], **given["inputs"], gnn_encoder=given["out"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_step_is_resumed_by_its_next_attempt(
    processes: int, inputs: dict[str, Path], store: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes on each node, one has neither the leader's files nor writes their copies."""
    artifacts = {key: str(path) for key, path in inputs.items() if key in declared("train_gnn").inputs}
    with cluster(monkeypatch, tmp_path / "cluster", ROOT) as api:
        addresses = stored({key: Path(path) for key, path in artifacts.items()}, "s3://bucket/run")
        settings = {**TRAIN, "batch_size": 3, "mask_fraction": 0.2, "dropout": 0.1, "epochs": 10}
        alone = {}
        if processes > 1:
            settings |= {"cache_refreshes": 2, "dropout": 0.0, "epochs": 4}
            alone = trained(
                train_gnn, TrainGnn(**settings), {k: Path(v) for k, v in artifacts.items()}, tmp_path / "alone"
            )
        settings |= {"nodes": 2, "processes": processes}
        call = {"settings": settings, "addresses": addresses, "inputs": artifacts, "out": str(tmp_path / "out")}
        command = [sys.executable, "-c", STEP, json.dumps(call)]
        environment = {**os.environ, "PYTHONPATH": str(source())}
        step = subprocess.Popen(command, env=environment)
        try:
            wait_for(lambda: any("/states/" in key for key in store.objects))
            os.kill(step.pid, signal.SIGKILL)
            for pod in api.processes if processes > 1 else ():
                pod.kill()  # otherwise it trains on until the next attempt deletes it
            (old,) = api.jobs
            subprocess.run(command, env=environment, check=True)
        finally:
            step.kill()
        logs = "".join(path.read_text("utf-8") for path in (tmp_path / "cluster").glob("*.log"))
    assert "resumed at" in logs
    assert api.deleted[0] == old and len(api.deleted) == 2 and not api.jobs
    if alone:
        assert_close(weights_of(tmp_path / "out"), alone)
    left = [path.name for path in (tmp_path / "cluster").glob(f"{api.deleted[1]}-*-tmpdir/*/*")]
    assert not {"inputs", "checkpoints"} & set(left), "the launchers remove what their processes shared"
    assert all(torch.isfinite(weight).all() for weight in weights_of(tmp_path / "out").values())


@pytest.mark.slow
def test_a_pod_that_fails_is_named_with_its_error(
    tiny_dataset: Dataset, store: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = {"dataset": tiny_dataset.path, "bm25_run": write_first_run(tiny_dataset, tmp_path / "bm25_run")}
    with cluster(monkeypatch, tmp_path / "cluster", ROOT):
        addresses = stored(artifacts, "s3://bucket/run")
        settings = TrainDpr.model_validate({**TRAIN, "backbone": str(tmp_path / "missing"), "nodes": 2})
        with pytest.raises(
            UserError, match=r"TrainJob train-dpr-\w{8}: node [12] ended .* rank [01]: UserError: .*missing"
        ):
            trained(train_dpr, settings, artifacts, tmp_path / "dpr", addresses)
    assert re.search("missing", "".join(path.read_text("utf-8") for path in (tmp_path / "cluster").glob("*.log")))
