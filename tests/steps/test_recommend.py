"""What a run recommends, and the bundle that it chooses, on figures and bundles written by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from bundles import write_bm25
from tiny_graph import ROUNDED

from gnn_encoder.artifacts import (
    Bundle,
    Dataset,
    Evaluation,
    Recommended,
    drafting,
    read_manifest,
)
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, create_rows, create_vectors
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.promotion.champion import bundle_figures
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.latency import measure_latency, served_path
from gnn_encoder.retrieval.search import Searcher, served_run
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import BundleDualEncoder, ChooseBundle, Evaluate, Recommend
from gnn_encoder.settings.systems import DPR
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.choose_bundle import choose_bundle
from gnn_encoder.steps.recommend import recommend

PLAIN, FUSED, GRAPH = "Dual encoder", "BM25 + Dual encoder", "GNN-encoder"
MEANS = {"BM25": 0.3, PLAIN: 0.5, GRAPH: 0.7, FUSED: 0.5}


def write_evaluation(
    path: Path,
    dataset: Dataset,
    means: dict[str, float],
    bundles: Sequence[Path] = (),
    splits: tuple[str, ...] = ("dev",),
    records: Mapping[str, Record] = {},
) -> Path:
    """An evaluation in which each system has its mean, up to 0.1 more or less for a query."""
    generator, parts = np.random.default_rng(1), []
    for split in splits:
        rows = dataset.query_rows(split)
        for system, mean in means.items():
            noise = generator.permutation(np.linspace(-0.1, 0.1, len(rows)))
            columns = {"split": [split] * len(rows), "query": rows, "system": [system] * len(rows)}
            parts.append(pa.table({**columns, "RR@10": mean + noise}))
    metrics: dict[str, Any] = {
        "baseline": PLAIN,
        "headline_split": splits[-1],
        "results": {split: {system: {"RR@10": mean} for system, mean in means.items()} for split in splits},
        "queries": {split: len(dataset.query_rows(split)) for split in splits},
        "fusions": {
            FUSED: {"method": "convex", "dense": PLAIN, "weight": 0.4, "tuned_on": "dev"},
            f"{FUSED} (RRF)": {"method": "rrf", "dense": PLAIN},
        },
    }
    with drafting(path, "evaluation") as draft:
        Evaluation.write(draft, metrics=metrics, per_query=pa.concat_tables(parts), answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
        ranked = {f"rank: {path.name}": Record(inputs={"bundle": read_manifest(path).digest}) for path in bundles}
        write_history(draft.path, {**ranked, **records})
    return path


def advice(folder: Path, dataset: Dataset, means: dict[str, float], settings: Recommend, **more: Any) -> dict[str, Any]:
    evaluation = write_evaluation(folder / "evaluation", dataset, means, **more)
    recommend(settings, dataset=dataset.path, evaluation=evaluation, recommendation=folder / "recommendation")
    return Recommended.read(folder / "recommendation").facts


@pytest.mark.parametrize(
    ("change", "system", "weight"),
    [
        ({}, GRAPH, None),
        ({GRAPH: 0.5}, PLAIN, None),
        ({FUSED: 0.9}, FUSED, 0.4),
        ({"BM25": 0.7}, "BM25", 0.0),
        ({f"{FUSED} (RRF)": 0.9}, GRAPH, None),  # cannot be served
    ],
)
def test_the_recommended_system_and_how_it_is_served(
    change: dict[str, float], system: str, weight: float | None, tmp_path: Path, tiny_dataset: Dataset
) -> None:
    facts = advice(tmp_path, tiny_dataset, MEANS | change, Recommend())
    assert (facts["system"], facts["weight"], facts["queries"]) == (system, weight, 20)
    assert facts["dense"] == (PLAIN if system in (FUSED, "BM25") else system)
    assert facts["sentence"] == read_manifest(tmp_path / "recommendation").metrics["headline"]
    assert facts["sentence"].startswith(f"Recommended: {system} (MRR@10 0.")
    assert [standing["system"] for standing in facts["standings"]] == ["BM25", PLAIN, FUSED, GRAPH]


def test_without_an_index_of_words_nothing_is_fused(tmp_path: Path, tiny_dataset: Dataset) -> None:
    means = MEANS | {FUSED: 0.9, "BM25": 0.9}
    facts = advice(tmp_path, tiny_dataset, means, Recommend(bm25=False))
    assert [standing["system"] for standing in facts["standings"]] == [PLAIN, GRAPH] and facts["system"] == GRAPH


def test_the_order_and_the_margin_are_settings(tmp_path: Path, tiny_dataset: Dataset) -> None:
    turned = Recommend(order=(GRAPH, PLAIN))
    assert advice(tmp_path / "turned", tiny_dataset, MEANS | {GRAPH: 0.5}, turned)["system"] == GRAPH
    wide = Recommend(margin=0.5, significance=0.0)
    assert advice(tmp_path / "wide", tiny_dataset, MEANS, wide)["system"] == "BM25"
    with pytest.raises(UserError, match=r"recommend\.order lacks Dual encoder"):
        advice(tmp_path / "without", tiny_dataset, MEANS, Recommend(order=(GRAPH,)))


def test_the_test_queries_are_reported_and_decide_nothing(tmp_path: Path, tiny_dataset: Dataset) -> None:
    facts = advice(tmp_path / "dev", tiny_dataset, MEANS, Recommend(), splits=("dev", "test"))
    assert f"; on test {facts['system']} has 0.700, the highest there" in facts["sentence"]
    evaluation = tmp_path / "dev" / "evaluation"
    metrics = Evaluation.read(evaluation).metrics
    metrics["results"]["test"][PLAIN]["RR@10"] = 0.99
    table = Evaluation.read(evaluation).per_query
    dev = table.filter(pa.array([split == "dev" for split in table.column("split").to_pylist()]))
    with drafting(tmp_path / "other", "evaluation") as draft:  # without one figure of a test query
        Evaluation.write(draft, metrics=metrics, per_query=dev, answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": tiny_dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
    paths = {"evaluation": tmp_path / "other", "recommendation": tmp_path / "again"}
    recommend(Recommend(), dataset=tiny_dataset.path, **paths)
    other = Recommended.read(tmp_path / "again").facts
    assert other["system"] == facts["system"] and "where the highest is 0.990 (Dual encoder)" in other["sentence"]


def test_a_loss_of_cold_queries_is_seen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    """All dev queries of the tiny data are cold: what is worse there is not recommended, whatever the margin to the
    best system."""
    settings = Recommend(order=("BM25", PLAIN), margin=0.1, significance=0.0)
    facts = advice(tmp_path, tiny_dataset, {"BM25": 0.3, PLAIN: 0.5}, settings)
    (words, _) = facts["standings"]
    assert facts["system"] == PLAIN and "0.200 below Dual encoder on 20 cold queries" in words["objections"][0]


def test_dev_queries_unlike_the_test_queries_weigh_less(tmp_path: Path, tiny_dataset: Dataset) -> None:
    """The graph's system wins on dev queries that equal a training query, and loses on the others, as all test queries
    are. Not weighted, it is recommended."""
    train, dev, test = map(tiny_dataset.query_rows, ("train", "dev", "test"))
    means = {PLAIN: 0.5, GRAPH: 0.5}
    evaluation = write_evaluation(tmp_path / "evaluation", tiny_dataset, means, splits=("dev", "test"))
    table = Evaluation.read(evaluation).per_query
    values, near = np.array(table.column("RR@10")), np.isin(table.column("query"), dev[:-4])
    change = np.where(near, 0.3, -0.3) * (np.array(table.column("system")) == GRAPH)
    with drafting(tmp_path / "changed", "evaluation") as draft:
        changed = table.set_column(table.schema.get_field_index("RR@10"), "RR@10", pa.array(values + change))
        metrics = Evaluation.read(evaluation).metrics
        Evaluation.write(draft, metrics=metrics, per_query=changed, answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": tiny_dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
    with drafting(tmp_path / "passage_vectors", "vectors") as draft:
        create_vectors(draft, len(tiny_dataset.passages), 2)[:] = 1
        create_rows(draft, QUERIES, (len(train), 2))[:] = [1, 0]
        query_vectors = create_rows(draft, EVALUATED, (len(dev) + len(test), 2))
        query_vectors[:] = np.where(np.isin(np.union1d(dev, test), dev[:-4])[:, None], [1, 0], [0, 1])
    paths = {"dataset": tiny_dataset.path, "evaluation": tmp_path / "changed"}
    recommend(Recommend(), **paths, recommendation=tmp_path / "plain")
    recommend(Recommend(), **paths, passage_vectors=tmp_path / "passage_vectors", recommendation=tmp_path / "weighted")
    plain, weighted = (Recommended.read(tmp_path / name).facts for name in ("plain", "weighted"))
    assert (plain["system"], weighted["system"]) == (GRAPH, PLAIN)
    assert "dev queries are weighted" in weighted["sentence"] and "1.00 and 0.00" in weighted["sentence"]


def test_without_dev_queries_it_is_the_baseline(tmp_path: Path, tiny_dataset: Dataset) -> None:
    facts = advice(tmp_path, tiny_dataset, MEANS, Recommend(), splits=("test",))
    assert (facts["system"], facts["queries"], facts["standings"]) == (PLAIN, 0, [])
    assert "no labelled dev query" in facts["sentence"]


def test_generated_dev_queries_decide_nothing_unless_they_are_let(tmp_path: Path, tiny_dataset: Dataset) -> None:
    dev = tiny_dataset.split_qrels("dev")
    with drafting(tmp_path / "data", "dataset") as draft:
        extend_queries(draft, tiny_dataset, ["one more"], ["dev"], [[3, 4]], [-1], tiny_dataset.recurring, False)
    data = Dataset(tmp_path / "data")
    assert data.split_qrels("dev").passage.tolist() == [*dev.passage.tolist(), 3, 4] and data.written_splits == ("dev",)
    for settings, system in ((Recommend(), PLAIN), (Recommend(by_generated=True), GRAPH)):
        facts = advice(tmp_path / system, data, MEANS, settings)
        assert facts["system"] == system and ("the dev queries are generated" in facts["sentence"]) == (system == PLAIN)
        assert (" generated dev queries" in facts["sentence"]) == (system == GRAPH)
    with drafting(tmp_path / "test", "dataset") as draft:
        extend_queries(draft, tiny_dataset, ["one more"], ["test"], [[3, 4]], [-1], tiny_dataset.recurring, False)
    facts = advice(tmp_path / "of test", Dataset(tmp_path / "test"), MEANS, Recommend(), splits=("dev", "test"))
    assert (
        "; on generated test queries GNN-encoder has" in facts["sentence"] and " generated dev" not in facts["sentence"]
    )


def test_an_evaluation_of_other_data_is_refused(tmp_path: Path, tiny_dataset: Dataset, tiny_documents: Dataset) -> None:
    evaluation = write_evaluation(tmp_path / "evaluation", tiny_documents, MEANS)
    with pytest.raises(UserError, match="does not evaluate"):
        recommend(Recommend(), dataset=tiny_dataset.path, evaluation=evaluation, recommendation=tmp_path / "r")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    """The bundle of a random dual encoder, made by its step."""
    folder = tmp_path_factory.mktemp("plain")
    with drafting(folder / "dual_encoder", "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone),
            pooling="mean",
            normalize="yes",
            query_length=16,
            passage_length=24,
            share_encoders=False,
        ).save(draft.path)
    bm25_index = write_bm25(tiny_dataset.path, folder / "bm25_index")
    artifacts = {"dataset": tiny_dataset.path, "dual_encoder": folder / "dual_encoder", "bm25_index": bm25_index}
    bundle_dual_encoder(BundleDualEncoder(precision="fp32"), **artifacts, bundle=folder / "bundle")
    return folder / "bundle"


def test_a_dual_encoders_bundle_has_its_vectors(plain: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    bundle, model = Bundle.read(plain), DualEncoder.load(plain.with_name("dual_encoder"))
    vectors = np.empty(bundle.vectors.shape, np.float32)
    encode_passages(model.passage_encoder, tiny_dataset.passages, vectors, precision="fp32")
    assert bundle.vectors.dtype == np.float16
    np.testing.assert_allclose(bundle.vectors, vectors, rtol=ROUNDED, atol=1e-6)
    assert (bundle.system, bundle.serving) == (PLAIN, Serving(PLAIN, None)) and bundle.bm25_path
    index = plain.with_name("bm25_index")
    assert all((bundle.bm25_path / name).samefile(index / name) for name in read_manifest(index, "bm25").files)
    with drafting(tmp_path / "vectors", "vectors") as draft:
        np.save(draft / "vectors.npy", vectors[::-1])
    artifacts = {"dataset": tiny_dataset.path}
    artifacts |= {name: plain.with_name(name) for name in ("dual_encoder", "bm25_index")}
    settings = BundleDualEncoder(system="Mine", bm25=False)
    bundle_dual_encoder(settings, **artifacts, passage_vectors=tmp_path / "vectors", bundle=tmp_path / "bundle")
    other = Bundle.read(tmp_path / "bundle")
    assert np.array_equal(other.vectors, vectors[::-1]) and other.system == "Mine" and other.bm25_path is None


def chosen(folder: Path, dataset: Dataset, bundles: Sequence[Path], means: dict[str, float]) -> Bundle:
    advice(folder, dataset, means, Recommend(), bundles=bundles)
    paths = {"recommendation": folder / "recommendation", "chosen_bundle": folder / "bundle"}
    choose_bundle(ChooseBundle(), dataset=dataset.path, bundles=bundles, **paths)
    return Bundle.read(folder / "bundle")


def test_the_chosen_bundle_is_the_systems_and_takes_no_space_of_its_own(
    plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    with drafting(tmp_path / "empty", "bundle"):
        pass  # of DPR, if it is not recommended
    bundle = chosen(tmp_path, tiny_dataset, [tmp_path / "empty", plain], MEANS | {GRAPH: 0.1, FUSED: 0.6})
    assert bundle.serving == Serving(FUSED, 0.4, "dev") and bundle.system == PLAIN
    assert bundle.manifest.inputs == Bundle.read(plain).manifest.inputs
    assert (bundle.path / "vectors.npy").samefile(plain / "vectors.npy")
    assert set(bundle.manifest.files) == {*Bundle.read(plain).manifest.files, "serving.json"}
    again = tmp_path / "again"
    choose_bundle(ChooseBundle(previous=str(tmp_path)), dataset=tiny_dataset.path, bundles=[plain], chosen_bundle=again)
    assert Bundle.read(again).serving == bundle.serving


def test_the_folder_explains_itself_and_its_digest_does_not_count_that(
    plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    bundle = chosen(tmp_path, tiny_dataset, [plain], MEANS | {GRAPH: 0.1, FUSED: 0.6})
    page, digest = (bundle.path / README).read_text("utf-8"), bundle.manifest.digest
    front, _, body = page.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(front)["library_name"] == "gnn-encoder"
    assert body.startswith(f"# {FUSED}\n\nRecommended: {FUSED}") and "0.40 of the vectors' and 0.60 of BM25's" in page
    assert "What it reaches" not in page, "without an evaluation there are no figures"
    assert f"| test | {len(tiny_dataset.query_rows('test'))} |" in page and tiny_dataset.manifest.digest in page
    (bundle.path / README).write_text("other words")
    assert Bundle.read(bundle.path).manifest.digest == digest
    (bundle.path / README).unlink()
    assert Bundle.read(bundle.path).manifest.digest == digest
    update = tmp_path / "update"
    choose_bundle(
        ChooseBundle(previous=str(tmp_path)), dataset=tiny_dataset.path, bundles=[plain], chosen_bundle=update
    )
    assert "An update has encoded this corpus" in (update / README).read_text("utf-8")
    assert read_manifest(update).digest == digest


def test_a_copy_with_a_reranker_and_a_version_with_labels_keep_the_readme(
    plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    bundle = chosen(tmp_path, tiny_dataset, [plain], MEANS | {GRAPH: 0.1, FUSED: 0.6})
    with drafting(tmp_path / "scorer", "model") as draft:
        (draft / "scorer.json").write_text("{}")
    with drafting(tmp_path / "copy", "bundle") as draft:
        bundle.copy_to(draft, tmp_path / "scorer")
    with drafting(tmp_path / "labelled", "bundle") as draft:
        bundle.with_added(draft, AddedLabels([]))
    pages = {(tmp_path / name / README).read_text("utf-8") for name in ("bundle", "copy", "labelled")}
    assert len(pages) == 1
    assert all(README not in read_manifest(tmp_path / name).files for name in ("bundle", "copy", "labelled"))


def test_a_system_without_a_bundle_and_a_bundle_that_was_not_ranked_are_refused(
    plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no bundle has the system GNN-encoder, only Dual encoder: leave it out"):
        chosen(tmp_path / "none", tiny_dataset, [plain], MEANS)
    advice(tmp_path, tiny_dataset, MEANS | {GRAPH: 0.1}, Recommend())
    paths = {"recommendation": tmp_path / "recommendation", "chosen_bundle": tmp_path / "bundle"}
    with pytest.raises(UserError, match="is not about"):
        choose_bundle(ChooseBundle(), dataset=tiny_dataset.path, bundles=[plain], **paths)


@pytest.mark.slow
def test_dprs_bundle_is_made_after_the_recommendation_if_it_is_recommended(
    plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    """DPR is ranked without a bundle."""
    artifacts = {"dataset": tiny_dataset.path, "dual_encoder": plain.with_name("dual_encoder")}
    artifacts["bm25_index"] = plain.with_name("bm25_index")
    for name, mean in {"other": 0.5, "own": 0.7}.items():
        folder = tmp_path / name
        advice(folder, tiny_dataset, {PLAIN: 0.6, DPR: mean}, Recommend())
        paths = {"recommendation": folder / "recommendation", "bundle": folder / "dpr"}
        bundle_dual_encoder(BundleDualEncoder(system=DPR), **artifacts, **paths)
    assert not read_manifest(tmp_path / "other" / "dpr").files
    bundles = [tmp_path / "own" / "dpr", plain]
    paths = {"recommendation": tmp_path / "own" / "recommendation", "chosen_bundle": tmp_path / "bundle"}
    choose_bundle(ChooseBundle(), dataset=tiny_dataset.path, bundles=bundles, **paths)
    bundle = Bundle.read(tmp_path / "bundle")
    assert bundle.serving == Serving(DPR, None) and len(bundle.vectors) == len(tiny_dataset.passages)
    assert "comes from its own text alone" in (bundle.path / README).read_text("utf-8")
    # Made for another recommendation.
    advice(tmp_path / "strange", tiny_dataset, {PLAIN: 0.6, DPR: 0.8}, Recommend())
    paths = {"recommendation": tmp_path / "strange" / "recommendation", "chosen_bundle": tmp_path / "none"}
    with pytest.raises(UserError, match="is not about"):
        choose_bundle(ChooseBundle(), dataset=tiny_dataset.path, bundles=bundles, **paths)


def test_a_dual_encoder_that_is_dpr_is_recommended_once(tmp_path: Path, tiny_dataset: Dataset) -> None:
    """No epoch after DPR was better on dev, so both are one model; the dual encoder's bundle is there."""
    dpr = {"dense_retrieve": Record(inputs={"dpr": "a"})}
    for name, digest, system in (("same", "a", PLAIN), ("others", "b", DPR)):
        records = {**dpr, "bundle_dual_encoder: Dual encoder": Record(inputs={"dual_encoder": digest})}
        facts = advice(tmp_path / name, tiny_dataset, {PLAIN: 0.6, DPR: 0.6}, Recommend(), records=records)
        assert facts["system"] == system


@pytest.mark.parametrize("means", [{FUSED: 0.9}, {"BM25": 0.9}, {PLAIN: 0.9}], ids=["both", "words", "vectors"])
def test_all_ways_to_search_a_chosen_bundle_rank_alike(
    means: dict[str, float], plain: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    bundle = chosen(tmp_path, tiny_dataset, [plain], {**MEANS, GRAPH: 0.1, **means})
    searcher, rows = Searcher(bundle), tiny_dataset.query_rows("test")
    questions, weight = tiny_dataset.query_texts(rows), bundle.serving.weight
    vectors = encode_texts(searcher.encoder, questions, precision="fp32")
    many = served_run(bundle, searcher.index, rows, questions, vectors, 10)
    for row, question in zip(rows, questions, strict=True):
        one = searcher.run(question, 10, weight)
        if weight == 0.0:
            _, hits = Bm25.build(tiny_dataset.passages, IndexBm25()).search([question], 10)
            assert np.array_equal(one.passage, hits[0][hits[0] >= 0])
        np.testing.assert_allclose(many.of(np.array([row])).score, one.score, atol=1e-4)
    # The gate measures the same ranking, and the time of all of it.
    figures = bundle_figures(searcher, tiny_dataset, "test", ("RR@10",), Evaluate(precision="fp32"))[ALL][:, 0]
    first = {row: many.of(np.array([row])).passage for row in rows}
    labels = tiny_dataset.split_qrels("test")
    expected = [
        next((1 / (i + 1) for i, p in enumerate(first[q]) if p == wanted), 0.0)
        for q, wanted in zip(labels.query, labels.passage, strict=True)
    ]
    np.testing.assert_allclose(figures[np.argsort(np.argsort(labels.query))], expected, atol=1e-9)
    took = measure_latency({"it": served_path(searcher)}, questions[:3])["systems"]["it"]
    assert (took["encode_ms"] < 0.05) == (weight == 0.0) and took["search_ms"] > 0
