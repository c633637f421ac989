"""The rungs that train nothing: their graph is run here, step by step, and once by the command."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained_root import write_beir

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Recommended
from gnn_encoder.artifacts.finished_run import labelled_bundle
from gnn_encoder.cli import app
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Graph, Output
from gnn_encoder.labels.adding import add_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.pipelines.ladder import HYBRID, ladder
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.systems import LEXICAL, UNTRAINED

QUESTION = "what is the old river"


def settings_of(backbone: Path, data: Path, **more: Mapping[str, Any]) -> Settings:
    tree: dict[str, dict[str, Any]] = {
        "ingest": {"dataset": str(data)},
        "encode": {"encoder": str(backbone), "query_length": 16, "passage_length": 24, "precision": "fp32"},
        "encode_with_labels": {"kinds": []},
        "fuse_parts": {"kinds": ["linear", "trees"], "smallest_leaf": 5},
        "evaluate": {"permutations": 50, "resamples": 20, "precision": "fp32"},
    }
    return parse_settings({name: {**tree.get(name, {}), **more.get(name, {})} for name in {*tree, *more}})


def run_here(graph: Graph, folder: Path) -> dict[str, Path]:
    """Calls the steps of a graph one after the other; returns {title/output: folder}."""
    outputs_of: dict[str, Path] = {}

    def path_of(artifact: Output) -> Path:
        return outputs_of[f"{artifact.node.title}/{artifact.name}"]

    for node in graph.nodes:
        step = getattr(import_module(f"gnn_encoder.steps.{node.step}"), node.step)
        inputs = {
            name: [path_of(each) for each in value] if isinstance(value, tuple) else path_of(value)
            for name, value in node.inputs.items()
        }
        target = folder / f"{len(outputs_of):02}"
        outputs = {name: target / name for name in declared(node.step).outputs}
        arguments = StepArguments(settings=node.settings.model_dump(mode="json"), label=node.label)
        step(arguments.model_dump_json(), **inputs, **outputs)
        outputs_of |= {f"{node.title}/{name}": path for name, path in outputs.items()}
    return outputs_of


@pytest.fixture(scope="module")
def data(tiny_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tiny_dataset, tmp_path_factory.mktemp("beir") / "data")


def test_from_raw_text_to_a_decision(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    outputs_of = run_here(ladder(settings_of(tiny_backbone, data)), tmp_path)
    evaluated = Evaluation.read(outputs_of["evaluate/evaluation"])
    assert list(evaluated.metrics["results"]["test"]) == [LEXICAL, UNTRAINED, "Linear fusion", "Learned fusion", HYBRID]
    assert (evaluated.metrics["baseline"], evaluated.metrics["candidate"]) == (HYBRID, "Learned fusion")
    facts = Recommended.read(outputs_of["recommend/recommendation"]).facts
    chosen = Bundle.read(outputs_of["choose_bundle/chosen_bundle"])
    assert (chosen.serving.system, chosen.system) == (facts["system"], facts["dense"])
    assert Retriever(chosen).search(QUESTION, 3) and Retriever(chosen).search([]) == []


def test_words_alone_may_be_recommended(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    # A margin that no system exceeds: the first in the order is the simplest.
    settings = settings_of(tiny_backbone, data, recommend={"margin": 1.0, "significance": 1e-9})
    outputs_of = run_here(ladder(settings), tmp_path)
    chosen = Bundle.read(outputs_of["choose_bundle/chosen_bundle"])
    assert (chosen.serving.system, chosen.serving.weight, chosen.system) == (LEXICAL, 0.0, UNTRAINED)
    assert Retriever(chosen).search(QUESTION, 3)


def test_a_bundle_with_a_fusion_has_one_ranking(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    outputs_of = run_here(ladder(settings_of(tiny_backbone, data, fuse_parts={"kinds": ["linear"]})), tmp_path)
    retriever = Retriever(Bundle.read(outputs_of["fuse_parts: Linear fusion/bundle"]))
    with pytest.raises(UserError, match="Linear fusion ranks by words, too"):
        retriever.search(QUESTION, fuse=True)
    for hit, parts in ((one.hit, one.parts) for one in retriever.explain(QUESTION, 3)):
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-3)
    several = retriever.search([QUESTION, "the hidden violin"], 20)
    for question, hits in zip([QUESTION, "the hidden violin"], several, strict=True):
        assert [hit.passage_id for hit in hits[:5]] == [hit.passage_id for hit in retriever.search(question, 5)]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gnn-encoder", "run", "--until", *arguments])
    with pytest.raises(SystemExit) as caught:
        app.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training"], "--until training: the rung to stop at is labels"),
        (["labels", "--runner", "docker"], "leave out --runner and --memory"),
        (["labels", "--set", "encode_corpus.bm25=false"], "encode_corpus.bm25 = false"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: list[str],
    message: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, *arguments, "--dataset", str(data), "--root", str(tmp_path / "root")) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "root").exists()


@pytest.mark.slow
def test_the_command_leaves_a_root_that_takes_labels(
    data: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    changes = [
        f"encode.encoder={tiny_backbone}", "encode.query_length=16", "fuse_parts.kinds=[trees]",
        "evaluate.permutations=50", "encode_with_labels.kinds=[]",
        "recommend.margin=1.0", "recommend.significance=0.000000001",
    ]  # fmt: skip
    arguments = ["labels", "--dataset", str(data), "--root", str(root), *(w for c in changes for w in ("--set", c))]
    assert command(monkeypatch, *arguments) == 0
    shown = capsys.readouterr().out
    assert "Learned fusion" in shown and "recommends BM25" in shown
    takes = labelled_bundle(root / "latest")
    assert takes.name == "learned_fusion"
    assert "count at once" in add_labels(takes, [Wanted("an unheard of word", "p1")]).effect
    assert command(monkeypatch, *arguments) == 0
    read = Dataset(root / "latest" / "dataset").added
    assert [label.query for label in read] == ["an unheard of word"], "the next run reads it"
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["gnn-encoder", "update", "--root", str(root)])
    with pytest.raises(SystemExit):
        app.main()
    assert "is of a run that trained nothing" in capsys.readouterr().err
    assert np.isin(["bundle", "dataset", "report"], [path.name for path in (root / "latest").iterdir()]).all()
