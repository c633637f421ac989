"""The bundle that a run chooses: what it has, and how it is searched."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from bundles import write_bm25
from recommend_inputs import FUSED, GRAPH, MEANS, PLAIN, advice
from tiny_graph import ROUNDED

from gnn_encoder.artifacts import Bundle, Dataset, drafting, read_manifest
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.history import Record
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
