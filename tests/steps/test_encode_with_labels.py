"""Bundles of labelled queries: what they hold, how they are searched, explained and compared."""

from pathlib import Path

import numpy as np
import pytest
from command_line import call
from labelled import best_by_loop, scores_by_loop
from labelled_bundles import USES, bundle_of, write_inputs
from tiny_graph import ROUNDED

from gnn_encoder.artifacts import Bundle, Dataset, Run, drafting, read_manifest, read_vectors
from gnn_encoder.artifacts.arrays import create_rows, create_vectors, read_rows
from gnn_encoder.artifacts.tables import System
from gnn_encoder.explanation.labels import explain_by_labels
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.promotion.champion import compare_with_champion
from gnn_encoder.retrieval.search import Searcher, fusion_weight
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.measures import ALL
from gnn_encoder.settings.outcome import Evaluate, Rank
from gnn_encoder.steps.encode_with_labels import encode_with_labels
from gnn_encoder.steps.rank import rank
from gnn_encoder.tracking.progress import Progress


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("labels"), tiny_backbone)


@pytest.fixture(scope="module")
def bundles(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {name: bundle_of(inputs, folder, name) for name in USES}


@pytest.mark.parametrize("name", USES)
def test_a_bundle_searches_and_explains_as_its_equation_says(
    name: str, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    data, bundle, plain = (
        Dataset(inputs["dataset"]),
        Bundle.read(bundles[name]),
        read_vectors(inputs["passage_vectors"]),
    )
    labels, use = bundle.labels, bundle.label_use
    assert labels and use and (use.weight > 0) == (name != "nothing")
    several = {"max": 40 - 13 + 45, "clusters": len(bundle.vectors)}
    assert len(bundle.vectors) == several.get(name, 40) and (bundle.vector_passages is None) == (name not in several)
    metrics = read_manifest(bundle.path).metrics
    assert metrics["labelled_passages"] == 13 and metrics["labelled_queries"] == 45
    np.testing.assert_array_equal(labels.vectors, read_rows(inputs["passage_vectors"], "queries"))

    test = data.query_rows("test")
    vectors = encode_texts(TextEncoder.load(bundle.query_encoder_path), data.query_texts(test), precision="fp32")
    expected = [scores_by_loop(use, plain, labels, vector) for vector in vectors]
    best = [best_by_loop(scores, 40) for scores in expected]
    rank(Rank(system=name, precision="fp32"), dataset=data.path, bundle=bundle.path, run=tmp_path / "run")
    run = Run.read(tmp_path / "run").of(test)
    np.testing.assert_array_equal(run.hits(test, 3), np.array(best)[:, :3])
    wanted = np.concatenate([scores[rows] for scores, rows in zip(expected, best, strict=True)])
    np.testing.assert_allclose(run.score, wanted, atol=1e-5)
    assert System.of(tmp_path / "run").name == name

    question = data.query_texts(test[:1])[0]
    explained = explain_by_labels(Searcher(bundle), question, k=6, queries=2)
    assert [hit.passage_id for hit, _ in explained] == [f"p{row}" for row in best[0][:6]]
    for (hit, parts), row in zip(explained, best[0], strict=False):
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-5)
        assert hit.score == pytest.approx(expected[0][row], abs=1e-5)
        assert parts[0].source == f"the passage itself (alone {vectors[0] @ plain[row]:.4f})"
        assert len(parts) <= 4 and (name == "nothing") <= (len(parts) == 1)
    if name != "nothing":
        assert any("number" in part.source and "[q" in part.source for _, parts in explained for part in parts)
    if name == "sum":  # nine queries of a passage: two are named
        passage = int(np.argmax(labels.by_passage.sizes))
        explained = explain_by_labels(Searcher(bundle), question, 40, 2)
        (parts,) = (parts for hit, parts in explained if hit.passage_id == f"p{passage}")
        assert [part.source for part in parts[3:]] == ["7 more queries"]


@pytest.mark.parametrize("name", USES)
def test_vectors_have_the_type_of_the_dual_encoders(
    name: str, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    with drafting(tmp_path / "vectors", "vectors") as draft:
        create_vectors(draft, 40, 32, np.float16)[:] = read_vectors(inputs["passage_vectors"])
        for queries in ("queries", "evaluated"):
            rows = read_rows(inputs["passage_vectors"], queries)
            create_rows(draft, queries, rows.shape)[:] = rows
    path = bundle_of({**inputs, "passage_vectors": tmp_path / "vectors"}, tmp_path, name)
    rounded, exact = Bundle.read(path), Bundle.read(bundles[name])
    assert rounded.vectors.dtype == np.float16 and exact.vectors.dtype == np.float32
    assert rounded.label_use == exact.label_use
    np.testing.assert_allclose(rounded.vectors, exact.vectors, rtol=2 * ROUNDED, atol=1e-3)
    for bundle, source in ((path, tmp_path / "vectors"), (bundles[name], inputs["passage_vectors"])):
        same = (bundle / "vectors.npy").samefile(source / "vectors.npy")
        assert same == (name in ("softmax", "nothing")), "unchanged vectors take no space"
    explained = explain_by_labels(Searcher(rounded), "what is river in north number 0", k=6)
    for hit, parts in explained:
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=2e-3)


@pytest.mark.parametrize("name", ["sum", "max", "softmax", "clusters"])
def test_the_gate_compares_such_a_bundle(name: str, inputs: dict[str, Path], bundles: dict[str, Path]) -> None:
    data = Dataset(inputs["dataset"])
    new, old = (Searcher(Bundle.read(bundles[system])) for system in (name, "nothing"))
    settings = Evaluate(permutations=200, precision="fp32")

    def progress(stage: str, total: int) -> Progress:
        return Progress("promote", stage, total, "queries")

    comparison = compare_with_champion(data, "test", new, old, "1", ("RR@10", "R@1000"), settings, progress)
    whole = comparison.strata[ALL]
    assert whole.difference("RR@10") > 0.1 and whole.challenger["R@1000"] == 1.0
    assert (comparison.challenger.index_bytes > comparison.champion.index_bytes) == (name != "sum")


@pytest.mark.parametrize("name", ["softmax", "clusters"])
def test_words_and_vectors_together(name: str, bundles: dict[str, Path]) -> None:
    searcher, question = Searcher(Bundle.read(bundles[name])), "the old river"
    weight, weights = fusion_weight(searcher.bundle)
    run = searcher.run(question, 40, weight)
    assert len(set(run.passage.tolist())) == len(run.passage) == 40 and "not tuned" in weights
    alone = searcher.run(question, 5, 1.0)
    assert alone.passage.tolist() == searcher.run(question, 5).passage.tolist()


def test_explain_on_the_command_line(bundles: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", "what is river in north number 0", "--bundle", str(bundles["clusters"])]
    for more, code in ((["-k", "2"], 0), (["--html", "page.html"], 2)):
        assert call(*command, *more) == code
    shown, complaint = capsys.readouterr()
    assert shown.count("the passage itself") == 2 and "[q" in shown
    assert "--html shows the graph's effect" in complaint


@pytest.mark.parametrize("parts", [1, 4])
def test_an_index_over_several_vectors(
    inputs: dict[str, Path], tmp_path: Path, bundles: dict[str, Path], parts: int
) -> None:
    settings = EncodeWithLabels.model_validate(
        {"precision": "fp32", "smallest_dev": 10, "index": "flat_fp16", "index_parts": parts, **USES["max"]}
    )
    encode_with_labels(settings, **inputs, bundle=tmp_path / "fp16")
    by_index, exact = (Searcher(Bundle.read(path)) for path in (tmp_path / "fp16", bundles["max"]))
    assert len(by_index.bundle.index_files) == parts and by_index.bundle.searched_bytes < exact.bundle.searched_bytes
    mine, wanted = (searcher.run("what is river in north", 40) for searcher in (by_index, exact))
    np.testing.assert_allclose(mine.score, wanted.score, atol=2e-3)
