"""Bundles that rank by a part with labels or by a learned fusion: they answer as the run ranked, with every index."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bundles import modules_of_search
from command_line import call
from labelled_bundles import write_inputs
from sentence_transformers import SentenceTransformer

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Run, read_manifest, read_vectors
from gnn_encoder.artifacts.parts_folder import DEV_EXAMPLES
from gnn_encoder.artifacts.tables import System
from gnn_encoder.evaluation.embedding import vectors_of_queries
from gnn_encoder.evaluation.fusion_examples import Examples, Labelled, hard_negative_pulls
from gnn_encoder.explanation.fusion import explain_by_fusion
from gnn_encoder.labels.adding import add_labels, remove_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.promotion.champion import compare_with_champion
from gnn_encoder.retrieval.held_out import HeldOut
from gnn_encoder.retrieval.learned_fusion import Linear, Trees, read_fusion
from gnn_encoder.retrieval.parts import FEATURES, FROM_LABELS
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import Searcher, served_run
from gnn_encoder.settings.fusion import FuseParts, MakeParts
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import Evaluate, Rank
from gnn_encoder.settings.systems import fusion_systems
from gnn_encoder.steps.fuse_parts import fuse_parts
from gnn_encoder.steps.make_parts import make_parts
from gnn_encoder.steps.rank import rank
from gnn_encoder.tracking.progress import Progress

KINDS = fusion_systems()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("parts")
    inputs = write_inputs(folder, tiny_backbone)
    read = {name: inputs[name] for name in ("dataset", "passage_vectors", "bm25_index")}
    make_parts(MakeParts(), **read, parts=folder / "parts")
    return {**inputs, "parts": folder / "parts"}


def bundle_of(inputs: dict[str, Path], folder: Path, kind: str, **settings: object) -> Path:
    path = folder / f"{kind}-{'-'.join(map(str, settings.values()))}"
    fuse_parts(FuseParts(kind=kind, smallest_leaf=2, **settings), **inputs, bundle=path)
    return path


@pytest.fixture(scope="module")
def bundles(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fused")
    return {kind: bundle_of(inputs, folder, kind) for kind in KINDS}


def test_hard_negatives_are_the_first_hits_that_are_no_positive(inputs: dict[str, Path]) -> None:
    data, vectors = Dataset(inputs["dataset"]), read_vectors(inputs["passage_vectors"])
    labelled, texts = Labelled.of(data), data.passages.take(np.arange(40)).texts
    queries = vectors_of_queries(inputs["passage_vectors"], data, labelled.rows)
    pulls = hard_negative_pulls(data, labelled, vectors, queries, 0.5, 3)
    assert pulls is not None
    for i in range(len(labelled.rows)):
        positives = labelled.passage[labelled.query == i]
        known = {texts[p] for p in positives}  # a copy of a positive is no negative
        hits = [p for p in np.argsort(-(vectors @ queries[i]), kind="stable") if texts[p] not in known][:3]
        expected = 0.5 * (vectors[positives].mean(axis=0) - vectors[hits].mean(axis=0))
        np.testing.assert_allclose(pulls[i], expected, atol=1e-5)


@pytest.mark.slow
def test_a_search_imports_nothing_heavy(bundles: dict[str, Path]) -> None:
    for kind, bundle in bundles.items():  # 0.75 to 1 s of processor time; torch and transformers would take 4 s more
        assert modules_of_search(bundle) <= {"bm25s", *({"scipy"} if kind == "trees" else ())}, kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_bundle_answers_as_its_run_ranked(
    kind: str, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    data, bundle = Dataset(inputs["dataset"]), Bundle.read(bundles[kind])
    rank(Rank(system=KINDS[kind], precision="fp32"), dataset=data.path, bundle=bundle.path, run=tmp_path / "run")
    run, searcher = Run.read(tmp_path / "run"), Searcher(bundle)
    assert System.of(tmp_path / "run").name == bundle.system == KINDS[kind]
    test = data.query_rows("test")
    for query, question in zip(test.tolist(), data.query_texts(test), strict=True):
        hits = run.hits(np.array([query]), 40)[0]
        for k in (1, 7):
            np.testing.assert_array_equal(searcher.run(question, k).passage, hits[:k])
        # Further down are copies of passages: which of them is a candidate hangs on the last bit of a product.
        deep = sorted(searcher.run(question, 40).passage.tolist())
        assert len(deep) < 40 if kind == "field" else deep == list(range(40)), "words alone find no other passage"
    assert all(np.diff(run.score)[np.diff(run.query) == 0] <= 0)


def test_words_alone_need_no_vector(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a question was encoded")

    monkeypatch.setattr(Searcher, "encode", refuse)
    monkeypatch.setattr(Retriever, "encode_queries", refuse)
    for kind, reads in (("field", False), ("trees", True)):
        searcher, retriever = Searcher(Bundle.read(bundles[kind])), Retriever(Bundle.read(bundles[kind]))
        for search, count in ((searcher.run, lambda run: len(run.passage)), (retriever.search, len)):
            if reads:
                with pytest.raises(AssertionError, match="was encoded"):
                    search("the old river", 3)
            else:
                assert count(search("the old river", 3)) == 3


def test_the_field_and_the_adapter_rank_by_their_score_alone(inputs: dict[str, Path], bundles: dict[str, Path]) -> None:
    data = Dataset(inputs["dataset"])
    question = data.query_texts(data.query_rows("test")[:1])[0]
    for kind, feature in (("field", "labelled"), ("adapter", "adapted")):
        searcher = Searcher(Bundle.read(bundles[kind]))
        vector = searcher.encode(question)
        candidates = searcher.index.learned.parts.candidates([question], vector)
        scores = candidates.features[:, FEATURES.index(feature)]
        np.testing.assert_allclose(np.sort(-scores)[:5], -searcher.run(question, 5).score, atol=1e-5)
    np.testing.assert_allclose(
        searcher.index.learned.parts.vectors[candidates.passage] @ (vector[0] @ searcher.index.learned.parts.adapter),
        scores, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("index", ["flat_fp16", "sq8", "ivf", "hnsw"])
def test_with_every_index(index: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    read = {name: inputs[name] for name in ("dataset", "passage_vectors", "bm25_index")}
    make_parts(MakeParts(index=index), **read, parts=tmp_path / "parts")
    assert read_manifest(tmp_path / "parts").metrics["query_recall"] > 0.9
    latest = tmp_path / "latest"
    latest.mkdir()
    (latest / "dataset").symlink_to(inputs["dataset"])
    (latest / "bundle").symlink_to(bundle_of({**inputs, "parts": tmp_path / "parts"}, tmp_path, "linear", index=index))
    data = Dataset(inputs["dataset"])
    for turn in range(2):
        bundle = Bundle.read(latest / "bundle")
        rank(Rank(system="s", precision="fp32"), dataset=data.path, bundle=bundle.path, run=tmp_path / f"run{turn}")
        run, searcher, test = Run.read(tmp_path / f"run{turn}"), Searcher(bundle), data.query_rows("test")
        assert searcher.index.learned.parts.query_index is not None
        for query, question in zip(test.tolist(), data.query_texts(test), strict=True):
            hits = run.hits(np.array([query]), 10)[0]
            np.testing.assert_array_equal(searcher.run(question, 10).passage, hits[hits >= 0])
        if not turn:
            add_labels(latest / "bundle", [Wanted(data.query_texts(data.query_rows("train")[:1])[0], "p39")])


def test_what_is_learnt_is_measured_out_of_its_fold(inputs: dict[str, Path], bundles: dict[str, Path]) -> None:
    parts = read_manifest(inputs["parts"]).metrics
    assert parts["labelled_queries"] == parts["examples"] == 45 and parts["labelled_passages"] == 13
    figures = {kind: read_manifest(path).metrics["figure"] for kind, path in bundles.items()}
    assert figures["trees"] > 0.3 and figures["linear"] > 0.3
    assert isinstance(read_fusion(Bundle.read(bundles["trees"]).fusion_path, FEATURES), Trees)


@pytest.fixture
def latest(inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path) -> Path:
    """ROOT/latest of a run that recommends the learned fusion."""
    latest = tmp_path / "run" / "latest"
    (latest / "bundles").mkdir(parents=True)
    for name in ("bundle", "bundles/learned_fusion"):
        (latest / name).symlink_to(bundles["trees"])
    (latest / "dataset").symlink_to(inputs["dataset"])
    return latest


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_an_explanation_sum_to_the_score(kind: str, bundles: dict[str, Path]) -> None:
    searcher = Searcher(Bundle.read(bundles[kind]))
    question = "what is river in north number 0"
    explained = explain_by_fusion(searcher, question, 5)
    ids = searcher.bundle.passages.take(searcher.run(question, 5).passage).ids
    assert [hit.passage_id for hit, _ in explained] == ids
    for hit, parts in explained:
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-3)
    said = " ".join(part.source for part in explained[0][1])
    for words in ("query adapter (", "vectors (", ", rank ", "words of passage and labelled queries: "):
        assert words in said
    if kind == "linear":
        assert "similar training query: “what is river in" in said


def test_a_label_counts_at_once_in_memory_and_field_and_is_taken_back(latest: Path, inputs: dict[str, Path]) -> None:
    bundle, question = latest / "bundle", "an unheard of zeppelin"
    labels = Bundle.read(bundle).labels
    cold = int(np.setdiff1d(np.arange(40), labels.passages)[0])

    def scored() -> np.ndarray:
        searcher = Searcher(Bundle.read(bundle))
        candidates = searcher.index.learned.parts.candidates([question], searcher.encode(question))
        columns = [FEATURES.index(name) for name in ("labelled", "memory")]
        return candidates.features[candidates.passage == cold][:, columns].ravel()

    before = scored()
    effect = add_labels(bundle, [Wanted(question, f"p{cold}")]).effect
    assert "count at once" in effect
    field, memory = scored()
    assert field > 1 and memory == pytest.approx(1.0, abs=1e-5)
    remove_labels(bundle, [Wanted(question, f"p{cold}")])
    np.testing.assert_array_equal(scored(), before)


def test_the_gate_compares_it_as_it_is_served(inputs: dict[str, Path], bundles: dict[str, Path]) -> None:
    data = Dataset(inputs["dataset"])
    new, old = (Searcher(Bundle.read(bundles[kind])) for kind in ("trees", "field"))
    settings = Evaluate(permutations=100, precision="fp32")

    def progress(stage: str, total: int) -> Progress:
        return Progress("promote", stage, total, "queries")

    compared = compare_with_champion(data, "test", new, old, "1", ("RR@10",), settings, progress).strata[ALL]
    for searcher, figure in ((new, compared.challenger["RR@10"]), (old, compared.other["RR@10"])):
        test = data.query_rows("test")
        ranks = []
        for query, question in zip(test.tolist(), data.query_texts(test), strict=True):
            relevant = data.qrels.passage[data.qrels.query == query]
            hits = searcher.run(question, 10).passage
            ranks.append(1 / (1 + np.isin(hits, relevant).argmax()) if np.isin(hits, relevant).any() else 0.0)
        assert figure == pytest.approx(np.mean(ranks), abs=1e-6)


def test_an_export_says_what_stays(latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("export", str(tmp_path / "export"), "--bundle", str(latest / "bundle"), "--format", "parquet")
    assert "without BM25, labelled queries, the query adapter and the fusion" in capsys.readouterr().err


def test_a_router_has_the_adapter_in_the_route_of_queries(
    bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported, bundle = tmp_path / "export", Bundle.read(bundles["adapter"])
    form = ("--format", "sentence-transformers")
    call("export", str(exported), "--bundle", str(bundle.path), *form)
    assert "without" not in capsys.readouterr().err, "nothing stays"
    model, question = SentenceTransformer(str(exported), device="cpu"), "the old river"
    scores = model.encode_query([question]) @ np.asarray(bundle.vectors, np.float32).T
    hits = Retriever(bundle).search(question, 5)
    np.testing.assert_allclose(np.sort(scores[0])[::-1][:5], [hit.score for hit in hits], atol=1e-4)
    adapter = np.load(bundle.path / "fusion" / "adapter.npy")
    plain = model.encode_document([question])
    np.testing.assert_allclose(model.encode_query([question]), plain @ adapter, atol=1e-5)
    assert not np.allclose(plain @ adapter, plain, atol=1e-3), "the control: the adapter turns a query"
    assert (exported / "router_config.json").is_file() and not list(exported.rglob("*.bin"))


def test_over_a_trained_encoder_the_linear_fusion_is_learnt_from_dev_queries_without_the_one_it_ranks(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    read = {name: inputs[name] for name in ("dataset", "passage_vectors", "bm25_index")}
    make_parts(MakeParts(trained_encoder=True, smallest_dev=5, folds=3), **read, parts=tmp_path / "parts")
    trained, data = {**inputs, "parts": tmp_path / "parts"}, Dataset(inputs["dataset"])
    bundle = Bundle.read(bundle_of(trained, tmp_path, "linear"))
    examples = Examples.read(tmp_path / "parts" / DEV_EXAMPLES)
    labels = data.split_qrels("dev").positive()
    dev = np.unique(labels.query)
    assert len(examples.sizes) == len(dev) and examples.relevant.any() and len(np.unique(examples.fold)) == 3
    texts, search = data.query_texts(dev), Searcher(bundle).index.learned
    assert search is not None and bundle.fusion_path is not None
    candidates = search.parts.candidates(texts, vectors_of_queries(inputs["passage_vectors"], data, dev))
    np.testing.assert_allclose(candidates.features, examples.features, atol=1e-5)
    pairs = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    is_labelled = [
        (dev[q], p) in pairs for q, p in zip(candidates.query.tolist(), candidates.passage.tolist(), strict=True)
    ]
    assert np.all(examples.relevant[is_labelled]), "copies of a positive are positives, too"

    # Each dev query is ranked by a fusion that the other folds teach, each test query by that of all.
    rank(Rank(system="Linear fusion", precision="fp32"), dataset=data.path, bundle=bundle.path, run=tmp_path / "run")
    run, rows = Run.read(tmp_path / "run"), np.repeat(examples.fold, examples.sizes)
    for row, fold, text in zip(dev.tolist(), examples.fold.tolist(), texts, strict=True):
        fusion = Linear.fit(examples.features[rows != fold], examples.relevant[rows != fold], FROM_LABELS)
        vector = vectors_of_queries(inputs["passage_vectors"], data, np.array([row]))
        expected = replace(search, fusion=fusion).run(np.array([row]), [text], vector, 10)
        np.testing.assert_allclose(run.of(np.array([row]), 10).score, expected.score, atol=1e-4)
    vectors = vectors_of_queries(inputs["passage_vectors"], data, dev)
    index, out = PassageIndex.read(bundle), data.identical[dev]
    measured = served_run(bundle, index, dev, texts, vectors, 10, out, measured=True)
    np.testing.assert_allclose(measured.score, run.of(dev, 10).score, atol=1e-5)
    served = served_run(bundle, index, dev, texts, vectors, 10, out)
    assert not np.allclose(served.score, measured.score, atol=1e-5), "a question in service has the fusion of all"
    assert not len(served_run(bundle, index, dev[:0], [], vectors[:0], 10, measured=True).query)
    assert not any("examples" in name for name in bundle.manifest.files)
    whole = Linear.fit(examples.features, examples.relevant, FROM_LABELS)
    np.testing.assert_allclose(read_fusion(bundle.fusion_path, FEATURES).weights, whole.weights, rtol=1e-4, atol=1e-6)
    held = HeldOut.read(bundle.fusion_path)
    assert held is not None
    for fold, fusion in held.fusions.items():
        wrong = np.where(rows == fold, ~examples.relevant, examples.relevant)  # its own labels do not reach it
        np.testing.assert_allclose(
            fusion.weights,
            Linear.fit(examples.features[rows != fold], wrong[rows != fold], FROM_LABELS).weights,
            rtol=1e-4,
            atol=1e-6,
        )
        assert not np.allclose(Linear.fit(examples.features, wrong, FROM_LABELS).weights, whole.weights, rtol=1e-2), (
            "a control"
        )

    # Few dev queries, an encoder as it is, or trees: from training queries.
    make_parts(MakeParts(trained_encoder=True, smallest_dev=1000), **read, parts=tmp_path / "few")
    assert not (tmp_path / "few" / DEV_EXAMPLES).exists() and not (inputs["parts"] / DEV_EXAMPLES).exists()
    assert HeldOut.read(Bundle.read(bundle_of(trained, tmp_path, "trees")).fusion_path) is None
