"""A run is the same in a new root and in one where a run with other settings was before, in whichever order.

Two indexes of forty passages find the same hits, so that the later steps have equal inputs, which other bundles led to.
"""

import re
import shutil
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from labelled_bundles import write_inputs

from gnn_encoder.artifacts import Bundle, read_manifest
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines.local import CACHE, Call, Engine
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Node
from gnn_encoder.pipelines.train import train
from gnn_encoder.serving.retriever import Retriever
from gnn_encoder.settings.foundation import Bm25Retrieve
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.systems import QUERY_SUM
from gnn_encoder.steps.bm25_retrieve import bm25_retrieve
from gnn_encoder.steps.choose_bundle import choose_bundle
from gnn_encoder.steps.encode_with_labels import encode_with_labels
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.fuse import fuse
from gnn_encoder.steps.rank import rank
from gnn_encoder.steps.recommend import recommend

SETTINGS = {
    "encode_corpus": {"precision": "fp32"},
    "encode_with_labels": {"precision": "fp32", "kinds": ["sum"], "sum_weights": [0.3], "smallest_dev": 10},
    "evaluate": {"precision": "fp32", "baseline": QUERY_SUM, "candidate": QUERY_SUM, "resamples": 20},
}
CHANGES = {
    "nothing": [],
    "hnsw": ["encode_corpus.index=hnsw"],
    "broad hnsw": ["encode_corpus.index=hnsw", "encode_corpus.hnsw_breadth=256"],
    "a setting of no effect": ["encode_corpus.hnsw_breadth=256"],  # the bundle is the same to the byte
    "other labels": ["encode_with_labels.sum_weights=[0.31]"],
    "labels chosen by nDCG": ["evaluate.measures=[nDCG@10, RR@10]"],
    "ivf": ["encode_corpus.index=ivf", "encode_corpus.ivf_lists=2"],
    "two parts": ["encode_corpus.index=flat_fp16", "encode_corpus.index_parts=2"],
    "nothing to fuse with": ["encode_corpus.bm25=false"],
    "another margin": ["recommend.margin=0.5"],
}
"""Name → the settings that differ from `SETTINGS`."""
STEPS = {step.__name__: step for step in (encode_with_labels, rank, fuse, evaluate, recommend, choose_bundle)}
ORDER = ("bundle", "run", "fused", "evaluation", "recommendation", "chosen_bundle")
FAST = ("nothing", "hnsw", "broad hnsw", "a setting of no effect")
PAIRS = [
    pytest.param(*pair, marks=[] if set(pair) <= set(FAST) else pytest.mark.slow) for pair in permutations(CHANGES, 2)
]


class Root:
    """The training pipeline from the bundles on, in this process: its steps, their settings, and a run's cache.

    All roots share the bundles of `encode_with_labels`: that step takes the most time, and its inputs never differ.
    """

    def __init__(self, folder: Path, inputs: Mapping[str, Path], shared: "Root | None" = None) -> None:
        self.folder, self.inputs, self._shared = folder, inputs, shared
        self._engine = Engine(folder, SimpleNamespace())  # type: ignore[arg-type]  # its cache alone: the steps run here
        self.executed: list[str] = []

    def copy(self, folder: Path) -> "Root":
        """A root in which the same steps are in the cache."""
        shutil.copytree(self.folder / CACHE, folder / CACHE)
        return Root(folder, self.inputs, self._shared)

    def step(self, node: Node, **inputs: Any) -> Path:
        """The first output of a call, from the cache if the cache has it."""
        if self._shared and node.step == "encode_with_labels":
            return self._shared.step(node, **inputs)
        arguments = StepArguments(settings=node.settings.model_dump(mode="json"), label=node.label).model_dump_json()
        call = Call(node.step, node.title, arguments, {}, tuple(declared(node.step).outputs))
        addresses = {name: [str(one) for one in (path if isinstance(path, list) else [path])]
                 for name, path in inputs.items()}  # fmt: skip
        key = self._engine._key(call, addresses)
        outputs = self._engine._cached(call, key)
        if outputs is None:
            folder = self.folder / f"{len(self.executed)}"
            self.executed.append(node.title)
            outputs = {name: str(folder / name) for name in call.outputs}
            STEPS[node.step](arguments, **inputs, **outputs)
            self._engine._keep(key, outputs)
        return Path(next(iter(outputs.values())))

    def run(self, change: str) -> dict[str, Path]:
        """Runs all steps with changed settings; returns their outputs."""
        graph = train(parse_settings(SETTINGS, CHANGES[change], source="a test"))
        data = {"dataset": self.inputs["dataset"]}
        models = {name: self.inputs[name] for name in ("dual_encoder", "passage_vectors", "bm25_index")}
        bundle = self.step(graph[f"encode_with_labels: {QUERY_SUM}"], **data, **models)
        run = self.step(graph[f"rank: {QUERY_SUM}"], **data, bundle=bundle)
        ranked = {"lexical_run": self.inputs["bm25_run"], "dense_run": run}
        fused = self.step(graph[f"fuse: {QUERY_SUM}"], **data, **ranked)
        runs = [self.inputs["bm25_run"], run, fused]
        evaluation = self.step(graph["evaluate"], **data, runs=runs)
        advice = self.step(graph["recommend"], **data, evaluation=evaluation)
        artifacts = {"evaluation": evaluation, "recommendation": advice}
        chosen = self.step(graph["choose_bundle"], **data, bundles=[bundle], **artifacts)
        return dict(zip(ORDER, (bundle, run, fused, evaluation, advice, chosen), strict=True))


def content_of(path: Path) -> dict[str, Any]:
    """An artifact's content and origin, without the times of the steps."""
    manifest, history, readme = read_manifest(path), read_history(path), path / README
    return {
        "digest": manifest.digest,
        "made by": (manifest.step, manifest.settings, manifest.inputs),
        "history": {title: (record.settings, record.inputs) for title, record in history.items()},
        "readme": re.sub(r"\| \d+ \|", "| … |", readme.read_text("utf-8")) if readme.exists() else "",
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    inputs = write_inputs(folder, tiny_backbone)
    index = {"bm25_index": inputs["bm25_index"]}
    bm25_retrieve(Bm25Retrieve(), dataset=inputs["dataset"], **index, bm25_run=folder / "bm25_run")
    return inputs | {"bm25_run": folder / "bm25_run"}


@pytest.fixture(scope="module")
def first(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Root, dict[str, Path]]]:
    """Roots of one run each, with its outputs, by change; filled by the tests."""
    return {"": (Root(tmp_path_factory.mktemp("shared"), inputs), {})}


def alone(change: str, first: dict[str, tuple[Root, dict[str, Path]]]) -> tuple[Root, dict[str, Path]]:
    """A root in which only this change has run, and its outputs."""
    if change not in first:
        shared = first[""][0]
        root = Root(shared.folder / "alone" / change, shared.inputs, shared)
        first[change] = root, root.run(change)
    return first[change]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_run_is_the_same_after_any_other(
    before: str, after: str, first: dict[str, tuple[Root, dict[str, Path]]], tmp_path: Path
) -> None:
    root, expected = alone(before, first)[0].copy(tmp_path), alone(after, first)[1]
    outputs = root.run(after)
    assert {name: content_of(path) for name, path in outputs.items()} == {
        name: content_of(path) for name, path in expected.items()
    }
    chosen = Bundle.read(outputs["chosen_bundle"])
    assert chosen.manifest.settings == Bundle.read(outputs["bundle"]).manifest.settings
    executed = list(root.executed)
    assert root.run(after) == outputs and root.executed == executed, "the third time all comes from the cache"


def test_other_indexes_find_the_same_and_a_setting_may_have_no_effect(
    first: dict[str, tuple[Root, dict[str, Path]]],
) -> None:
    """So that the pairs are a trial of the cache."""
    outputs = {change: alone(change, first)[1] for change in FAST}
    digests = {name: {change: read_manifest(of[name]).digest for change, of in outputs.items()} for name in ORDER}
    nothing, hnsw, broad, none = FAST
    assert digests["run"][hnsw] == digests["run"][broad] and digests["bundle"][hnsw] != digests["bundle"][broad]
    assert digests["recommendation"][hnsw] == digests["recommendation"][broad]
    assert all(digests[name][nothing] == digests[name][none] for name in ORDER)
    chosen = outputs[nothing]["chosen_bundle"]
    calibration = Bundle.read(chosen).calibration
    assert calibration and len(calibration.queries) > 10
    scores = [hits[0].score for hits in Retriever.load(chosen).search(calibration.queries, 1)]
    assert calibration.hits.score == pytest.approx(scores, abs=1e-3), "what is calibrated is what is served"
    pages = {change: (of["chosen_bundle"] / README).read_text("utf-8") for change, of in outputs.items()}
    assert {change for change, page in pages.items() if "hnsw_breadth = `256`" in page} == {broad, none}
