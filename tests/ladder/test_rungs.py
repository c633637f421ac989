"""The rungs that train nothing, and what each rung is held against."""

from itertools import pairwise
from pathlib import Path

import pytest
from climbs import LEARNED, LINEAR, QUESTION, run_here, settings_of

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Evaluation
from gnn_encoder.errors import UserError
from gnn_encoder.labels.adding import opened
from gnn_encoder.pipelines.ladder import HYBRID, ladder
from gnn_encoder.pipelines.train import train
from gnn_encoder.promotion.champion import bundle_figures
from gnn_encoder.retrieval.search import Searcher, bm25_of
from gnn_encoder.serving.exports import export
from gnn_encoder.serving.following import Followed
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.rungs import RERANKING, RUNGS, WORDS
from gnn_encoder.settings.systems import FIRST_AND_RERANKED, LEXICAL


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
    with pytest.raises(UserError, match="is of BM25 and has no graph of queries"):
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
