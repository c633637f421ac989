"""A system is a row: what the graphs, the recommendation, the report and the card make of one more."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from bundles import write_bm25
from evaluation_inputs import write_inputs

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.artifacts.folder import README
from gnn_encoder.flow.graph import Artifact, Given, Graph, Output
from gnn_encoder.pipelines.train import bundle_of, bundles_without_training, train
from gnn_encoder.pipelines.update import update
from gnn_encoder.planning.data_size import DataSize
from gnn_encoder.planning.disk import run_space
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.outcome import ChooseBundle, Evaluate, Recommend, Report
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.systems import (
    BY_RANKS,
    BY_SCORES,
    CROSS_ENCODER,
    DPR,
    DUAL_ENCODER,
    FIRST_AND_RERANKED,
    FUSIONS,
    GNN_ENCODER,
    LEXICAL,
    QUERY_CLUSTERS,
    QUERY_MEMORY,
    RERANKED,
    SYSTEMS,
    UNTRAINED,
    LabelKind,
    System,
    label_systems,
    served_systems,
    systems_with_models,
)
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.choose_bundle import choose_bundle
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.fuse import fuse
from gnn_encoder.steps.rank import rank
from gnn_encoder.steps.recommend import recommend
from gnn_encoder.steps.report import report

MODELS = {name: Given(f"/models/{name}") for name in ("dual_encoder", "cross_encoder", "gnn_encoder")}
OF_STEP = {"bm25_retrieve": LEXICAL, "dense_retrieve": DPR, "rerank": CROSS_ENCODER}
OF_FUSION = {BY_SCORES: "BM25 + {}", BY_RANKS: "BM25 + {} (RRF)"}


def outputs(graph: Graph, step: str, name: str) -> list[Output]:
    """The artifacts of an input of a step's only call."""
    return [output for key, output in graph[step].artifacts() if key == name and isinstance(output, Output)]


def evaluated(graph: Graph) -> list[str]:
    """The rows of the table of figures."""
    return [
        OF_FUSION.get(output.name, "{}").format(OF_STEP.get(output.node.step) or output.node.label)
        for output in outputs(graph, "evaluate", "runs")
    ]


def rows_of_table() -> list[str]:
    rows = [row for row in SYSTEMS.values() if not row.as_it_is and row.name not in (RERANKED, FIRST_AND_RERANKED)]
    fused = [form.format(row.name) for way, form in OF_FUSION.items() for row in rows if way in row.fusions]
    return [*(row.name for row in rows), *fused]


def test_the_tables_order_is_that_of_the_figures_and_of_recommendations() -> None:
    graph = train(load_settings("quickstart", ["evaluate.rerank_depth=10"]))
    assert evaluated(graph) == rows_of_table() and len(rows_of_table()) > 2 * len(label_systems()) + 4
    recommended: Any = graph["recommend"].settings
    assert recommended.order == served_systems() == tuple(s for s, row in SYSTEMS.items() if row.served)
    bundled = [output.node.label or GNN_ENCODER for output in outputs(graph, "choose_bundle", "bundles")]
    assert sorted([*bundled, LEXICAL]) == sorted(served_systems())
    assert tuple(label_systems()) == get_args(LabelKind)
    assert [row.model for row in systems_with_models()][-1] == "dpr", "the bundle that waits for the recommendation"


NEW = System("Whitened", "The vectors are whitened.", fusions=FUSIONS)
MEAN: Any = System("Query mean", "The mean of its queries.", labels="mean")
LEFT_OUT = (UNTRAINED, QUERY_MEMORY, QUERY_CLUSTERS)
"""By the settings of the tests below."""


def with_a_line(flow: Graph, settings: Settings, speed: Any, /, **inputs: Artifact) -> dict[str, Output]:
    """The line of the graph that makes the new system's bundle, here by the step of a dual encoder's."""
    bundles = bundles_without_training(flow, settings, speed, **inputs)
    bundles[NEW.name] = bundle_of(flow, settings, NEW.name, **inputs)
    return bundles


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a run, with two rows more in the table and the line in the graphs."""
    for row in (NEW, MEAN):
        monkeypatch.setitem(SYSTEMS, row.name, row)
    for pipeline in ("train", "update"):
        monkeypatch.setattr(f"gnn_encoder.pipelines.{pipeline}.bundles_without_training", with_a_line)
    yield Settings(
        encode_with_labels=EncodeWithLabels().model_copy(update={"kinds": ("sum", "mean")}),
        evaluate=Evaluate(
            precision="fp32", untrained_backbone="", candidate=NEW.name, permutations=100, resamples=20, rerank_depth=10
        ),
        recommend=Recommend(),
        train_dual_encoder=TrainDualEncoder(query_length=16, passage_length=24),
    )


def test_a_row_more_is_ranked_fused_and_offered(settings: Settings) -> None:
    graph = train(settings)
    left_out = {name for name in rows_of_table() for system in LEFT_OUT if system in name}
    assert evaluated(graph) == [name for name in rows_of_table() if name not in left_out]
    assert {"BM25 + Whitened", "BM25 + Whitened (RRF)", "BM25 + Query mean"} <= {*evaluated(graph)}
    assert "BM25 + Query mean (RRF)" not in evaluated(graph)
    recommended: Any = graph["recommend"].settings
    assert recommended.order[-3:] == (GNN_ENCODER, NEW.name, MEAN.name)
    bundles = {output.node.title for output in outputs(graph, "choose_bundle", "bundles")}
    assert {"bundle_dual_encoder: Whitened", "encode_with_labels: Query mean"} <= bundles
    forecast = {space.title for space in run_space(settings, DataSize.assumed(1000, 100))}
    assert {"rank: Query mean", "fuse: Whitened"} <= forecast


def test_an_update_makes_the_bundles_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = System("Distilled", "The vectors are a teacher's.", model="distilled")
    monkeypatch.setitem(SYSTEMS, trained.name, trained)
    for models, expected in ((MODELS, False), (MODELS | {"distilled": Given("/models/distilled")}, True)):
        titles = [node.title for node in update(settings, models).nodes]
        assert {"bundle_dual_encoder: Whitened", "encode_with_labels: Query mean"} <= {*titles}
        assert ("bundle_dual_encoder: Distilled" in titles) is expected


def test_it_is_measured_recommended_shown_and_described(
    settings: Settings, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path
) -> None:
    inputs = write_inputs(tmp_path, tiny_dataset, tiny_backbone)
    of: dict[str, Any] = {node.title: node.settings for node in train(settings).nodes}
    data, runs, bundles = {"dataset": inputs["dataset"]}, [inputs["bm25_run"]], []
    models = {name: inputs[name] for name in ("dual_encoder", "passage_vectors")}
    models["bm25_index"] = write_bm25(inputs["dataset"], tmp_path / "bm25_index")
    for system in (DUAL_ENCODER, NEW.name):
        bundles.append(tmp_path / f"bundle {system}")
        bundle_dual_encoder(of[f"bundle_dual_encoder: {system}"], **data, **models, bundle=bundles[-1])
        runs.append(tmp_path / system)
        rank(of[f"rank: {system}"], **data, bundle=bundles[-1], run=runs[-1])
    fusions = {way: tmp_path / way for way in FUSIONS}
    fuse(of[f"fuse: {NEW.name}"], **data, lexical_run=inputs["bm25_run"], dense_run=tmp_path / NEW.name, **fusions)
    evaluation = {"evaluation": tmp_path / "evaluation"}
    evaluate(of["evaluate"], **data, runs=[*runs, *fusions.values()], **evaluation)
    # Both dense systems have the same vectors, so the first of the order is the simplest.
    advice = {"recommendation": tmp_path / "recommendation"}
    recommend(of["recommend"].model_copy(update={"order": (NEW.name, DUAL_ENCODER)}), **data, **evaluation, **advice)
    choose_bundle(ChooseBundle(), **data, **evaluation, **advice, bundles=bundles, chosen_bundle=tmp_path / "chosen")
    report(Report(), **data, **evaluation, **advice, report=tmp_path / "report")
    chosen = Bundle.read(tmp_path / "chosen")
    assert (chosen.system, chosen.serving.system) == ("Whitened", "BM25 + Whitened")
    readme = (chosen.path / README).read_text("utf-8")
    assert "# BM25 + Whitened\n" in readme and "largest inner products. The vectors are whitened. Their" in readme
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "Recommended: BM25 + Whitened" in page and re.search('(data-v="|same figures: [^<]*)Whitened', page)
