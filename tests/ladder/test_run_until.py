"""`gnn-encoder run --until`: what it refuses, leaves in `latest`, and puts into service."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from climbs import LEARNED, QUESTION, weights_in
from command_line import call
from trained_root import tiny_settings

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, drafting, read_manifest
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.artifacts.finished_run import labelled_bundle, place_of
from gnn_encoder.artifacts.history import Record, read_history, write_history
from gnn_encoder.engines.climbed import rung_of
from gnn_encoder.engines.climbing import climbs_again, stays
from gnn_encoder.engines.latest import MODELS, linked
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.labels.adding import add_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.settings.systems import FIRST_AND_RERANKED


def command(*arguments: str) -> int:
    return call("run", "--until", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["label"], "--until label: did you mean 'labels'? known are as-it-is, labels, re-ranking, training, words"),
        (["labels", "--runner", "docker"], "no --runner and --memory"),
        (["labels", "--preset", "quickstart", "--set", "encode_corpus.bm25=false"], "encode_corpus.bm25 = false"),
        (["labels", "--budget", "soon"], "--budget soon"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: list[str],
    message: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(*arguments, "--dataset", str(data), "--root", str(tmp_path / "root")) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "root").exists()


def test_a_lower_rung_leaves_a_higher_one_in_latest(tmp_path: Path) -> None:
    def written(name: str, title: str, schema: str, dataset: str = "here") -> Path:
        with drafting(tmp_path / name, schema) as draft:
            (draft / "content.txt").write_text(name)
            write_history(draft.path, {title: Record()})
            draft.manifest.step, draft.manifest.settings = title, {"dataset": dataset}
        return tmp_path / name

    data, latest = written("dataset", "ingest", "dataset"), tmp_path / "root" / "latest"
    outcome = Outcome(rung="as it is", outputs={"dataset": data})
    assert not stays(latest, outcome), "an empty root"
    for name, title in (("dataset", "ingest"), ("bundle", "choose_bundle"), ("recommendation", "recommend: labels")):
        linked(tmp_path / "root", name, written(f"old {name}", title, name))
    for rung, higher in (("words", True), ("as it is", True), ("labels", False), ("training", False)):
        assert stays(latest, replace(outcome, rung=rung)) is higher, rung
    other = replace(outcome, outputs={"dataset": written("other", "ingest", "dataset", "elsewhere")})
    assert not stays(latest, other), "of other data"
    linked(tmp_path / "root", "graph", data)
    assert stays(latest, replace(outcome, rung="labels")), "a training's"
    assert stays(latest, replace(outcome, rung="re-ranking")), "above labels alone"
    trained = replace(outcome, outputs={**outcome.outputs, "graph": data})
    assert not stays(latest, replace(trained, rung="training"))
    advice = written("re-ranked", "recommend: re-ranking", "recommendation")
    linked(tmp_path / "root", "recommendation", advice)
    assert stays(latest, replace(trained, rung="training")) and not stays(latest, replace(trained, rung="re-ranking"))
    (tmp_path / "root" / "latest" / "graph").unlink()
    assert not stays(latest, replace(trained, rung="training")), "it re-ranked what labels gave"


@pytest.mark.slow
def test_the_command_leaves_a_root_that_takes_labels(
    data: Path, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    changes = [
        f"encode.encoder={tiny_backbone}", "encode.query_length=16", "fuse_parts.kinds=[trees]",
        "evaluate.permutations=50", "encode_with_labels.kinds=[]",
        "recommend.margin=1.0", "recommend.significance=0.000000001", f"shared.backbone={tiny_backbone}",
        "encode.passage_length=24",
    ]  # fmt: skip
    arguments = ["labels", "--dataset", str(data), "--root", str(root), *(w for c in changes for w in ("--set", c))]
    assert command(*arguments) == 0
    shown = capsys.readouterr().out
    assert "labels, after" in shown and "use        BM25: " in shown
    takes = labelled_bundle(root / "latest")
    assert takes.name == "learned_fusion_untrained"
    assert "count at once" in add_labels(takes, [Wanted("an unheard of word", "p1")]).effect
    assert command(*arguments) == 0
    read = Dataset(root / "latest" / "dataset").added
    assert [label.query for label in read] == ["an unheard of word"], "the next run reads it"
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "later", "title": "", "text": "a passage that came later"}\n')
    assert call("update", "--root", str(root)) == 0
    bundle = Bundle.read(root / "latest" / "bundle")
    assert read_history(bundle.path)["ingest"].metrics["passages"] == len(bundle.passages) == 101
    encoded = read_manifest(root / "latest" / "passage_vectors")
    assert (encoded.metrics["encoded"], encoded.rows["vectors"]) == (1, 101)
    assert rung_of(root / "latest") == "labels" and labelled_bundle(root / "latest").name == takes.name
    assert [label.query for label in Dataset(root / "latest" / "dataset").added] == ["an unheard of word"]
    assert np.isin(["bundle", "dataset", "report"], [path.name for path in (root / "latest").iterdir()]).all()


@pytest.mark.slow
def test_a_whole_climb_puts_a_reranked_bundle_into_service(
    data: Path, tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path
) -> None:
    root, preset = tmp_path / "root", tmp_path / "tiny.yaml"
    tree = tiny_settings(tiny_backbone, tiny_seq2seq)
    tree["shared"] |= {"dev_queries": 20}
    tree["encode"] = {"encoder": str(tiny_backbone), "query_length": 16, "passage_length": 24}
    tree["train_reranker"] |= {"depth": 20}
    preset.write_text(yaml.safe_dump(tree))
    arguments = ["re-ranking", "--preset", str(preset), "--dataset", str(data), "--root", str(root)]
    assert command(*arguments) == 0
    latest = root / "latest"
    assert rung_of(latest) == "re-ranking" and (latest / "graph").exists()
    (chosen,) = (root / "pipeline").glob("*/choose-bundle-training/chosen_bundle")
    assert read_history(latest / "decision")["first_stage"].inputs["bundle"] == read_manifest(chosen).digest
    bundle = Bundle.read(latest / "bundle")
    assert bundle.reranker_path and Retriever(bundle).search(QUESTION, 3, rerank=True)
    assert Retriever(bundle).reranks() is bundle.serving.reranks
    # It might have recommended what labels give the encoder as it is, re-ranked.
    how = Reranking(LEARNED, 0.4, 20)
    with drafting(tmp_path / "re-ranked", "bundle") as draft:
        fused = Bundle.read(latest / place_of(LEARNED))
        fused.serve(draft, Serving(FIRST_AND_RERANKED, None, reranking=how), bundle.reranker_path)
    linked(root, "bundle", tmp_path / "re-ranked")
    models, bundle_names = (
        {(latest / name).resolve() for name in MODELS},
        {path.name for path in (latest / "bundles").iterdir()},
    )
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "much later", "title": "", "text": "a passage that came much later"}\n')
    assert not climbs_again(latest) and call("update", "--root", str(root)) == 0
    updated = Bundle.read(latest / "bundle")
    assert (updated.system, updated.serving.reranking) == (LEARNED, how)
    assert updated.reranker_path and weights_in(updated.reranker_path) == weights_in(bundle.reranker_path)
    assert {hit.passage_id for hit in Retriever(updated).search("a passage that came much later", 3)} >= {"much later"}
    assert models == {(latest / name).resolve() for name in MODELS}, "those of the training"
    assert {path.name for path in (latest / "bundles").iterdir()} == bundle_names, "of all rungs"
