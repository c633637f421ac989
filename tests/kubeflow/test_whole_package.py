"""The whole training pipeline as a package, each task a process of its own: it reaches a local run's figures."""

from pathlib import Path

import pytest
from kfp_process_launcher import run_processes
from trained_root import Trained

from gnn_encoder.artifacts import Decision, Report
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.flow.arguments import task_name
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import write_package
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.presets import load_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_package_reaches_the_figures_of_a_local_run(trained: Trained, tmp_path: Path) -> None:
    here = trained.run()
    assert here.status == "FINISHED", here.message
    options = dict(zip(trained.command[1::2], trained.command[2::2], strict=True))
    graph = train(load_settings(options["--preset"], [f"ingest.dataset={options['--dataset']}"]))
    write_package(graph, graph_arguments(graph), Cluster(), tmp_path / "package.yaml")
    run = run_processes(tmp_path / "package.yaml", tmp_path / "there", {"OMP_NUM_THREADS": "1"})

    assert {task for task, _ in run.artifacts} == {task_name(node.title) for node in graph.nodes}
    there = Report.read(Path(run.uri("report", "report"))).metrics["results"]
    ours = Report.read(here.outputs["report"]).metrics["results"]
    assert there.keys() == ours.keys()
    for split, systems in ours.items():
        assert there[split].keys() == systems.keys()
        for system, figures in systems.items():
            assert there[split][system] == pytest.approx(figures, abs=1e-6), (split, system)
    page, table = run.artifacts["report", "page"], run.artifacts["evaluate", "table"]
    assert Path(page["uri"]).read_bytes() == Report.read(Path(run.uri("report", "report"))).page.read_bytes()
    assert table["metadata"]["MRR@10 on test: GNN-encoder"] == pytest.approx(there["test"]["GNN-encoder"]["RR@10"])
    decisions = [Path(run.uri("promote", "decision")), here.outputs["decision"]]
    assert len({Decision.read(decision).facts["recommendation"]["system"] for decision in decisions}) == 1
