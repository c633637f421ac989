"""The settings of single systems of the re-ranking pipeline, and settings that a re-ranker cannot have."""

from typing import Any

import pytest
from pydantic import ValidationError

from gnn_encoder.cli.options import named_systems
from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Node
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.outcome import EncodeNodes, Evaluate, Rerank
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings, parse_settings
from gnn_encoder.settings.reranking import PropagateSections, TrainReranker
from gnn_encoder.settings.reranking_systems import RERANKING_STUDIES, system_names


def test_a_kind_keeps_its_papers_numbers_unless_its_own_section_sets_others() -> None:
    general = {"batch_size": 64, "head_learning_rate": 1e-4}
    for settings in (TrainReranker(), TrainReranker.model_validate(general)):
        of_system = settings.for_system("k_nrm")
        assert (of_system.batch_size, of_system.adam_epsilon, of_system.weight_decay, of_system.head_learning_rate) == (
            16,
            1e-5,
            0.0,
            1e-3,
        )
    of_system = TrainReranker.model_validate(general | {"systems": {"k_nrm": {"batch_size": 32}}})
    assert (of_system.for_system("k_nrm").batch_size, of_system.for_system("k_nrm").head_learning_rate) == (32, 1e-3)
    assert (of_system.for_system("qa_lstm").batch_size, of_system.for_system("qa_lstm").head_learning_rate) == (
        64,
        1e-4,
    )


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("colbert_distilled", {"loss": "pairwise_softmax"}, "cannot have loss"),
        ("ss_bert_h", {"triples": "labelled"}, "cannot have triples"),
        ("k_nrm", {"episodes": 2, "learning_rate": 1e-3}, "cannot have episodes, learning_rate"),
        ("bert_dmn_lite", {"learning_rate": 1e-3}, "cannot have learning_rate"),
        ("colbert", {"margin": 0.5}, "cannot have margin"),
        ("colbert", {"depth": 10}, "cannot have depth"),
        ("ss_bert_d", {"epochs": 3}, "systems.ss_bert_d trains nothing: set systems.ss_bert_h"),
    ],
)
def test_a_systems_setting_without_effect_is_refused(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainReranker(systems={name: changes})


def test_a_systems_setting_has_an_effect_together_with_another() -> None:
    changes = {"loss": "pairwise_margin", "margin": 0.5}
    assert TrainReranker(systems={"colbert": changes}).for_system("colbert").margin == 0.5


def test_a_system_draws_negatives_from_hits_that_the_first_stage_has() -> None:
    for depth in (100, 101):
        chosen = {"train_reranker": {"systems": {"bert_dmn": {"negative_depth": depth}}}}
        if depth == 100:
            Settings.model_validate(chosen)
        else:
            with pytest.raises(ValidationError, match=r"train_depth must be at least .*\(101\)"):
                Settings.model_validate(chosen)


def test_a_systems_training_depends_on_the_numbers_of_its_own_source_of_negatives_alone() -> None:
    first, corpus = TrainReranker(), TrainReranker(negatives_from="corpus")

    def changed(settings: TrainReranker, name: str = "colbert", **changes: Any) -> bool:
        return settings.for_system(name) != TrainReranker(**settings.model_dump() | changes).for_system(name)

    assert changed(first, negatives_from="corpus")
    assert (changed(first, document_negatives=0.3), changed(first, negative_depth=50)) == (False, True)
    assert (changed(corpus, document_negatives=0.3), changed(corpus, negative_depth=50)) == (True, False)
    # Distillation draws from scored hits, whatever the other systems do.
    assert not changed(first, "colbert_distilled", negatives_from="corpus", document_negatives=0.3)
    assert changed(first, "colbert_distilled", negative_depth=50)


def test_the_teacher_is_not_taught() -> None:
    settings = TrainReranker(systems={"cross_encoder": {"loss": "listwise_distillation", "epochs": 3}})
    assert settings.for_system("cross_encoder").loss == "listwise_distillation"
    assert (settings.teacher().loss, settings.teacher().epochs) == ("auto", 3)
    settings = TrainReranker(systems={"cross_encoder": {"loss": "pointwise"}}, loss="listwise_distillation")
    assert settings.teacher() == settings.for_system("cross_encoder") and settings.teacher().loss == "pointwise"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "k_nrm", "lite": True}, "lite = true needs one of cross_encoder, bert_dmn, not k_nrm"),
        ({"kind": "colbert", "lite": True}, "not colbert"),
        ({"kind": "qa_lstm", "loss": "pointwise"}, "which qa_lstm lacks"),
        ({"lite": True, "redraw_negatives": True}, "redraw_negatives = true needs"),
        ({"loss": "listwise_distillation", "triples": "selected"}, "needs labelled triples, not selected"),
        ({"loss": "listwise_distillation", "negatives_from": "corpus"}, "set negatives_from to first_stage"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainReranker.model_validate(settings)


def test_each_system_has_its_own_number_of_nodes() -> None:
    settings = Settings(
        train_reranker=TrainReranker(nodes=2, systems={"bert_dmn_lite": {"nodes": 1}, "dmn": {"nodes": 4}})
    )
    graph = rerank(settings, ["colbert", "bert_dmn_lite", "dmn", "cross_encoder", "colbert_distilled"])
    trainings: dict[str, Any] = {node.label: node.settings for node in graph.of("train_reranker")}
    assert {label: settings.nodes for label, settings in trainings.items()} == {
        "ColBERT": 2, "BERT-DMN lite": 1, "DMN": 4, "Cross-encoder": 2, "ColBERT, distilled": 2,
    }, "the teacher is the cross-encoder"  # fmt: skip
    with pytest.raises(UserError, match="train_reranker of bert_dmn_lite: nodes = 2 needs a full re-ranker"):
        TrainReranker(nodes=2).for_system("bert_dmn_lite")


def test_a_general_setting_that_a_system_cannot_have_is_the_users_error() -> None:
    for settings, name in (({"loss": "pointwise"}, "k_nrm"), ({"redraw_negatives": True}, "bert_dmn_lite")):
        chosen = TrainReranker.model_validate(settings)
        assert chosen.for_system("cross_encoder").kind == "cross_encoder"
        with pytest.raises(UserError, match=f"train_reranker of {name}: "):
            chosen.for_system(name)


def test_hits_are_scored_by_default() -> None:
    assert Rerank(system="A").depth == 100
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Rerank(system="A", depth=0)
    for depth in (0, 7):
        nodes = train(Settings(evaluate=Evaluate(rerank_depth=depth))).of("rerank")
        assert [node.settings.model_dump()["depth"] for node in nodes] == [depth] * (depth > 0)


def test_tasks_share_the_encoding_and_the_re_ranking() -> None:
    wanted = ["encode_corpus.shards=2", "encode_corpus.previous=before", "bm25_retrieve.shards=7"]
    wanted += ["evaluate.rerank_shards=3", "evaluate.rerank_depth=9", "shared.tokens_per_batch=64"]
    few, many = (train(load_settings("quickstart", some)) for some in (wanted[1:3] + wanted[4:], wanted))
    tasks = [node for node in many.nodes if node.step in ("encode_nodes", "rerank")]
    assert [node.label for node in tasks] == ["1 of 2", "2 of 2", "1 of 3", "2 of 3", "3 of 3"]
    assert [node.settings.model_dump()["shard"] for node in tasks] == [0, 1, 0, 1, 2]
    settings = tasks[0].settings
    assert isinstance(settings, EncodeNodes) and (settings.previous, settings.tokens_per_batch) == ("before", 64)
    for name in ("encode_corpus", "evaluate"):  # other numbers of tasks do not run them again
        assert few[name].settings == many[name].settings
    assert len(few.of("encode_nodes")) == 1, "tasks of BM25 are not those of the encoding"


@pytest.mark.parametrize(
    ("named", "systems"),
    [
        (["ss_bert_d", "ss_bert_h"], ["ss_bert_d", "ss_bert_h"]),
        (["ss_bert_d"], ["ss_bert_h", "ss_bert_d"]),
        (["qsf", "k_nrm"], ["colbert", "qsf", "k_nrm"]),
        (["ss_bert_h", "colbert", "ss_bert_d"], ["ss_bert_h", "colbert", "ss_bert_d"]),
        (["dmn", "colbert", "dmn"], ["colbert", "dmn"]),
    ],
)
def test_the_last_named_system_is_the_last(named: list[str], systems: list[str]) -> None:
    assert system_names(named) == systems


def test_the_preset_of_documents_names_its_systems_and_trains_them_on_the_same_triples() -> None:
    names = named_systems(None, "obliqa-structured", [])
    assert names == ["colbert", "colbert_titles", "qsf", "mim", "lim", "mix_im"]
    assert named_systems("lim", "obliqa-structured", []) == ["lim"]
    train = load_settings("obliqa-structured").train_reranker
    of = {name: train.for_system(name).model_dump() for name in names if name != "qsf"}

    def differing(one: str, other: str) -> set[str]:
        return {key for key in of[one] if of[one][key] != of[other][key]}

    assert differing("colbert", "colbert_titles") == {"titles"}
    assert differing("mim", "lim") == differing("lim", "mix_im") == {"kind"}
    assert differing("colbert", "lim") == {"kind", "max_neighbours", "weight_decay"}
    assert {training["negatives_from"] for training in of.values()} == {"corpus"}
    with pytest.raises(UserError, match=r"compare_rerankers.*unknown system 'lin'"):
        load_settings("obliqa-structured", ["compare_rerankers.systems=[lin]"])


def test_a_study_leaves_out_variants_that_equal_their_system() -> None:
    study = Settings().train_reranker.studied("structure")
    assert {"lim_layers_1", "lim_mean", "lim_live", "lim"} <= set(study)
    assert not {"lim_layers_3", "lim_sum", "lim_cached"} & set(study)
    mean = TrainReranker(systems={"lim": {"neighbour_reduction": "mean", "graph_layers": 1}})
    other = Settings(train_reranker=mean).train_reranker.studied("structure")
    assert set(other) ^ set(study) == {"lim_layers_1", "lim_layers_3", "lim_sum", "lim_mean"}
    assert Settings().train_reranker.studied("ss_bert") == list(RERANKING_STUDIES["ss_bert"].systems)


def test_sections_are_propagated_only_for_the_system_that_does_it() -> None:
    settings = Settings(
        train_reranker=TrainReranker(depth=70), propagate_sections=PropagateSections(propagation_weights=(0.25,))
    )
    assert rerank(settings, ["colbert", "k_nrm"]).of("propagate_sections") == []
    graph = rerank(settings, ["k_nrm", "colbert", "qsf"])
    (node,) = graph.of("propagate_sections")
    evaluate: Any = graph["evaluate"].settings
    assert (node.label, evaluate.candidate) == ("QSF sectionPropagateAVG",) * 2
    expected = {"system": node.label, "measure": "RR@10", "depth": 70, "propagation_weights": (0.25,)}
    assert node.settings.model_dump() == expected
    assert dict(node.artifacts())["ranking"] == graph["rerank: ColBERT"].output
    assert [training.label for training in graph.of("train_reranker")] == ["K-NRM", "ColBERT"]


@pytest.mark.parametrize("general", [{"triples": "augmented"}, {"loss": "listwise_distillation"}])
def test_scores_of_a_system_on_other_triples_are_not_propagated(general: dict[str, Any]) -> None:
    settings = Settings(train_reranker=TrainReranker.model_validate(general))
    with pytest.raises(UserError, match="QSF sectionPropagateAVG needs colbert on labelled triples"):
        rerank(settings, ["colbert", "qsf"])
    graph = rerank(settings, ["colbert"])  # no step takes the other's name
    assert not graph.of("propagate_sections") and not graph.of("evaluate_passages")


def test_tasks_share_the_generation_and_not_the_scores_of_a_teacher() -> None:
    settings = load_settings("quickstart", ["generate_queries.shards=3", "score_candidates.shards=2"])
    with pytest.raises(UserError, match=r"score_candidates\.shards = 2: .* add --set score_candidates\.shards=1"):
        rerank(settings, ["colbert_distilled"])
    tasks: list[Node] = rerank(settings, ["ss_bert_h"]).of("generate_queries")
    assert [(node.label, node.settings.model_dump()["shard"]) for node in tasks] == [
        ("1 of 3", 0), ("2 of 3", 1), ("3 of 3", 2)
    ]  # fmt: skip
    assert not rerank(settings, ["colbert"]).of("generate_queries"), "it reads no generated query"


def test_a_published_reranker_is_a_system_that_no_setting_of_a_training_changes() -> None:
    name, general = "published:org/Judge", {"epochs": 3, "triples": "augmented", "keep": "best", "learning_rate": 1e-4}
    assert system_names([name, "colbert"]) == [name, "colbert"]
    settings = TrainReranker.model_validate(general)
    plain, further = settings.for_system(name), settings.for_system("trained:org/Judge")
    assert plain == TrainReranker().for_system(name) == TrainReranker(published="org/Judge")
    assert (further.published, further.train_published, further.epochs, further.is_trained) == (
        "org/Judge",
        True,
        3,
        True,
    )
    assert further == settings.model_copy(update={"backbone": "mine"}).for_system("trained:org/Judge")
    assert not plain.is_trained and settings.for_system("cross_encoder").is_trained
    graph = rerank(Settings(train_reranker=TrainReranker()), [name, "trained:org/Judge", "colbert:org/Late"])
    titles = ["Judge, published", "Judge, trained further", "Late, published"]
    assert [node.label for node in graph.of("train_reranker")] == titles
    assert [node.settings.depth for node in graph.of("rerank")] == [100, 100, 1000]
    for systems, needs in (([name], ()), ([name, "colbert"], ("train_reranker.keep",))):
        assert rerank(Settings(), systems)["ingest"].settings.chosen_on_dev == needs


def test_a_published_reranker_is_the_teacher_if_it_is_the_cross_encoder() -> None:
    changes = {"cross_encoder": {"published": "org/Judge"}, "cross_encoder_lite": {}}
    settings = Settings(train_reranker=TrainReranker(systems=changes))
    graph = rerank(settings, ["colbert_distilled"])
    teacher = graph["train_reranker: Cross-encoder"].settings
    assert teacher == TrainReranker(published="org/Judge")
    assert not settings.train_reranker.for_system("cross_encoder_lite").published
    assert not TrainReranker(published="org/Judge").for_system("bert_dmn").published
    with pytest.raises(ValidationError, match="cannot have published"):
        TrainReranker(systems={"bert_dmn": {"published": "x"}})
    with pytest.raises(ValidationError, match="cannot have token_width"):
        TrainReranker(systems={"colbert": {"published": "x", "train_published": True, "token_width": 16}})


def test_one_setting_of_one_system_is_set_beside_the_presets() -> None:
    tree = {"train_reranker": {"systems": {"k_nrm": {"batch_size": 8}, "colbert": {"epochs": 2}}}}
    more = ("train_reranker.systems.colbert.margin=0.5", "train_reranker.systems.cross_encoder.published=org/Judge")
    systems = parse_settings(
        tree, [*more, "train_reranker.systems.colbert.loss=pairwise_margin"]
    ).train_reranker.systems
    colbert = {"epochs": 2, "margin": 0.5, "loss": "pairwise_margin"}
    assert systems == {"k_nrm": {"batch_size": 8}, "colbert": colbert, "cross_encoder": {"published": "org/Judge"}}
    assert tree["train_reranker"]["systems"]["colbert"] == {"epochs": 2}, "the preset stays as it is"
    with pytest.raises(UserError, match=r"train_reranker\.epochs = "):
        parse_settings({}, ["train_reranker.epochs.more=3"])


def test_a_published_system_whose_folder_has_dots_is_set() -> None:
    name = "published:./my.model-v1.5"
    overrides = [f"train_reranker.systems.{name}.precision=fp32", f"train_reranker.systems.{name}.seed=3"]
    train = parse_settings({}, overrides).train_reranker
    assert train.systems == {name: {"precision": "fp32", "seed": 3}}
    assert train.for_system(name).precision == "fp32"


@pytest.mark.parametrize(("name", "of"), [("lim_without_order", "lim"), ("ss_bert_h_0.2", "ss_bert_h")])
def test_a_variant_has_no_settings_of_its_own(name: str, of: str) -> None:
    with pytest.raises(UserError, match=rf"systems\.{name} has the settings of {of}: set systems\.{of}$"):
        parse_settings({}, [f"train_reranker.systems.{name}.epochs=7"])
    train = parse_settings({}, [f"train_reranker.systems.{of}.epochs=7"]).train_reranker
    assert train.for_system(name).epochs == 7


def test_a_study_of_trained_encoders_has_no_published_one() -> None:
    changes = {"cross_encoder": {"published": "org/Judge"}}
    with pytest.raises(UserError, match=r"study bert_dmn compares trained encoders: .* for cross_encoder"):
        TrainReranker(systems=changes).studied("bert_dmn")
    assert TrainReranker(systems=changes).studied("ss_bert")


def test_published_rerankers_with_one_name_or_without_one_are_refused() -> None:
    with pytest.raises(UserError, match="published:a/Judge and published:b/judge have one name in the table"):
        system_names(["published:a/Judge", "published:b/judge"])
    with pytest.raises(
        UserError, match=r"no system 'published:': choose of .*published:FOLDER, trained:FOLDER, colbert:FOLDER"
    ):
        system_names(["published:"])
