"""Every training of the pipelines on two machines, against one machine."""

from pathlib import Path
from typing import Any

import pytest
from conftest import write_first_run
from gnn_encoder.settings.calls import STEP_SETTINGS
from gnn_encoder.settings.tasks import node_label, shared_calls
from node_machines import machines_for, train_apart
from slow_store import slow_store
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.settings.documents import BuildDocumentGraph
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.pipeline import Call
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.shared import Merge
from gnn_encoder.settings.systems import CONVERGED
from gnn_encoder.steps.build_document_graph import build_document_graph
from gnn_encoder.steps.merge import merge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRAINED = {
    "epochs": 2, "batch_size": 6, "learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0, "dev_queries": 0,
    "checkpoint_seconds": 1e-9,
}  # fmt: skip
LENGTHS = {"query_length": 16, "passage_length": 24}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "train_dpr": ("", LENGTHS, ("bm25_run",)),
    "train_cross_encoder": ("", {"pair_length": 40}, ("bm25_run", "dpr_run")),
    "train_query_generator": ("", LENGTHS, ()),
    "train_dual_encoder": ("", {**LENGTHS, "start_from": "dpr"}, ("training_set", "start")),
    "train_converged": (
        CONVERGED,
        {**LENGTHS, "start_from": "dual_encoder", "keep": "best", "patience": 1, "epochs": 4, "dev_queries": 20},
        ("training_set", "start"),
    ),
}
"""Parameter of the pipeline → the label of its call, settings, and inputs besides the dataset."""
RERANKERS: dict[str, dict[str, Any]] = {
    "cross_encoder": {"pair_length": 40},
    "colbert": {"in_batch_negatives": True},
    "lim": {"in_batch_negatives": True, "graph_dropout": 0.0, "document_negatives": 0.0, "graph_heads": 4},
}
"""System → its settings."""


@pytest.mark.parametrize("parameter", CASES)
def test_two_nodes_train_what_one_trains(
    parameter: str, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label, own, names = CASES[parameter]
    step = "train_dual_encoder" if label else parameter
    made = write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path / "given", BuildGraph(neighbors=3, retrieved=5))
    run = write_first_run(tiny_dataset, tmp_path / "run")
    made |= {"start": made["dual_encoder"], "bm25_run": run, "dpr_run": run}
    inputs = {name: made[name] for name in ("dataset", *names)}
    with slow_store(monkeypatch):
        machines = {}
        for nodes in (1, 2):
            kind = STEP_SETTINGS[step]
            values = {**TRAINED, "backbone": str(tiny_backbone), "generator": str(tiny_backbone), **own, "nodes": nodes}
            settings: Any = kind.model_validate({k: v for k, v in values.items() if k in kind.model_fields})
            calls = shared_calls(step, settings, parameter=parameter, label=label)
            machines[nodes] = machines_for(tmp_path / str(nodes), inputs, calls, "s3://bucket/checkpoints")
        train_apart(machines[1][0], machines[2])
    parts = [machine.out for machine in machines[2]]
    merge(Merge(), parts=parts[::-1], dataset=tiny_dataset.path, merged=tmp_path / "merged")
    assert read_manifest(tmp_path / "merged").files == read_manifest(parts[0]).files
    whole = f"{step}: {label}" if label else step
    assert [title for title in read_history(tmp_path / "merged") if title.startswith("train_")] == [whole]


@pytest.mark.parametrize("name", RERANKERS)
def test_two_nodes_train_the_re_ranker_that_one_trains(
    name: str, tiny_documents: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lim` with as many processes: a passage that another process reads is in the cache of the epoch's start."""
    graph, run = tmp_path / "document_graph", write_first_run(tiny_documents, tmp_path / "first_run")
    inputs = {"dataset": tiny_documents.path, "first_run": run}
    if name == "lim":
        build_document_graph(BuildDocumentGraph(), dataset=tiny_documents.path, document_graph=graph)
        inputs |= {"document_graph": graph}
    values = {**TRAINED, **LENGTHS, **RERANKERS[name], "backbone": str(tiny_backbone), "token_width": 16}
    # A small ε would make whole steps of gradients that are zero but for rounding.
    values |= {"head_learning_rate": 1e-3, "adam_epsilon": 1e-4, "keep": "last"}
    counts = {"processes": 1, "nodes": 2}, {"processes": 2 if name == "lim" else 1, "nodes": 1}
    several, alone = (TrainReranker.model_validate({**values, **count}).for_system(name) for count in counts)
    together = {
        f"{node}": Call("train_reranker", several.model_copy(update={"node": node}), label)
        for node, label in enumerate(("A", node_label("A", 1, 2)))
    }
    with slow_store(monkeypatch):
        single = machines_for(
            tmp_path / "1", inputs, {"0": Call("train_reranker", alone, "A")}, "s3://bucket/checkpoints"
        )
        machines = machines_for(tmp_path / "2", inputs, together, "s3://bucket/checkpoints")
        train_apart(single[0], machines)
    titles = [title for title in read_history(machines[0].out) if title.startswith("train_")]
    assert titles == ["train_reranker: A"]
