"""Graphs: what is refused while one is made, tasks that share work, and the graphs of all presets."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.flow.graph import Given, Graph, Node, Output
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import DenseRetrieve, Ingest
from gnn_encoder.settings.outcome import Evaluate, Fuse, Rank
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings, preset_names
from gnn_encoder.settings.reranking_systems import RERANKING_STUDIES, SYSTEMS
from gnn_encoder.settings.rungs import RUNGS, STAGES
from gnn_encoder.settings.studies import STUDIES, variants

DATA, RUN = Given("/data"), Given("s3://bucket/run")
MODELS = {name: Given(f"/models/{name}") for name in ("dual_encoder", "cross_encoder", "gnn_encoder")}


@pytest.mark.parametrize(
    ("step", "settings", "inputs", "words"),
    [
        ("index_bm25", IndexBm25(), {"dataset": DATA, "data": DATA}, "index_bm25 has no input data"),
        ("index_bm25", IndexBm25(), {"dataset": DATA, "bm25_index": DATA}, "has no input bm25_index"),  # its output
        ("index_bm25", IndexBm25(), {}, "index_bm25 needs dataset"),
        ("index_bm25", IndexBm25(), {"dataset": None}, "index_bm25 needs dataset"),
        ("index_bm25", IndexBm25(), {"dataset": [DATA]}, "dataset is not a list"),
        ("evaluate", Evaluate(), {"dataset": DATA, "runs": RUN}, "evaluate: runs is a list"),
        ("index_bm25", Ingest(), {"dataset": DATA}, "index_bm25 takes IndexBm25, not Ingest"),
    ],
)
def test_what_a_step_does_not_declare_is_a_type_error(
    step: str, settings: Any, inputs: dict[str, Any], words: str
) -> None:
    graph = Graph("wrong")
    with pytest.raises(TypeError, match=words):
        graph.add(step, settings, **inputs)
    assert graph.nodes == []


def test_a_call_has_its_inputs_in_the_steps_order_and_without_those_that_are_none() -> None:
    graph = Graph("right")
    rank = graph.add("rank", Rank(system="A"), "A", bundle=None, dataset=DATA)
    assert dict(rank.inputs) == {"dataset": DATA} and rank.output == rank["run"] == Output(rank, "run")
    evaluate = graph.add("evaluate", Evaluate(), "", [rank], runs=[RUN, rank.output], dataset=DATA)
    assert list(evaluate.artifacts()) == [("dataset", DATA), ("runs", RUN), ("runs", rank.output)]
    assert list(evaluate.before()) == [rank, rank]
    assert graph["rank: A"] is rank and graph.of("evaluate") == [evaluate]
    fuse = graph.add("fuse", Fuse(), dataset=DATA, lexical_run=RUN, dense_run=rank.output)
    assert fuse["convex_run"] != fuse["reciprocal_run"]
    with pytest.raises(ValueError):
        _ = fuse.output  # one of two
    with pytest.raises(KeyError, match="fuse has no output run"):
        fuse["run"]
    with pytest.raises(KeyError, match="no_step"):
        graph.add("no_step", Ingest())


def test_two_calls_of_one_title_are_a_type_error() -> None:
    graph = Graph("twice")
    graph.add("rank", Rank(system="A"), dataset=DATA)
    graph.add("rank", Rank(system="A"), "A", dataset=DATA)
    for label, title in (("", "rank"), ("A", "rank: A")):
        with pytest.raises(TypeError, match=f"two calls are named {title}$"):
            graph.add("rank", Rank(system="B"), label, dataset=DATA)


def test_a_single_task_is_the_step_and_several_are_merged() -> None:
    inputs = {"dataset": DATA, "dpr": Given("/dpr")}
    alone = Graph("alone")
    output = alone.parallel("dense_retrieve", DenseRetrieve(), **inputs)
    assert [node.title for node in alone.nodes] == ["dense_retrieve"] and output == alone.nodes[0].output

    shared = Graph("shared")
    merged = shared.parallel("dense_retrieve", DenseRetrieve(shards=3, train_depth=7), **inputs)
    *tasks, merge = shared.nodes
    assert [task.title for task in tasks] == [f"dense_retrieve: {i} of 3" for i in (1, 2, 3)]
    assert [task.settings for task in tasks] == [
        DenseRetrieve(shards=3, shard=shard, train_depth=7) for shard in (0, 1, 2)
    ]
    assert all(dict(task.inputs) == inputs for task in tasks)
    assert (merge.title, merged) == ("merge: dense_retrieve", merge.output)
    assert list(merge.artifacts()) == [*(("parts", task.output) for task in tasks), ("dataset", DATA)]


@pytest.mark.parametrize("has_bm25", [True, False])
def test_bundles_read_an_index_of_words_only_if_they_have_one(has_bm25: bool) -> None:
    settings = load_settings("quickstart", [f"encode_corpus.bm25={str(has_bm25).lower()}"])
    updated = update(settings, {**MODELS, "converged": Given("/c"), "dpr": Given("/d")})
    assert len(updated.of("index_bm25")) == has_bm25
    for graph in (train(settings), updated):
        bundled = [node for node in graph.nodes if declared(node.step).outputs.keys() == {"bundle"}]
        assert len(bundled) > 3 and all(("bm25_index" in node.inputs) is has_bm25 for node in bundled)


def graphs(settings: Settings) -> Iterator[tuple[set[str], Graph]]:
    """The graphs of all pipelines with some settings, each with the steps that are its ends."""
    yield {"promote"}, train(settings)
    for rung in RUNGS if settings.encode_corpus.bm25 else ():
        yield {"promote"}, ladder(settings, rung)
    yield {"choose_bundle"}, update(settings, MODELS)
    yield {"choose_bundle"}, update(settings, {**MODELS, "converged": Given("/c"), "dpr": Given("/d")})
    yield {"compare_variants"}, ablation(settings, variants(settings, STUDIES, ()), 2)
    yield {"promote"}, rerank(settings, list(SYSTEMS), "", Given("/bundle"))
    ends = {"report", "choose_reranker"}
    for name in ("colbert", "ss_bert_h", "colbert_distilled", "lim"):  # one of each kind of triples
        yield ends, rerank(settings, [name])
    for study in RERANKING_STUDIES:
        yield ends | {"compare_rerankers"}, rerank(settings, settings.train_reranker.studied(study), study)


CHANGES = {
    "as it is": (),
    "nothing more than needed": (
        "train_converged.epochs=0", "encode_with_labels.kinds=[]", "evaluate.untrained_backbone=''",
        "recommend.order=[Dual encoder]", "encode_corpus.bm25=false",
    ),
    "a choice of graphs": ("choose_graph.variants={one: {train_gnn.epochs: 9}}", "evaluate.rerank_depth=10"),
    "several encoders": ("encode.others=[a/mini, http://here/v1#large]",),
    "several tasks": (
        "bm25_retrieve.shards=3", "dense_retrieve.shards=3", "generate_queries.shards=3", "encode_corpus.shards=3",
        "evaluate.rerank_shards=2", "evaluate.rerank_depth=10", "build_graph.shards=3",
    ),
}  # fmt: skip
"""Name → settings that change which nodes a graph has."""


@pytest.mark.parametrize(
    ("preset", "changes"),
    [*((name, "as it is") for name in preset_names()), *(("quickstart", name) for name in CHANGES if CHANGES[name])],
)
def test_every_graph_has_what_it_needs_in_an_order_that_works(preset: str, changes: str) -> None:
    for ends, graph in graphs(load_settings(preset, CHANGES[changes])):
        assert graph.description, "KFP's pages show it"
        earlier: list[Node] = []
        for node in graph.nodes:
            assert all(before in earlier for before in node.before()), (
                f"{graph.name}: {node.title} reads what is not there"
            )
            earlier.append(node)
        read = {before for node in graph.nodes for before in node.before()}
        unread = {node.step for node in graph.nodes if node not in read}
        assert unread == ends, f"{graph.name}: nobody reads {unread - ends}"
        ingest: Any = graph["ingest"].settings
        best = {
            f"{node.step}.keep"
            for node in graph.nodes
            if getattr(node.settings, "keep", "") == "best" and not getattr(node.settings, "patience", 0)
        }
        assert best <= {*ingest.chosen_on_dev}, "data without dev queries are refused at once"


def test_what_follows_a_choice_of_graphs_reads_the_chosen_one() -> None:
    graph = train(load_settings("quickstart", CHANGES["a choice of graphs"]))
    chosen = graph["choose_graph"]["chosen_graph"]
    readers = {node.title for node in graph.nodes if chosen in [artifact for _, artifact in node.artifacts()]}
    assert readers == {"train_gnn", "encode_nodes", "encode_corpus", "choose_bundle", "report", "promote"}
    others = {node.title for node in graph.nodes if graph["build_graph"]["graph"] in [a for _, a in node.artifacts()]}
    assert others == {"choose_graph"}


def test_ingest_knows_what_is_chosen_on_dev() -> None:
    settings = load_settings("quickstart", ["train_gnn.keep=best", "train_reranker.keep=best", "train_dpr.keep=last"])

    def chosen_on_dev(graph: Graph) -> tuple[str, ...]:
        return graph["ingest"].settings.model_dump()["chosen_on_dev"]

    assert chosen_on_dev(train(settings)) == ("train_gnn.keep",)
    assert chosen_on_dev(ablation(settings, variants(settings, (), ()), 1)) == ("train_gnn.keep",)
    assert chosen_on_dev(rerank(settings, ["colbert", "k_nrm"])) == ("train_reranker.keep",)
    assert chosen_on_dev(update(settings, MODELS)) == ()


def test_a_run_has_its_stages_one_after_the_other() -> None:
    settings = load_settings("quickstart")

    def stages(graph: Graph) -> list[str]:
        return [stage for stage, _ in itertools.groupby(node.stage for node in graph.nodes)]

    every = ["prepare", "as it is", "labels", "train", "re-rank", "decide"]
    assert stages(ladder(settings, RUNGS[-1])) == every
    assert [stages(ladder(settings, rung))[-2:] for rung in RUNGS] == [[stage, "decide"] for stage in every[:-1]]
    assert stages(train(settings)) == ["prepare", "train", "decide"]
    assert stages(rerank(settings, ["cross_encoder"])) == ["prepare", "re-rank", "decide"]
    assert stages(update(settings, MODELS)) == ["prepare", "update"]
    graph = ladder(settings, "as it is")
    assert (graph["promote: words"].stage, graph["promote: as it is"].stage) == ("prepare", "decide")
    assert {*every} <= STAGES.keys() and {*STAGES.values()} <= {*step_names()}
