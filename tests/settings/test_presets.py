"""Presets and overrides: what is taken, and what is refused before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from gnn_encoder.engines.pipelines import dataset_override
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.kubeflow.package import load_cluster
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.presets import load_settings, parse_settings, preset_names, settable


def override(*settings: str) -> Settings:
    return load_settings("quickstart", settings)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    assert (load_settings(name).ingest.dataset == "python-docs") == (name == "quickstart")


@pytest.mark.parametrize(("written", "read"), [("no", "no"), ("yes", "yes"), ("auto", "auto"), ("'no'", "no")])
def test_a_bare_yes_or_no_is_what_it_says(written: str, read: str) -> None:
    assert override(f"train_gnn.normalize_passages={written}").train_gnn.normalize_passages == read
    assert parse_settings({"train_dpr": {"normalize": read == "yes"}}).train_dpr.normalize in ("yes", "no")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train_gnn.epochs=true"], "train_gnn.epochs = true"),
        (["ingest.dataset=2024-13-45"], '--set ingest.dataset: "2024-13-45" is not a YAML value'),
        (["train_gnn.mask_fraction=0.6"], "mask_fraction above 0.5 needs mask: sample"),
        (["dense_retrieve.eval_depth=100"], "dense_retrieve.eval_depth must be at least evaluate.depth"),
        (["train_dual_encoder.passage_length=256"], "train_dual_encoder.passage_length must equal train_dpr"),
        (["evaluate.depth=100"], "evaluate.depth = 100"),
        (["promote.measure=MRR@10"], 'promote.measure = "MRR@10": MRR@10 is no measure known here: write RR@k'),
        (["promote.measure=P@3"], "promote.measure (P@3) must be one of evaluate.measures (RR@10, "),
        (["evaluate.measures=[RR@10, recall]"], 'evaluate.measures = "recall": recall is no measure known here'),
        (["evaluate.measures=[]"], "name at least one measure"),
        (["evaluate.measures=RR@10 RR@10"], "each of them once"),
        (["evaluate.measures=RR@10 PRES(doc)"], 'evaluate.measures = "PRES(doc)": PRES(doc) is no measure known here'),
        (["evaluate.test=sign"], "evaluate.test"),
        (["evaluate.measures=RR@10 R@2000"], "R@2000, which needs depth: 2000 (it is 1000)"),
        (["promote.model_name=a/b"], "promote.model_name"),
        (["promote.floors={MRR@10: 0.1}"], "MRR@10 is no measure known here"),
        (["promote.floors={R@100: -0.1}"], "promote.floors"),
        (["promote.bundle_store=/a/folder"], "promote.bundle_store"),
        (["generate_queries.negative_below=0.2"], "must be equal"),
        (["generate_queries.top_k=10", "generate_queries.beams=2"], "set one of them"),
        (["generate_queries.shards=0"], "generate_queries.shards = 0"),
        (["generate_queries.shard=1"], "unknown setting generate_queries.shard"),
        (["dense_retrieve.shard=1"], "unknown setting dense_retrieve.shard"),
        (["bm25_retrieve.shard=1"], "unknown setting bm25_retrieve.shard"),
        (["train_gnn.b=0.5"], "unknown setting train_gnn.b"),
        (["encode_corpus.shard=1"], "unknown setting encode_corpus.shard"),
        (["build_graph.shard=1"], "unknown setting build_graph.shard"),
        (["build_graph.shards=2", "build_graph.previous=/a/run"], "set shards = 1 with previous"),
        (["shared.shard=1"], "unknown setting shared.shard"),
        (["train_gnn.node=1"], "unknown setting train_gnn.node"),
    ],
)
def test_an_impossible_value_is_refused_in_one_line(settings: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        override(*settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)


NUMBERS = [
    (step, name)
    for step in Settings.model_fields
    for name, value in getattr(Settings(), step).model_dump().items()
    if isinstance(value, int | float) and not isinstance(value, bool) and name in settable(step)
]


@pytest.mark.parametrize(("step", "name"), NUMBERS)
def test_every_number_is_finite_and_bounded(step: str, name: str) -> None:
    for value in (".nan", ".inf", "-.inf", "12345678901234567890", "-12345678901234567890", "1e200", "1e-310"):
        with pytest.raises(UserError, match=rf"{step}.{name} = "):
            override(f"{step}.{name}={value}")


def test_numbers_elsewhere_than_in_a_field_of_their_own_are_bounded_too() -> None:
    for value in ("train_dpr.dropout=.nan", "train_dpr.score_scale=.inf", "promote.floors={R@100: .nan}"):
        with pytest.raises(UserError, match="="):
            override(value)
    for seed in ("-1", "true", "0.5"):
        with pytest.raises(UserError, match=r"evaluate.seed"):
            override(f"evaluate.seed={seed}")
    assert override("evaluate.seed=2147483647").evaluate.seed == 2**31 - 1


def exploding(first: str, level: str) -> str:
    """Nine levels of nine aliases each, of 9^9 nodes if expanded."""
    levels = (f"a{i}: &a{i} {level % ', '.join([f'*a{i - 1}'] * 9)}" for i in range(1, 10))
    return "\n".join([f"a0: &a0 {first}", *levels])


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a {b: *a}",
        "[" * 1000,
        "{a: " * 1000,
        "a: " + "[" * 30 + "]" * 30,
        exploding("[x, x]", "[%s]"),
        exploding("{x: 1}", "{<<: [%s]}"),
        "a: !!timestamp x",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!python/object/apply:os.system [ls]",
        "a: 2024-13-45",
        "a: " + "9" * 5000,
    ],
)  # fmt: skip
def test_odd_yaml_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    for read in (lambda: load_settings(str(path)), lambda: load_cluster(path)):
        with pytest.raises(UserError, match="is not valid YAML") as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_an_anchor_may_be_used_again(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("train_dpr: &t {epochs: 2}\ntrain_dual_encoder: {<<: *t, batch_size: 8}\n")
    settings = load_settings(str(tmp_path / "own.yaml"))
    assert (settings.train_dual_encoder.epochs, settings.train_dual_encoder.batch_size) == (2, 8)


@pytest.mark.parametrize(
    "value", ["[]", "{}", "{a: [b]}", "2024-01-01", "{2024-01-01: 1}", "!!set {a}", "!!binary YQ==", r'"a\0b"']
)
def test_a_value_of_another_kind_is_refused_for_any_setting(value: str) -> None:
    for step, settings in Settings().model_dump().items():
        for name, default in settings.items():
            if name in settable(step) and not isinstance(default, str | tuple | dict):
                with pytest.raises(UserError, match=rf"{step}.{name} = "):
                    override(f"{step}.{name}={value}")
    with pytest.raises(UserError, match=r"train_dpr.normalize = "):
        override(f"train_dpr.normalize={value}")


@pytest.mark.parametrize(
    "change",
    [
        "encode.encoder=https://me:hidden@host/v1#model",
        "encode.encoder=https://host/v1?api_key=hidden#model",
        f"write_queries.generator=https://me:{80 * 'hidden'}@host/v1#model",
        "encode.others=[https://me:hidden@host/v1#model]",
        "ingest.dataset=s3://me:hidden@bucket/data",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(change: str) -> None:
    with pytest.raises(UserError, match="has a user, a password or a key, and settings are stored") as error:
        load_settings("quickstart", [change])
    assert "hidden" not in str(error.value)
    for free in (
        "https://host:8000/v1#model",
        "http://localhost:8000#bge@q4",
        "s3://arn:aws:s3:eu:1:accesspoint:a/b@c",
    ):
        assert load_settings("quickstart", [f"encode.encoder={free}"]).encode.encoder == free


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(UserError, match="…: Input should be") as caught:
        override(f"train_dpr.epochs={'x' * 5000}")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "name", ["plain", "😀", "a\x7fb\x85", "2024-01-01", "a: b # c", "a'\"\\n", " a ", "yes", "x" * 200]
)
def test_a_dataset_is_named_as_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert override(*dataset_override(name)).ingest.dataset == name  # there is no such folder
    Path(name).mkdir()
    assert override(*dataset_override(name)).ingest.dataset == str(tmp_path.resolve() / name)


def graphs_of(pipeline: str, settings: Settings) -> list[Graph]:
    """Graphs of a pipeline, which call each of its steps."""
    if pipeline == "train":
        return [train(settings)]
    if pipeline == "ladder":
        return [ladder(settings)]
    if pipeline == "update":
        return [update(settings, {name: Given(name) for name in ("dual_encoder", "cross_encoder", "gnn_encoder")})]
    if pipeline == "ablation":
        return [ablation(settings, [settings.try_variant], seeds=1)]
    study, names = "ss_bert", ["colbert", "colbert_distilled", "ss_bert_h", "ss_bert_d", "qsf"]
    return [rerank(settings, names, study), rerank(settings, ["colbert"], bundle=Given("bundle"))]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipelines_sections_are_those_of_the_steps_in_its_graph(name: str) -> None:
    settings = override("choose_graph.variants={one: {train_gnn.epochs: 9}}", "write_queries.generator=titles")
    steps = {node.step for graph in graphs_of(name, settings) for node in graph.nodes}
    not_listed = {"train": {"choose_bundle"}, "ladder": {"choose_bundle"}}.get(name, set())
    assert steps & Settings.model_fields.keys() == {*PIPELINES[name]} | not_listed


def test_bm25_is_set_where_it_is_indexed() -> None:
    assert load_settings("scifact").index_bm25.fields == "separate"
    assert override("shared.k1=0.8").index_bm25.k1 == 0.8
    assert override("bm25_retrieve.eval_depth=1500").first_stage.eval_depth == 1500


def test_the_same_values_are_taken_where_they_fit() -> None:
    override("train_gnn.mask_fraction=0.6", "train_gnn.mask=sample")
    override("dense_retrieve.eval_depth=2000", "bm25_retrieve.eval_depth=2000", "evaluate.depth=2000")
    override("train_dual_encoder.passage_length=256", "train_dual_encoder.start_from=backbone")


@pytest.mark.parametrize("written", ["3e-5", "3.0e-5", "0.00003", "3E-05"])
def test_a_number_may_be_written_as_everywhere(written: str, tmp_path: Path) -> None:
    assert override(f"train_gnn.learning_rate={written}").train_gnn.learning_rate == 3e-5
    (tmp_path / "own.yaml").write_text(f"train_gnn: {{learning_rate: {written}}}\nshared: {{backbone: 1e5-model}}")
    settings = load_settings(str(tmp_path / "own.yaml"))
    assert (settings.train_gnn.learning_rate, settings.train_dpr.backbone) == (3e-5, "1e5-model")


def test_measures_are_a_list_or_a_text_and_promotion_looks_at_one_of_them() -> None:
    assert Settings().evaluate.measures == NAMES
    assert Settings().promote.measure in NAMES
    chosen = override("evaluate.measures=AP(rel=2) R@100, Judged@5", "promote.measure=R@100")
    assert chosen.evaluate.measures == ("AP(rel=2)", "R@100", "Judged@5")
    assert override("evaluate.measures=[nDCG, RR@10]").evaluate.measures == ("nDCG", "RR@10")
    of_documents = override(
        "evaluate.measures=RR@10 PRES(doc)@100, R(doc,rel=2)@100,MAP(D)", "evaluate.test=t"
    ).evaluate
    assert of_documents.measures == ("RR@10", "PRES(doc)@100", "R(doc,rel=2)@100", "MAP(D)")
    assert of_documents.test == "t" and Settings().evaluate.test == "randomization"
    assert override("promote.floors={R@100: 0.02, P@3: 0}").promote.floors == {"R@100": 0.02, "P@3": 0.0}
    assert override("promote.bundle_store=s3://bucket/models").promote.bundle_store == "s3://bucket/models"


def test_dpr_may_be_recommended_if_its_bundle_searches_exactly() -> None:
    for overrides, may in (
        ([], True),
        (["encode_corpus.index=hnsw"], False),
        (["recommend.order=[Dual encoder]"], False),
    ):
        graph = train(override(*overrides))
        recommend: Any = graph["recommend"].settings
        assert ("DPR" in recommend.order) is may
        titles = {node.title for node in graph.nodes}
        assert ("bundle_dual_encoder: DPR" in titles, "fuse: DPR" in titles) == (may, may)


def test_ingest_knows_which_settings_choose_by_dev_queries() -> None:
    def choosing(*settings: str, pipeline: str = "train") -> tuple[str, ...]:
        ingest: Any = graphs_of(pipeline, load_settings("obliqa", settings))[0]["ingest"].settings
        return tuple(ingest.chosen_on_dev)

    assert choosing() == choosing(pipeline="update") == (), (
        "the further training needs none: it leaves the model as it is"
    )
    assert choosing("train_dpr.keep=best", "train_gnn.keep=best") == ("train_dpr.keep", "train_gnn.keep")
    assert choosing("train_dual_encoder.keep=best", "train_dual_encoder.patience=3") == ()
    assert choosing("choose_graph.variants={one: {train_gnn.keep: best}}") == ("train_gnn.keep",)
    assert choosing("train_gnn.keep=best", pipeline="ablation") == ("train_gnn.keep",)
    ranking: Any = rerank(load_settings("obliqa"), ["colbert"])["ingest"].settings
    assert ranking.chosen_on_dev == ("train_reranker.keep",)
    with pytest.raises(UserError, match=r"unknown setting ingest\.chosen_on_dev"):
        override("ingest.chosen_on_dev=[train_gnn.keep]")
    with pytest.raises(UserError, match=r"train_gnn\.keep = best needs dev_queries"):
        override("train_gnn.keep=best", "train_gnn.dev_queries=0")


def test_a_shared_generator_does_not_write_queries() -> None:
    settings = parse_settings({"shared": {"generator": "minilm", "seed": 3}})
    assert settings.train_query_generator.generator == "minilm"
    assert settings.write_queries.generator == "" and settings.write_queries.seed == 3
