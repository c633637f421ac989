"""The choice of a graph with frozen encoders: what is tried, what is chosen, and what the joint training gets."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset, Graph, GraphChoice, read_manifest
from gnn_encoder.artifacts.report import CHOICE
from gnn_encoder.errors import UserError
from gnn_encoder.settings.graph import BuildGraph, ChooseGraph, TrainGnn, largest_graph
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.steps import choose_graph as module
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.choose_graph import choose_graph
from gnn_encoder.steps.train_gnn import train_gnn

BUILD = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
TRAIN = TrainGnn(epochs=1, batch_size=16, precision="fp32", dropout=0.0, dev_queries=0, hard_negatives="retrieved")
VARIANTS = {
    "one layer": {"train_gnn.layers": 1},
    "both edges": {"build_graph.edges": "retrieved+labelled", "build_graph.neighbors": 2},
}


@pytest.fixture(scope="module")
def artifacts(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The step's inputs; the graph has every variant's edges."""
    built = largest_graph(BUILD, of(VARIANTS).tried)
    return write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path_factory.mktemp("choose"), built)


def of(variants: dict[str, dict[str, object]], **settings: object) -> ChooseGraph:
    return ChooseGraph.model_validate({"variants": variants, **settings}).of(BUILD, TRAIN, "RR@10")


def choose(artifacts: dict[str, Path], folder: Path, settings: ChooseGraph) -> dict[str, Path]:
    outputs = {name: folder / name for name in ("chosen_graph", "graph_choice")}
    choose_graph(settings, **artifacts, **outputs)
    return outputs


def test_without_variants_the_graph_is_passed_on(artifacts: dict[str, Path], tmp_path: Path) -> None:
    outputs = choose(artifacts, tmp_path, of({}))
    graph, before = read_manifest(outputs["chosen_graph"]), read_manifest(artifacts["graph"])
    assert (graph.digest, graph.step, graph.settings, graph.rows) == (
        before.digest, "build_graph", before.settings, before.rows,
    )  # fmt: skip
    assert GraphChoice.read(outputs["graph_choice"]).facts == {}


def test_a_measure_without_k_looks_at_the_whole_list(artifacts: dict[str, Path], tmp_path: Path) -> None:
    settings = ChooseGraph.model_validate({"variants": {"one layer": VARIANTS["one layer"]}}).of(BUILD, TRAIN, "AP")
    facts = GraphChoice.read(choose(artifacts, tmp_path, settings)["graph_choice"]).facts
    assert min(standing["mean"] for standing in facts["standings"]) > 0


@pytest.mark.parametrize("best", VARIANTS)
def test_the_best_variant_is_cut_from_the_graph_and_trained(
    artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: str
) -> None:
    """The figures are real but for a bonus to one variant, so that each is chosen once."""
    real = module._Trial.figures

    def favoured(self: module._Trial, *rest: object) -> dict[str, np.ndarray]:
        graph = real(self, *rest)  # type: ignore[arg-type]
        return graph | {best: np.minimum(graph[best] + 1, 2)}

    monkeypatch.setattr(module._Trial, "figures", favoured)
    outputs = choose(artifacts, tmp_path, of(VARIANTS))
    facts = GraphChoice.read(outputs["graph_choice"]).facts
    assert facts["variant"] == best and [standing["variant"] for standing in facts["standings"]] == [
        "Dual encoder",
        *VARIANTS,
    ]
    alone = {"graph": tmp_path / "alone", "passage_vectors": tmp_path / "vectors"}
    shape = {key.partition(".")[2]: value for key, value in VARIANTS[best].items() if key.startswith("build_graph.")}
    shaped = BuildGraph.model_validate({**BUILD.model_dump(), **shape})
    build_graph(
        shaped, dataset=artifacts["dataset"], dual_encoder=artifacts["dual_encoder"],
        cross_encoder=artifacts["dual_encoder"].parent / "cross_encoder", **alone,
    )  # fmt: skip
    chosen, expected = Graph.read(outputs["chosen_graph"]), Graph.read(alone["graph"])
    for node, edges in enumerate(expected.edges):
        assert sorted(chosen.edges[node][chosen.edges[node] >= 0]) == sorted(edges[edges >= 0])
    assert len(chosen.reverse) == len(expected.reverse) != len(Graph.read(artifacts["graph"]).edges.ravel())
    assert BuildGraph.model_validate(read_manifest(outputs["chosen_graph"]).settings) == shaped
    inputs = {name: path for name, path in artifacts.items() if name != "graph"}
    train_gnn(
        TRAIN,
        **inputs,
        graph=outputs["chosen_graph"],
        graph_choice=outputs["graph_choice"],
        gnn_encoder=tmp_path / "gnn",
    )
    gnn = json.loads(next((tmp_path / "gnn").rglob("gnn.json")).read_text("utf-8"))
    assert gnn["layers"] == (1 if best == "one layer" else 2)


def test_a_variant_that_falls_on_cold_queries_is_not_chosen(artifacts: dict[str, Path]) -> None:
    n = 20

    class Trial:
        settings, falls = of(VARIANTS), module._Trial.falls
        cold = np.arange(n) < n // 2

    cold = Trial.cold
    figures = {"Dual encoder": np.full(n, 0.5), "one layer": np.full(n, 0.6), "both edges": np.where(cold, 0.3, 1.0)}
    name, standings = module._chosen(Trial(), figures)  # type: ignore[arg-type]
    assert name == "one layer" and "cold" in standings[2]["objections"][0] and not standings[1]["objections"]
    figures["both edges"][cold] = 0.5
    assert module._chosen(Trial(), figures)[0] == "both edges"  # type: ignore[arg-type]
    figures |= {"one layer": np.where(cold, 0.2, 0.9), "both edges": np.where(cold, 0.2, 1.0)}
    assert module._chosen(Trial(), figures)[0] == "both edges"  # all fall  # type: ignore[arg-type]


@pytest.mark.slow
def test_trials_are_deterministic_and_leave_no_checkpoint(
    artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    first = choose(artifacts, tmp_path / "a", of(VARIANTS, seeds=2))
    again = choose(artifacts, tmp_path / "b", of(VARIANTS, seeds=2))
    texts = [(outputs["graph_choice"] / CHOICE).read_text("utf-8") for outputs in (first, again)]
    assert texts[0] == texts[1]
    assert not [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_gnn.layer": 1}, "train_gnn.layer is no setting"),
        ({"ingest.seed": 1}, "ingest.seed is no setting"),
        ({"train_gnn.layers": 7}, "layers"),
    ],
)
def test_a_wrong_variant_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_settings({"choose_graph": {"variants": {"mine": changes}}})
    assert "\n" not in str(caught.value) and "mine" in str(caught.value)
