"""The rungs that train nothing: their graph is run here, step by step, and once by the command."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import call
from trained_root import tiny_settings, write_beir

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Recommended, Run, drafting, read_manifest
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.artifacts.finished_run import labelled_bundle, place_of
from gnn_encoder.artifacts.history import Record, read_history, write_history
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.climbed import rung_of
from gnn_encoder.engines.climbing import climbing_again, climbs_again, stays
from gnn_encoder.engines.latest import MODELS, linked
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import per_query
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Artifact, Given, Graph
from gnn_encoder.labels.adding import add_labels, opened
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.pipelines.ladder import HYBRID, ladder
from gnn_encoder.pipelines.train import train
from gnn_encoder.promotion.champion import bundle_figures
from gnn_encoder.retrieval.latency import served_path
from gnn_encoder.retrieval.reranking import weighed
from gnn_encoder.retrieval.search import Searcher, bm25_of
from gnn_encoder.serving.exports import export
from gnn_encoder.serving.following import Followed
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, RUNGS, WORDS
from gnn_encoder.settings.systems import FIRST_AND_RERANKED, LEXICAL, RERANKED, UNTRAINED
from gnn_encoder.steps.weigh_reranker import scores_of

QUESTION = "what is the old river"
LINEAR, LEARNED = "Linear fusion, untrained", "Learned fusion, untrained"


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

    def path_of(artifact: Artifact) -> Path:
        if isinstance(artifact, Given):
            return Path(artifact.address)
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


RERANKER = {
    "train_reranker": {
        "epochs": 1, "batch_size": 8, "pair_length": 32, "depth": 20, "negative_depth": 10, "precision": "fp32",
        "learning_rate": 1e-3, "dev_queries": 10, "keep": "last",
    },
    "weigh_reranker": {"above": LABELS},
    "first_stage": {"precision": "fp32"},
}  # fmt: skip


@pytest.fixture(scope="module")
def climbed(data: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The outputs of the rungs up to re-ranking, without a training."""
    training = {**RERANKER["train_reranker"], "backbone": str(tiny_backbone)}
    graph = ladder(settings_of(tiny_backbone, data, **{**RERANKER, "train_reranker": training}), RERANKING)
    assert list(graph.rungs) == [WORDS, AS_IT_IS, LABELS, RERANKING]
    return run_here(graph, tmp_path_factory.mktemp("re-ranked"))


def test_from_raw_text_to_a_decision(climbed: dict[str, Path]) -> None:
    evaluated = Evaluation.read(climbed["evaluate: labels/evaluation"])
    assert list(evaluated.metrics["results"]["test"]) == [LEXICAL, UNTRAINED, LINEAR, LEARNED, HYBRID]
    assert (evaluated.metrics["baseline"], evaluated.metrics["candidate"]) == (HYBRID, LEARNED)
    facts = Recommended.read(climbed["recommend: labels/recommendation"]).facts
    chosen = Bundle.read(climbed["choose_bundle: labels/chosen_bundle"])
    assert chosen.serving.system == facts["system"]
    assert chosen.system == (facts["dense"] if facts["weight"] != 0 else LEXICAL)
    assert Retriever(chosen).search(QUESTION, 3) and Retriever(chosen).search([]) == []


def test_words_alone_may_be_recommended(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    # A margin that no system exceeds: the first in the order is the simplest.
    settings = settings_of(tiny_backbone, data, recommend={"margin": 1.0, "significance": 1e-9})
    outputs_of = run_here(ladder(settings), tmp_path)
    chosen = Bundle.read(outputs_of["choose_bundle: labels/chosen_bundle"])
    assert (chosen.serving.system, chosen.serving.weight, chosen.system) == (LEXICAL, 0.0, LEXICAL)
    assert Retriever(chosen).search(QUESTION, 3)


@pytest.fixture(scope="module")
def of_words(data: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return run_here(ladder(settings_of(tiny_backbone, data), WORDS), tmp_path_factory.mktemp("words"))


def test_the_bundle_of_words_has_no_vectors(of_words: dict[str, Path], tmp_path: Path) -> None:
    bundle = Bundle.read(of_words["choose_bundle: words/chosen_bundle"])
    assert (bundle.system, bundle.serving.weight, bundle.has_vectors) == (LEXICAL, 0.0, False)
    assert not any("vector" in name or "encoder" in name for name in bundle.manifest.files)
    retriever = Retriever(bundle)
    hits = retriever.search(QUESTION, 5)
    (scores,), (rows,) = bm25_of(bundle).search([QUESTION], 5)
    assert [hit.score for hit in hits] == scores[rows >= 0].tolist() and len(hits) > 1
    for one, hit in zip(retriever.explain(QUESTION, 5), hits, strict=True):
        assert one.hit == hit and sum(part.amount for part in one.parts) == pytest.approx(hit.score, rel=1e-5)
    assert Retriever(Bundle.read(of_words["bundle_words: BM25/bundle"])).search(QUESTION, 5) == hits, (
        "before it is chosen"
    )
    for asks in (lambda: retriever.search(QUESTION, fuse=False), lambda: retriever.search(QUESTION, weight=0.5)):
        with pytest.raises(UserError, match="ranks by words alone"):
            asks()
    with pytest.raises(UserError, match="ranks by words alone"):
        export(bundle, "parquet", tmp_path / "export")
    with pytest.raises(UserError, match="was made by bundle_words"):
        opened(bundle)


def test_words_are_served_and_stay_served(of_words: dict[str, Path]) -> None:
    chosen = of_words["choose_bundle: words/chosen_bundle"]
    followed = Followed(str(chosen), chosen.parent)
    assert followed.current.retriever.bundle.system == LEXICAL and not followed.refused


def test_words_are_measured_as_the_run_did(of_words: dict[str, Path]) -> None:
    searcher, data = Searcher(Bundle.read(of_words["bundle_words: BM25/bundle"])), Dataset(of_words["ingest/dataset"])
    evaluated = Evaluation.read(of_words["evaluate: words/evaluation"])
    figures = bundle_figures(searcher, data, "test", ("RR@10",), Evaluate(precision="fp32"))
    assert figures[ALL].mean() == pytest.approx(evaluated.metrics["results"]["test"][LEXICAL]["RR@10"])
    assert searcher.bundle.searched_bytes > 1000


def test_each_rung_is_held_against_those_below() -> None:
    graph = ladder(Settings(), RERANKING)
    assert list(graph.rungs) == [*RUNGS]
    decided = [node for node in graph.nodes if node.step == "promote"]
    assert [node.after[1:] for node in decided] == [(), *((node,) for node in decided[:-1])], "one after the other"
    assert [node.settings.candidate for node in graph.of("evaluate")] == [  # type: ignore[attr-defined]
        LEXICAL, HYBRID, LEARNED, "GNN-encoder", FIRST_AND_RERANKED,
    ]  # fmt: skip
    for rung, outputs in graph.rungs.items():
        assert list(outputs) == ["recommendation", "chosen_bundle", "report", "decision"]
        assert {output.node.label for output in outputs.values()} == {rung}
    sizes = [len(node.inputs["runs"]) for node in graph.of("evaluate")]  # type: ignore[arg-type]
    assert sizes == sorted(set(sizes))
    orders = [node.settings.order for node in graph.of("recommend")]  # type: ignore[attr-defined]
    assert all(set(below) - {"DPR"} < set(above) for below, above in pairwise(orders))
    assert graph["evaluate: training"].settings.baseline == HYBRID  # type: ignore[attr-defined]
    assert [node.label for node in graph.of("fuse_parts")].count("BM25 with labels") == 1


def test_a_bundle_with_a_fusion_has_one_ranking(data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    outputs_of = run_here(ladder(settings_of(tiny_backbone, data, fuse_parts={"kinds": ["linear"]})), tmp_path)
    retriever = Retriever(Bundle.read(outputs_of[f"fuse_parts: {LINEAR}/bundle"]))
    with pytest.raises(UserError, match=f"{LINEAR} ranks by words, too"):
        retriever.search(QUESTION, fuse=True)
    for hit, parts in ((one.hit, one.parts) for one in retriever.explain(QUESTION, 3)):
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-3)
    several = retriever.search([QUESTION, "the hidden violin"], 20)
    for question, hits in zip([QUESTION, "the hidden violin"], several, strict=True):
        assert [hit.passage_id for hit in hits[:5]] == [hit.passage_id for hit in retriever.search(question, 5)]


def test_what_a_rung_recommends_is_reranked_and_judged_with_all_below(climbed: dict[str, Path]) -> None:
    chosen = Bundle.read(climbed["choose_bundle: labels/chosen_bundle"])
    served = System.of(climbed["weigh_reranker/run"]).facts["served"]
    assert (served["dense"], served["system"]) == (chosen.system, chosen.serving.system)
    metrics = Evaluation.read(climbed["evaluate: re-ranking/evaluation"]).metrics
    below = Evaluation.read(climbed["evaluate: labels/evaluation"]).metrics["results"]["test"]
    assert set(metrics["results"]["test"]) == {*below, RERANKED, FIRST_AND_RERANKED}
    assert (metrics["baseline"], metrics["candidate"]) == (HYBRID, FIRST_AND_RERANKED)
    assert (
        metrics["results"]["dev"][FIRST_AND_RERANKED]["RR@10"] >= metrics["results"]["dev"][served["system"]]["RR@10"]
    )
    bundle = Bundle.read(climbed["choose_bundle: re-ranking/chosen_bundle"])
    facts = Recommended.read(climbed["recommend: re-ranking/recommendation"]).facts
    assert bundle.reranker_path and bundle.serving.system == facts["system"]
    assert bundle.serving.reranks is (facts["system"] in (RERANKED, FIRST_AND_RERANKED))
    if facts["system"] == served["system"]:
        assert bundle.serving.reranking and bundle.serving.reranking.weight == served["reranking"]["weight"]


@pytest.mark.parametrize("title", ["rerank: Re-ranked", "weigh_reranker"])
def test_a_reranked_bundle_answers_as_its_run_ranked(title: str, climbed: dict[str, Path], tmp_path: Path) -> None:
    system = System.of(climbed[f"{title}/run"])
    served = {name: value for name, value in system.facts["served"].items() if name != "dense"}
    served["reranking"]["weight"] = served["reranking"]["weight"] or 0.4
    run, data = Run.read(climbed[f"{title}/run"]), Dataset(climbed["ingest/dataset"])
    if title == "weigh_reranker":  # the weight that dev chooses may be 0: of another one
        first, other = (Run.read(climbed[f"{name}/run"]) for name in ("first_stage", "rerank: Re-ranked"))
        first = first.of(np.unique(other.query))
        run = weighed(first, 20, scores_of(other, first.where(first.rank <= 20)), served["reranking"]["weight"])
    with drafting(tmp_path / "bundle", "bundle") as draft:
        chosen, reranker = climbed["choose_bundle: labels/chosen_bundle"], climbed["train_reranker: Re-ranked/reranker"]
        Bundle.read(chosen).serve(draft, Serving.of({**served, "system": system.name}), reranker)
    bundle = Bundle.read(tmp_path / "bundle")
    retriever, rows = Retriever(bundle), data.query_rows("test")
    ids = data.passages.ids().to_pylist()
    for row, hits in zip(rows.tolist(), retriever.search(data.query_texts(rows), 50), strict=True):
        ranked = run.of(np.array([row]), 50)
        assert [hit.passage_id for hit in hits] == [ids[passage] for passage in ranked.passage]
        assert [hit.score for hit in hits] == pytest.approx(ranked.score.tolist(), abs=1e-4)
    first_stage = [hit.passage_id for hit in retriever.search(QUESTION, 20, rerank=False)]
    assert first_stage != [hit.passage_id for hit in retriever.search(QUESTION, 20)], "a control"
    figures = bundle_figures(Searcher(bundle), data, "test", ("RR@10",), Evaluate(precision="fp32"))
    ranks = per_query(run, data.judged("test"), rows, data.judged_ids(), ("RR@10",))
    assert figures[ALL].mean() == pytest.approx(ranks.mean()), "the gate measures what is served"
    assert served_path(Searcher(bundle)).search(served_path(Searcher(bundle)).encode(QUESTION)).rank[0] == 1
    with drafting(tmp_path / "other", "bundle") as draft:
        bundle.copy_to(draft, reranker)
    assert Bundle.read(tmp_path / "other").serving == bundle.serving.first_stage, "the weight was another re-ranker's"


@pytest.fixture
def since(climbed: dict[str, Path], tmp_path: Path) -> Path:
    """The folder of the finished climb, as a command leaves it."""
    for name, output in {
        "dataset": "ingest/dataset", "passage_vectors": "encode/passage_vectors",
        "decision": "promote: re-ranking/decision",
        "recommendation": "recommend: re-ranking/recommendation", "bundle": "choose_bundle: re-ranking/chosen_bundle",
    }.items():  # fmt: skip
        linked(tmp_path / "climbed", name, climbed[output])
    return tmp_path / "climbed" / "latest"


def weights_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def test_an_update_climbs_as_far_with_the_same_reranker(climbed: dict[str, Path], since: Path, tmp_path: Path) -> None:
    assert climbs_again(since)
    again = climbing_again(since, None, [], tmp_path / "root")
    assert list(again.graph.rungs) == [WORDS, AS_IT_IS, LABELS, RERANKING]
    graphs = (again.graph, ladder(again.settings, RERANKING))
    assert [len(graph.of("train_reranker")) for graph in graphs] == [0, 1], "the control: without the re-ranker"
    scorer, trained = again.graph[f"rerank: {RERANKED}"].inputs["scorer"], climbed["train_reranker: Re-ranked/reranker"]
    assert isinstance(scorer, Given)
    assert weights_in(Path(scorer.address)) == weights_in(trained) and weights_in(trained)
    for title, output in (("rerank: Re-ranked", "run"), ("weigh_reranker", "run"), ("evaluate: labels", "evaluation")):
        made = read_manifest(climbed[f"{title}/{output}"]).settings
        assert again.graph[title].settings.model_dump(mode="json") == json.loads(json.dumps(made)), title
    looked = climbing_again(since, None, [], tmp_path / "other", writes=False)
    scorer = looked.graph[f"rerank: {RERANKED}"].inputs["scorer"]
    assert isinstance(scorer, Given) and Bundle.read(scorer.address).reranker_path and not (tmp_path / "other").exists()


@pytest.mark.slow
def test_an_update_of_the_same_data_is_the_same_climb(climbed: dict[str, Path], since: Path, tmp_path: Path) -> None:
    again = climbing_again(since, None, [], tmp_path / "root")
    updated = run_here(again.graph, tmp_path)
    assert read_manifest(updated["encode/passage_vectors"]).metrics["encoded"] == 0
    for rung in (LABELS, RERANKING):
        one, other = (Evaluation.read(of[f"evaluate: {rung}/evaluation"]).metrics for of in (climbed, updated))
        assert one["results"] == other["results"], rung
    before, bundle = (Bundle.read(of["choose_bundle: re-ranking/chosen_bundle"]) for of in (climbed, updated))
    assert bundle.serving == before.serving and bundle.reranker_path and before.reranker_path
    assert weights_in(bundle.reranker_path) == weights_in(before.reranker_path)
    # The next update finds all that it needs in the root of this one.
    for name, output in {
        "decision": "promote: re-ranking/decision",
        "bundle": "choose_bundle: re-ranking/chosen_bundle",
    }.items():
        linked(since.parent, name, updated[output])
    scorers = [
        climb.graph[f"rerank: {RERANKED}"].inputs["scorer"]
        for climb in (again, climbing_again(since, None, [], tmp_path / "root"))
    ]
    assert scorers[0] == scorers[1]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return call(monkeypatch, "run", "--until", *arguments)


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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, *arguments, "--dataset", str(data), "--root", str(tmp_path / "root")) == 2
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
    data: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    changes = [
        f"encode.encoder={tiny_backbone}", "encode.query_length=16", "fuse_parts.kinds=[trees]",
        "evaluate.permutations=50", "encode_with_labels.kinds=[]",
        "recommend.margin=1.0", "recommend.significance=0.000000001", f"shared.backbone={tiny_backbone}",
        "encode.passage_length=24",
    ]  # fmt: skip
    arguments = ["labels", "--dataset", str(data), "--root", str(root), *(w for c in changes for w in ("--set", c))]
    assert command(monkeypatch, *arguments) == 0
    shown = capsys.readouterr().out
    assert "labels, after" in shown and "use        BM25: " in shown
    takes = labelled_bundle(root / "latest")
    assert takes.name == "learned_fusion_untrained"
    assert "count at once" in add_labels(takes, [Wanted("an unheard of word", "p1")]).effect
    assert command(monkeypatch, *arguments) == 0
    read = Dataset(root / "latest" / "dataset").added
    assert [label.query for label in read] == ["an unheard of word"], "the next run reads it"
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "later", "title": "", "text": "a passage that came later"}\n')
    assert call(monkeypatch, "update", "--root", str(root)) == 0
    bundle = Bundle.read(root / "latest" / "bundle")
    assert read_history(bundle.path)["ingest"].metrics["passages"] == len(bundle.passages) == 101
    encoded = read_manifest(root / "latest" / "passage_vectors")
    assert (encoded.metrics["encoded"], encoded.rows["vectors"]) == (1, 101)
    assert rung_of(root / "latest") == "labels" and labelled_bundle(root / "latest").name == takes.name
    assert [label.query for label in Dataset(root / "latest" / "dataset").added] == ["an unheard of word"]
    assert np.isin(["bundle", "dataset", "report"], [path.name for path in (root / "latest").iterdir()]).all()


@pytest.mark.slow
def test_a_whole_climb_puts_a_reranked_bundle_into_service(
    data: Path, tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, preset = tmp_path / "root", tmp_path / "tiny.yaml"
    tree = tiny_settings(tiny_backbone, tiny_seq2seq)
    tree["shared"] |= {"dev_queries": 20}
    tree["encode"] = {"encoder": str(tiny_backbone), "query_length": 16, "passage_length": 24}
    tree["train_reranker"] |= {"depth": 20}
    preset.write_text(yaml.safe_dump(tree))
    arguments = ["re-ranking", "--preset", str(preset), "--dataset", str(data), "--root", str(root)]
    assert command(monkeypatch, *arguments) == 0
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
    models, made = (
        {(latest / name).resolve() for name in MODELS},
        {path.name for path in (latest / "bundles").iterdir()},
    )
    with (data / "corpus.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"_id": "much later", "title": "", "text": "a passage that came much later"}\n')
    assert not climbs_again(latest) and call(monkeypatch, "update", "--root", str(root)) == 0
    updated = Bundle.read(latest / "bundle")
    assert (updated.system, updated.serving.reranking) == (LEARNED, how)
    assert updated.reranker_path and weights_in(updated.reranker_path) == weights_in(bundle.reranker_path)
    assert {hit.passage_id for hit in Retriever(updated).search("a passage that came much later", 3)} >= {"much later"}
    assert models == {(latest / name).resolve() for name in MODELS}, "those of the training"
    assert {path.name for path in (latest / "bundles").iterdir()} == made, "of all rungs"


def test_all_later_steps_read_the_data_with_the_queries_of_a_generator() -> None:
    tree = {"ingest": {"dataset": "/data"}, "write_queries": {"generator": "titles"}}
    for graph in (ladder(parse_settings(tree), RERANKING), train(parse_settings(tree))):
        selected, read = graph["select_queries"], {"index_bm25", "write_queries"}
        assert graph["ingest"].settings.needs == "passages"
        assert selected.inputs["passages"] == graph["ingest"].output
        for node in graph.nodes:
            if "dataset" in node.inputs:
                wanted = graph["ingest"] if node.step in read else selected
                assert node.inputs["dataset"] == wanted.output, node.title
    plain = parse_settings({"ingest": {"dataset": "/data"}})
    needs = [ladder(plain, rung)["ingest"].settings.needs for rung in RUNGS]
    assert needs == ["judged", "judged", "labels", "labels", "labels"]
    assert not {"write_queries", "select_queries"} & {node.step for node in ladder(plain, RERANKING).nodes}
