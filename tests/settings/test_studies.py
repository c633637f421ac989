"""Which variants a study has, and how they are asked for."""

import pytest

from gnn_encoder.engines.pipelines import check_nodes
from gnn_encoder.errors import UserError
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.query_graph.narrowing import _refuse_more
from gnn_encoder.settings.graph import largest_graph
from gnn_encoder.settings.pipeline import Settings, choice
from gnn_encoder.settings.presets import load_settings, parse_settings, preset_names
from gnn_encoder.settings.studies import BEFORE, FULL, STUDIES, variants, with_seeds


@pytest.mark.parametrize("preset", preset_names())
def test_every_study_of_every_preset(preset: str) -> None:
    settings = load_settings(preset)
    tried = variants(settings, STUDIES, [])
    names = [variant.variant for variant in tried]
    assert names[:2] == [FULL, BEFORE] and len(set(names)) == len(names)
    full = tried[0].model_dump(exclude={"variant"})
    assert all(variant.model_dump(exclude={"variant"}) != full for variant in tried[1:])
    for name in ("neighbors", "layers", "mask", "learning_rate", "edges"):
        assert full[name] == {**settings.build_graph.model_dump(), **settings.train_gnn.model_dump()}[name]
    largest = largest_graph(settings.build_graph, tried)
    for variant in tried:
        _refuse_more(largest, variant)


@pytest.mark.parametrize(("layers", "missing"), [(1, {"one layer", "refreshed passage cache"}), (2, {"two layers"})])
def test_what_changes_nothing_is_no_variant(layers: int, missing: set[str]) -> None:
    settings = parse_settings({"train_gnn": {"layers": layers}, "try_variant": {"mode": "joint"}})
    names = {variant.variant for variant in variants(settings, ["parts"], [])}
    assert STUDIES["parts"].keys() - names == missing


def test_variants_of_ones_own() -> None:
    settings = Settings()
    (_, _, mine) = variants(settings, [], ["few: build_graph.neighbors=3 train_gnn.gate=fixed try_variant.mode=joint"])
    assert (mine.variant, mine.neighbors, mine.gate, mine.mode) == ("few", 3, "fixed", "joint")
    assert [variant.seed for variant in with_seeds(mine, 3)] == [0, 1, 2]
    last = mine.model_copy(update={"seed": 2**31 - 1})
    assert [variant.seed for variant in with_seeds(last, 2)] == [
        2**31 - 1,
        0,
    ]  # the next one would be refused in its step
    assert len(with_seeds(variants(settings, [], [])[1], 3)) == 1


def test_a_trial_and_a_variant_are_one_pod() -> None:
    changes = {"wide": {"train_gnn.layers": 1}}
    settings = parse_settings({"train_gnn": {"nodes": 2, "processes": 2}, "choose_graph": {"variants": changes}})
    assert {(variant.nodes, variant.processes) for variant in variants(settings, ["parts"], [])} == {(1, 2)}
    assert [(trial.nodes, trial.processes) for trial in choice(settings).tried] == [(1, 1)]
    check_nodes(ablation(settings, variants(settings, [], []), 1))


def test_uses_of_labels_are_tried_as_the_preset_says() -> None:
    settings = parse_settings({"encode_with_labels": {"sum_weights": [0.0, 0.4], "folds": 3}})
    tried = {variant.variant: variant for variant in variants(settings, ["labels"], [])}
    assert tried.keys() == {FULL, BEFORE, "query sum", "query memory", "query clusters"}
    (labels, none) = (tried["query sum"].labels, tried[FULL].labels)
    assert labels and (labels.kind, labels.sum_weights, labels.folds) == ("sum", (0.0, 0.4), 3) and none is None
    seeds = {name: len(with_seeds(variant, 3)) for name, variant in tried.items()}
    assert seeds == dict.fromkeys(tried, 1) | {FULL: 3}


@pytest.mark.parametrize(
    ("study", "of_user", "words"),
    [
        (["part"], [], "no study 'part': choose of parts, gate"),
        ([], ["few"], "write it as 'NAME: step.setting=value"),
        ([], ["few: build_graph.neighbors"], "write it as"),
        ([], ["few: build_graph.neighbours=3"], "did you mean 'neighbors'"),
        ([], ["few: build_graph.neighbors=[1"], "a value in it is not YAML"),
        ([], ["few: build_graph.neighbors=none"], "build_graph.neighbors"),
        ([], ["few: train_dpr.epochs=1"], "train_dpr.epochs is none of build_graph, train_gnn, try_variant"),
        ([], ["few: try_variant.layers=1"], "unknown setting try_variant.layers"),
    ],
)
def test_mistakes_are_named(study: list[str], of_user: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        variants(Settings(), study, of_user)


def test_a_use_of_labels_is_no_mode_of_all_variants() -> None:
    with pytest.raises(UserError, match="mode = sum: choose frozen or joint; the study labels"):
        variants(parse_settings({"try_variant": {"mode": "sum"}}), ["parts"], [])


def test_a_variants_graph_is_set_where_the_pipelines_is() -> None:
    with pytest.raises(UserError, match=r"unknown setting try_variant\.neighbors"):
        parse_settings({"try_variant": {"neighbors": 3}})
    shared = parse_settings({"shared": {"precision": "fp32"}})
    assert {shared.train_gnn.precision, shared.encode_queries.precision} == {"fp32"}
