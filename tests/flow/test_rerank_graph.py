"""The graph of a comparison of re-rankers: whom a setting concerns, and who teaches whom."""

from typing import Any

import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Graph
from gnn_encoder.pipelines.rerank import rerank as rerank_graph
from gnn_encoder.settings.foundation import SelectTrainingSet
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import SYSTEMS


def test_ss_bert_trains_on_as_many_selected_triples_as_originals() -> None:
    chosen = Settings(select_training_set=SelectTrainingSet(selection_mix="once", augmentation=False))
    names = ("ss_bert_t", "ss_bert_h")
    selecting = rerank_graph(chosen, names).of("select_training_set")
    of = {name: node.settings.model_dump() for name, node in zip(names, selecting, strict=True)}
    assert [node.label for node in selecting] == [SYSTEMS[name].title for name in names]
    assert {name: (values["selection_mix"], values["augmentation"]) for name, values in of.items()} == {
        "ss_bert_t": ("equal", False), "ss_bert_h": ("equal", True),
    }  # fmt: skip


def test_a_setting_trains_the_kinds_again_that_depend_on_it() -> None:
    named = {system.title: name for name, system in SYSTEMS.items()}

    def trained(step: str = "train_reranker", **settings: Any) -> dict[str, Any]:
        chosen = Settings(train_reranker=TrainReranker(**settings))
        nodes = rerank_graph(chosen, list(SYSTEMS)).of(step)
        return {named[node.label]: node.settings for node in nodes if node.label != "Teacher"}

    before = trained()
    changed = {
        "depth": 50, "margin": 0.5, "episodes": 2, "pair_length": 99, "token_width": 64, "epochs": 3,
        "learning_rate": 1e-3, "cache": "fp16", "kernels": 5, "lstm_width": 8, "vocabulary": 99, "word_width": 8,
        "backbone": "x", "token_vectors": "int8", "split_sentences": "pysbd", "negatives": 3,
        "distillation_temperature": 2.0, "in_batch_negatives": True, "titles": False,
    }  # fmt: skip
    again = {
        name: [system for system, values in trained(**{name: value}).items() if values != before[system]]
        for name, value in changed.items()
    }
    full, lite = ["cross_encoder", "bert_dmn"], ["cross_encoder_lite", "bert_dmn_lite"]
    pairs, words = [*full, *lite], ["qa_lstm", "k_nrm", "dmn"]
    plain = ["colbert", "colbert_titles", "ss_bert_t", "ss_bert_h"]
    single, documents = [*plain, "colbert_distilled"], ["mim", "lim", "mix_im"]
    late = [*single, *documents]
    every = [name for name, system in SYSTEMS.items() if not system.evaluates]
    assert again == {
        "depth": [], "margin": [*pairs, *words], "episodes": ["bert_dmn", "bert_dmn_lite", "dmn"],
        "pair_length": [*pairs, *words], "token_width": late, "epochs": every,
        "learning_rate": [*full, *single], "cache": lite, "kernels": ["k_nrm"], "lstm_width": ["qa_lstm"],
        "vocabulary": words, "word_width": [], "backbone": every, "token_vectors": [],
        "split_sentences": ["bert_dmn", "bert_dmn_lite", "dmn"],
        "negatives": [name for name in every if name != "colbert_distilled"],
        "distillation_temperature": ["colbert_distilled"], "in_batch_negatives": [*plain, *documents],
        "titles": [name for name in late if name != "colbert_titles"],
    }  # fmt: skip
    ranked = trained("rerank").items() ^ trained("rerank", token_vectors="int8").items()
    assert {name for name, _ in ranked} == set(late)
    before = trained(word_vectors="trained")
    for name, systems in {"word_width": words, "backbone": [*pairs, *late]}.items():
        after = trained(word_vectors="trained", **{name: changed[name]})
        assert [system for system in after if after[system] != before[system]] == systems


def test_the_teacher_is_the_cross_encoder_unless_that_learns_itself() -> None:
    def graph(loss: str, *systems: str) -> tuple[list[str], set[str], Graph]:
        """Its trainings, and those that teach."""
        nodes = rerank_graph(Settings(train_reranker=TrainReranker.model_validate({"loss": loss})), systems)
        teachers = {node.inputs["cross_encoder"].node.label for node in nodes.of("score_candidates")}  # type: ignore
        return [node.label for node in nodes.of("train_reranker")], teachers, nodes

    both = ("cross_encoder", "colbert_distilled")
    named, taught, distilled = (SYSTEMS[both[0]].title, "Teacher", SYSTEMS[both[1]].title)
    assert graph("pairwise_softmax", *both)[:2] == ([named, distilled], {named})
    # So that the cache has the teacher if an earlier run had the cross-encoder.
    assert graph("pairwise_softmax", both[1])[:2] == ([named, distilled], {named})
    trainings, teachers, nodes = graph("listwise_distillation", *both)
    assert (trainings, teachers) == ([taught, named, distilled], {taught})
    teacher: Any = nodes["train_reranker: Teacher"].settings
    assert (teacher.loss, teacher.kind) == ("auto", "cross_encoder")
    learner: Any = nodes[f"train_reranker: {named}"].settings
    assert learner.loss == "listwise_distillation"


@pytest.mark.parametrize("systems", [["cross_encoder", "colbert"], ["colbert"]])
def test_a_teacher_on_other_than_labelled_triples_is_one_line(systems: list[str]) -> None:
    changes = {"cross_encoder": {"triples": "augmented"}, "colbert": {"loss": "listwise_distillation"}}
    settings = Settings(train_reranker=TrainReranker.model_validate({"systems": changes}))
    with pytest.raises(UserError, match=r"triples = augmented for cross_encoder, the teacher of colbert: .* add --set"):
        rerank_graph(settings, systems)


def test_a_system_may_have_settings_of_its_own() -> None:
    changes = {"k_nrm": {"batch_size": 8}, "bert_dmn_lite": {"epochs": 20, "head_learning_rate": 1e-2}}
    settings, before = TrainReranker(epochs=2, systems=changes), TrainReranker(epochs=2)
    differ = {name for name in SYSTEMS if settings.for_system(name) != before.for_system(name)}
    assert differ == set(changes)
    lite = settings.for_system("bert_dmn_lite")
    assert (lite.epochs, lite.head_learning_rate, lite.lite, lite.systems) == (20, 1e-2, True, {})
    assert (settings.for_system("k_nrm").batch_size, settings.for_system("k_nrm").adam_epsilon) == (8, 1e-5)


def test_a_lite_re_ranker_has_the_same_pairs_in_each_epoch() -> None:
    settings = TrainReranker(redraw_negatives=True)
    assert settings.for_system("bert_dmn").redraw_negatives
    with pytest.raises(UserError, match="redraw_negatives = true needs"):
        settings.for_system("bert_dmn_lite")
