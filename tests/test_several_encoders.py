"""Several encoders as they are: the ladder ranks with each, a step chooses one on dev, and the run goes on with it."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from climbs import QUESTION, run_here, settings_of
from command_line import call
from conftest import write_tiny_backbone
from packages import packaged
from published_folders import publish
from safetensors.torch import load_file
from trained_root import write_beir

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, Evaluation, Run, drafting, read_manifest, read_vectors
from gnn_encoder.artifacts.dataset import WRITTEN_SPLITS
from gnn_encoder.artifacts.finished_run import labelled_bundle
from gnn_encoder.artifacts.history import of_encoding, read_history
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Graph
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.pipelines.ladder import HYBRID, ladder
from gnn_encoder.settings.foundation import Encode, TrainDpr, TrainDualEncoder
from gnn_encoder.settings.outcome import ChooseEncoder
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, TRAINING
from gnn_encoder.settings.systems import LEXICAL, UNTRAINED
from gnn_encoder.steps.choose_encoder import choose_encoder
from gnn_encoder.training.contrastive import new_dual_encoder

ADDRESS = "http://127.0.0.1:9/v1#some/mini"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another encoder, with vectors of another width."""
    return write_tiny_backbone(tmp_path_factory.mktemp("models") / "narrow", width=16)


def with_others(*encoders: str, **more: Any) -> Settings:
    first, *others = encoders
    return parse_settings({"encode": {"encoder": first, "others": others}, **more})


def test_a_short_name_is_the_last_part_and_unlike_the_others() -> None:
    encoders = ("minilm", "a/MiniLM", ADDRESS, "http://127.0.0.1:9/v1/", "/models/模型", "b/mini_lm", "/models/模/")
    named = Encode(encoder=encoders[0], others=encoders[1:]).by_name
    assert list(named) == ["minilm", "MiniLM 2", "mini", "v1", "模型 5", "mini_lm 6", "模 7"]
    assert [(one.encoder, one.others) for one in named.values()] == [(encoder, ()) for encoder in encoders]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"encoder": "minilm", "others": ["a", "minilm"]}, "the encoder minilm is named twice"),
        ({"encoder": "minilm", "others": ["a"], "vectors": "/here"}, "vectors were made by one encoder"),
        ({"encoder": "minilm", "others": [""]}, "an encoder has no name"),
    ],
)
def test_encoders_that_cannot_be_compared_are_one_line(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        parse_settings({"encode": tree})
    assert "\n" not in str(caught.value)


def test_the_command_refuses_several_encoders_beside_a_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoders = ["--encoder", "minilm", "--encoder", "a/b", "--preset", "quickstart"]
    assert call("run", "--dataset", str(tmp_path), "--root", str(tmp_path / "root"), *encoders) == 2
    error = capsys.readouterr().err
    assert "--encoder is for a run without" in error and error.count("\n") == 1


def titles(graph: Graph) -> list[str]:
    return [node.title for node in graph.nodes]


def test_one_encoder_is_not_compared() -> None:
    graph = ladder(with_others("minilm"), TRAINING)
    assert [node.title for node in (*graph.of("encode"), *graph.of("choose_encoder"))] == ["encode"]
    assert "encoder" not in graph["train_dpr"].inputs and "encoder" not in graph["train_dual_encoder"].inputs
    assert graph.rungs[AS_IT_IS]["decision"].node.inputs["evaluation"] == graph["evaluate: as it is"].output
    assert len(graph["evaluate: as it is"].inputs["runs"]) == 3  # type: ignore[arg-type]


def test_each_encoder_is_ranked_and_the_run_goes_on_with_the_chosen_one() -> None:
    graph, one = ladder(with_others("minilm", "a/other"), TRAINING), ladder(with_others("minilm"), TRAINING)
    more = [
        f"{step}: {label}{name}"
        for step, label in (("encode", ""), *((s, "Untrained: ") for s in ("bundle_dual_encoder", "rank", "fuse")))
        for name in ("minilm", "other")
    ]
    assert {*titles(graph)} == {*titles(one)} - {"encode"} | {*more, "choose_encoder"}
    chosen = graph["choose_encoder"]
    assert chosen.settings == ChooseEncoder(encoders=("minilm", "other"), measure="RR@10")
    fused = tuple(graph[f"fuse: Untrained: {name}"]["convex_run"] for name in ("minilm", "other"))
    assert chosen.inputs["runs"] == fused
    for name, kind in (("encoders", "dual_encoder"), ("vectors", "passage_vectors")):
        assert chosen.inputs[name] == tuple(graph[f"encode: {encoder}"][kind] for encoder in ("minilm", "other"))
    for title in ("bundle_dual_encoder: Untrained", "fuse_parts: Linear fusion, untrained"):
        assert graph[title].inputs["dual_encoder"] == chosen["dual_encoder"]
    assert graph["rank: Untrained"].inputs["passage_vectors"] == chosen["passage_vectors"]
    assert graph["train_dpr"].inputs["encoder"] == graph["train_dual_encoder"].inputs["encoder"]
    assert graph["train_dpr"].inputs["encoder"] == chosen["dual_encoder"]
    assert "encoder" not in ladder(with_others("minilm", ADDRESS), TRAINING)["train_dpr"].inputs, "no weights"
    ranked = [len(graph[f"evaluate: {rung}"].inputs["runs"]) for rung in (AS_IT_IS, LABELS)]  # type: ignore[arg-type]
    assert ranked[0] == 3 + 4 and ranked[1] == len(one["evaluate: labels"].inputs["runs"]), "there alone"  # type: ignore[arg-type]


def test_a_package_of_several_encoders_keeps_their_order() -> None:
    graph = ladder(with_others("minilm", "a/b", "c/d"), AS_IT_IS)
    spec, _ = packaged(Cluster(), graph)
    inputs = spec["root"]["dag"]["tasks"]["choose-encoder"]["inputs"]["artifacts"]
    for key, step in (("runs", "fuse-untrained"), ("encoders", "encode"), ("vectors", "encode")):
        made_by = [inputs[f"{key}_{number}"]["taskOutputArtifact"]["producerTask"] for number in range(3)]
        assert made_by == [f"{step}-{name}" for name in ("minilm", "b", "d")]


def written(folder: Path, data: Dataset) -> tuple[list[Path], list[Path], list[Path], list[float]]:
    """Runs, encoders and vectors of three encoders, with the reciprocal rank of each on dev by a plain loop."""
    dev, labels = data.query_rows("dev"), data.split_qrels("dev")
    positive = dict(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    runs, encoders, vectors, figures = [], [], [], []
    for seed in range(3):
        hits = np.stack([np.random.default_rng([seed, int(query)]).permutation(100)[:30] for query in dev])
        with drafting(folder / f"run{seed}", "run") as draft:
            Run.from_hits(dev, hits, np.tile(-np.arange(30.0), (len(dev), 1))).write(draft, f"system {seed}")
        for schema in ("model", "vectors"):
            with drafting(folder / f"{schema}{seed}", schema) as draft:
                (draft / "content").write_text(f"of {seed}")
                draft.rows(vectors=seed)
        ranks = [np.flatnonzero(row[:10] == positive[query]) for query, row in zip(dev.tolist(), hits, strict=True)]
        figures.append(sum(1 / (rank[0] + 1) for rank in ranks if len(rank)) / len(dev))
        runs.append(folder / f"run{seed}")
        encoders.append(folder / f"model{seed}")
        vectors.append(folder / f"vectors{seed}")
    return runs, encoders, vectors, figures


def chosen_of(folder: Path, data: Path, runs: list[Path], encoders: list[Path], vectors: list[Path]) -> dict[str, Any]:
    names = tuple(f"encoder {number}" for number in range(len(runs)))
    outputs = {"dual_encoder": folder / "dual_encoder", "passage_vectors": folder / "passage_vectors"}
    choose_encoder(
        ChooseEncoder(encoders=names), dataset=data, runs=runs, encoders=encoders, vectors=vectors, **outputs
    )
    metrics = read_manifest(outputs["dual_encoder"]).metrics
    number = int(metrics["chosen"].split()[1])
    for kind, path in outputs.items():
        assert (path / "content").read_text() == (encoders[number] / "content").read_text(), kind
    assert read_manifest(outputs["passage_vectors"]).rows == read_manifest(vectors[number]).rows
    return metrics


def test_the_best_on_dev_is_chosen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    runs, encoders, vectors, figures = written(tmp_path, tiny_dataset)
    assert all(a != b for a, b in pairwise(sorted(figures)))
    metrics = chosen_of(tmp_path / "out", tiny_dataset.path, runs, encoders, vectors)
    assert metrics["chosen"] == f"encoder {int(np.argmax(figures))}"
    assert [metrics[f"dev/encoder {number}"] for number in range(3)] == pytest.approx(figures)
    assert f"on dev, MRR@10: encoder 0 {figures[0]:.3f}, encoder 1 {figures[1]:.3f}" in metrics["headline"]
    generated = tmp_path / "generated"
    shutil.copytree(tiny_dataset.path, generated)
    (generated / WRITTEN_SPLITS).write_text('{"splits": ["dev"], "quoting": false}')
    headline = chosen_of(tmp_path / "of-generated", generated, runs, encoders, vectors)["headline"]
    assert "on dev, on generated queries, MRR@10: encoder 0" in headline
    swapped = [*runs[1:], runs[0]]
    metrics = chosen_of(tmp_path / "swapped", tiny_dataset.path, swapped, encoders, vectors)
    assert (
        metrics["chosen"] == f"encoder {int(np.argmax([*figures[1:], figures[0]]))}" != f"encoder {np.argmax(figures)}"
    )
    equal = chosen_of(tmp_path / "equal", tiny_dataset.path, [runs[0]] * 3, encoders, vectors)
    assert equal["chosen"] == "encoder 0", "the first of equals"


def test_without_dev_labels_the_first_is_chosen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    runs, encoders, vectors, figures = written(tmp_path, tiny_dataset)
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p"], [""], ["a"])
        writer.queries(["q"], ["a"], ["test"], [[]])
        writer.qrels(["q"], ["p"], [1], [0], [0])
        writer.close()
    order = np.argsort(figures)
    some = [[paths[i] for i in order] for paths in (runs, encoders, vectors)]
    metrics = chosen_of(tmp_path / "out", tmp_path / "data", *some)
    assert metrics["chosen"] == "encoder 0" and "the first named" in metrics["headline"]


@pytest.mark.parametrize("settings", [TrainDpr(backbone="none"), TrainDualEncoder(backbone="none")])
def test_a_training_starts_from_the_chosen_encoder(
    settings: TrainDpr | TrainDualEncoder, tmp_path: Path, tiny_backbone: Path, narrow: Path
) -> None:
    lengths = {"query_length": 9, "passage_length": 11}
    published = DualEncoder.from_backbone(
        str(narrow), pooling="mean", normalize="yes", share_encoders=True, query_length=5, passage_length=6
    )
    published.save(tmp_path)
    model = new_dual_encoder(settings.model_copy(update=lengths), tmp_path)
    assert (model.query_encoder.max_length, model.passage_encoder.max_length) == (9, 11)
    assert not model.shared and model.passage_encoder.pooling == "mean" and model.passage_encoder.normalize
    state = published.passage_encoder.backbone.state_dict()
    for encoder in (model.query_encoder, model.passage_encoder):
        assert all(torch.equal(value, state[name]) for name, value in encoder.backbone.state_dict().items())
    from_settings = new_dual_encoder(settings.model_copy(update={"pooling": "cls", "share_encoders": True}), tmp_path)
    assert (
        from_settings.shared
        and from_settings.passage_encoder.pooling == "cls"
        and from_settings.passage_encoder.normalize
    )
    other = new_dual_encoder(settings.model_copy(update={"backbone": str(tiny_backbone)}))
    assert other.passage_encoder.width != model.passage_encoder.width and other.passage_encoder.pooling == "cls"


@pytest.fixture(scope="module")
def data(tiny_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tiny_dataset, tmp_path_factory.mktemp("beir") / "data")


def test_the_tables_show_each_encoder_and_say_which_goes_on(
    data: Path, tiny_backbone: Path, narrow: Path, tmp_path: Path
) -> None:
    prompts = {"query": "what is the ", "document": "the old "}
    asker = publish(narrow, tmp_path / "asker", "cls", prompts=prompts)
    settings = settings_of(tiny_backbone, data, encode={"others": [str(asker)]})
    outputs = run_here(ladder(settings, AS_IT_IS), tmp_path)
    choice = read_manifest(outputs["choose_encoder/passage_vectors"])
    chosen = choice.metrics["chosen"]
    named = ("bert", "asker")
    assert chosen == max(named, key=lambda name: choice.metrics[f"dev/{name}"])
    np.testing.assert_array_equal(
        read_vectors(outputs["choose_encoder/passage_vectors"]),
        read_vectors(outputs[f"encode: {chosen}/passage_vectors"]),
    )
    said = {name: read_manifest(outputs[f"encode: {name}/dual_encoder"]).metrics["headline"] for name in named}
    assert "a query begins with 'what is the '; a document begins with 'the old '" in said["asker"]
    assert "begins with" not in said["bert"]
    metrics = Evaluation.read(outputs[f"evaluate: {AS_IT_IS}/evaluation"]).metrics
    for split, results in metrics["results"].items():
        systems = [f"{UNTRAINED}: {name}" for name in named]
        assert list(results) == [LEXICAL, UNTRAINED, HYBRID, *systems, *(f"{LEXICAL} + {system}" for system in systems)]
        assert (
            results[UNTRAINED] == results[f"{UNTRAINED}: {chosen}"]
            and results[HYBRID] == results[f"{HYBRID}: {chosen}"]
        )
        if split == "dev":
            for name in named:
                assert results[f"{HYBRID}: {name}"]["RR@10"] == pytest.approx(choice.metrics[f"dev/{name}"])
    assert metrics["remarks"][0].startswith(f"{UNTRAINED} is {chosen} (with BM25 on dev, MRR@10: bert ")
    bundle = Bundle.read(outputs[f"choose_bundle: {AS_IT_IS}/chosen_bundle"])
    assert of_encoding(read_history(bundle.path)).settings["encoder"].endswith(chosen)
    assert Retriever(bundle).search(QUESTION, 3)


@pytest.mark.slow
def test_a_climb_serves_the_chosen_encoder_and_an_update_encodes_with_it_alone(
    data: Path, tiny_backbone: Path, narrow: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root, latest = tmp_path / "root", tmp_path / "root" / "latest"
    changes = ["fuse_parts.kinds=[linear]", "evaluate.permutations=50", "encode_with_labels.kinds=[]"]
    arguments = ["run", "--verbose", "--until", "labels", "--dataset", str(data), "--root", str(root)]
    arguments += [word for encoder in (tiny_backbone, narrow) for word in ("--encoder", str(encoder))]
    arguments += [word for change in changes for word in ("--set", change)]
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert "bert, narrow; the best on dev" in shown and "Untrained: narrow" in shown
    choice = read_history(latest / "decision")["choose_encoder"].metrics
    chosen = {"bert": tiny_backbone, "narrow": narrow}[choice["chosen"]]
    weights = load_file(chosen / "model.safetensors")
    served = labelled_bundle(latest)
    theirs = load_file(next(served.resolve().rglob("model.safetensors")))
    assert len(theirs) > 20 and all(torch.equal(value, weights[name]) for name, value in theirs.items())
    assert Retriever(Bundle.read(served)).search("a question", 5)
    for name in ("bert", "narrow"):
        assert call("search", "a question", "--bundle", str(latest / "bundles" / f"untrained_{name}")) == 0
    assert call(*arguments, "--dry-run") == 0, "the plan is kept"
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "later", "title": "", "text": "a passage that came later"}\n')
    assert call("update", "--root", str(root)) == 0
    encoded = read_manifest(latest / "passage_vectors")
    assert encoded.step == "encode" and encoded.settings["encoder"] == str(chosen) and not encoded.settings["others"]
    assert (encoded.metrics["encoded"], encoded.rows["vectors"]) == (1, 101), (
        "texts that it knows are not encoded again"
    )
    assert call("update", "--root", str(root)) == 0, "and once more"
