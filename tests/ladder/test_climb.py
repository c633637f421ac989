"""A climb up to re-ranking, run step by step, and its update."""

import json
from pathlib import Path

import numpy as np
import pytest
from climbs import LEARNED, LINEAR, QUESTION, run_here, settings_of, weights_in

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Recommended, Run, drafting, read_manifest
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.climbing import climbing_again, climbs_again
from gnn_encoder.engines.latest import linked
from gnn_encoder.evaluation.measures import per_query
from gnn_encoder.flow.graph import Given
from gnn_encoder.pipelines.ladder import HYBRID, ladder
from gnn_encoder.promotion.champion import bundle_figures
from gnn_encoder.retrieval.latency import served_path
from gnn_encoder.retrieval.reranking import weighed
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, WORDS
from gnn_encoder.settings.systems import FIRST_AND_RERANKED, LEXICAL, RERANKED, UNTRAINED
from gnn_encoder.steps.weigh_reranker import scores_of

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
        settings = read_manifest(climbed[f"{title}/{output}"]).settings
        assert again.graph[title].settings.model_dump(mode="json") == json.loads(json.dumps(settings)), title
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
