"""A question that somebody types is re-ranked as a dataset's question is."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import fill_bundle
from command_line import call

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Asked, Bundle, Dataset, drafting, read_manifest
from gnn_encoder.artifacts.bundle import RERANKER, Reranking, Serving
from gnn_encoder.engines.provenance import source_digests
from gnn_encoder.errors import UserError
from gnn_encoder.inference import encoding
from gnn_encoder.inference.encoding import encode_passages
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.scorers import Scorer, load_scorer, save_scorer
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.settings.reranking import BundleReranker
from gnn_encoder.steps.bundle_reranker import bundle_reranker


def write_cross_encoder(backbone: Path, folder: Path) -> None:
    torch.manual_seed(0)
    model = CrossEncoder.from_backbone(str(backbone), 48)
    torch.nn.init.normal_(model.head.weight, std=1.0)
    save_scorer("cross_encoder", model, folder)


def write_colbert(backbone: Path, folder: Path) -> None:
    torch.manual_seed(0)
    save_scorer("colbert", LateInteraction.from_backbone(str(backbone), LateInteractionLayout(16, 24, 16)), folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling="mean", max_length=32)
    vectors = np.empty((len(tiny_dataset.passages), encoder.width), np.float32)
    encode_passages(encoder, tiny_dataset.passages, vectors, precision="fp32")
    path = tmp_path_factory.mktemp("plain") / "bundle"
    with drafting(path, "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, encoder.save, bm25=Bm25.build(tiny_dataset.passages, IndexBm25()))
        draft.manifest.step, draft.manifest.settings = "encode_corpus", {"chunk": 7}
        draft.manifest.inputs, draft.manifest.metrics = {"gnn_encoder": "abc"}, {"passages_per_second": 5.0}
    return path


@pytest.fixture(scope="module")
def bundle(plain: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranking")
    with drafting(folder / "scorer", "model") as draft:
        write_cross_encoder(tiny_backbone, draft.path)
    bundle_reranker(BundleReranker(), first_stage=plain, reranker=folder / "scorer", bundle=folder / "bundle")
    return folder / "bundle"


@pytest.mark.parametrize("write", [write_cross_encoder, write_colbert])
def test_a_typed_question_has_the_scores_of_a_datasets_question(
    write: Callable[[Path, Path], None], tiny_dataset: Dataset, tiny_backbone: Path, plain: Path, tmp_path: Path
) -> None:
    write(tiny_backbone, tmp_path / "scorer")
    scorer: Scorer = load_scorer(tmp_path / "scorer")
    rows = np.array([5, 17, 3, 99])
    (question,) = tiny_dataset.query_texts(np.array([85]))
    expected = scorer.score(tiny_dataset, np.full(4, 85), rows, precision="fp32")
    questions = Asked(["another question", question], Bundle.read(plain).passages)
    np.testing.assert_array_equal(scorer.score(questions, np.ones(4, np.int32), rows, precision="fp32"), expected)
    assert (scorer.score(questions, np.zeros(4, np.int32), rows, precision="fp32") != expected).all()


@pytest.mark.parametrize("weight", [None, 0.0, 0.4])
@pytest.mark.parametrize("of_reranker", [1.0, 0.3])
def test_an_explanation_has_the_hits_of_the_re_ranked_search(
    weight: float | None, of_reranker: float, bundle: Path, tmp_path: Path
) -> None:
    reranking = Reranking("first", of_reranker, 20, precision="fp32")
    with drafting(tmp_path / "bundle", "bundle") as draft:
        Bundle.read(bundle).serve(draft, Serving("both", weight, reranking=reranking), bundle / RERANKER)
    retriever, question = Retriever(Bundle.read(tmp_path / "bundle")), "what is the old river"
    hits = retriever.search(question, 15)
    explained = retriever.explain(question, 15, rerank=True)
    assert [one.hit.passage_id for one in explained] == [hit.passage_id for hit in hits]
    np.testing.assert_allclose([one.hit.score for one in explained], [hit.score for hit in hits], atol=1e-5)
    assert hits != retriever.search(question, 15, rerank=False), "the order is another one"
    shares = [part.amount for one in explained for part in one.parts if part.source.startswith("first, in the sum")]
    assert len(shares) == (len(hits) if of_reranker < 1 else 0) and all(0 <= share <= 0.7 for share in shares)


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[str], str]:
    assert call("search", "what is the old river", *options) == 0
    text = capsys.readouterr().out
    return re.findall(r"\[(p\d+)\]", text), text


@pytest.mark.parametrize("first", [(), ("--fuse",)])
def test_search_orders_the_first_hits_by_the_re_ranker(
    first: tuple[str, ...], bundle: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # In bf16 a random model's scores are too close to one another.
    monkeypatch.setattr(encoding, "fast_bf16", lambda: False)

    def searched(*options: str) -> tuple[list[str], str]:
        return shown(capsys, "--bundle", str(bundle), *first, *options)

    before, plainly = searched("-k", "12")
    model = CrossEncoder.load(bundle / RERANKER).eval()
    texts = dict(
        zip(tiny_dataset.passages.ids().to_pylist(), next(tiny_dataset.passages.stream()).full_texts(), strict=True)
    )
    scores = {}
    for passage in before[:8]:
        pair = model.tokenizer("what is the old river", texts[passage], return_tensors="pt")
        with torch.inference_mode():
            scores[passage] = float(model(**pair)[0])
    best = sorted(before[:8], key=lambda passage: -scores[passage])
    assert best != before[:8]
    hits, lines = searched("--rerank", "--depth", "8", "-k", "12")
    assert hits == best + before[8:]
    assert "the first 8 hits ordered by the re-ranker" in lines and "re-ranker" not in plainly
    assert searched("--rerank", "--depth", "8", "-k", "3")[0] == best[:3]
    assert float(lines.split("  1  ")[1].split()[0]) == pytest.approx(scores[best[0]], abs=1e-3)


def test_a_bundle_without_a_re_ranker_is_one_line(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("search", "river", "--bundle", str(plain), "--rerank") == 2
    error = capsys.readouterr().err
    assert f"{plain} has no re-ranker: gnn-encoder rerank --first-stage" in error and error.count("\n") == 1


def test_the_copy_keeps_the_bundles_origin_and_files_and_one_re_ranker(
    plain: Path, bundle: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    old, new = read_manifest(plain), read_manifest(bundle)
    assert (new.step, new.settings, new.inputs, new.rows) == (old.step, old.settings, old.inputs, old.rows)
    assert new.metrics == old.metrics == {"passages_per_second": 5.0}
    assert (
        len({source_digests("first_stage", FirstStage(source=str(path)))["first_stage"] for path in (plain, bundle)})
        == 1
    )
    assert Bundle.read(bundle).searched == old.files == Bundle.read(plain).searched
    # Neither does a re-ranker that orders every search change the first stage; the control: another first stage.
    digests, alone = [], Bundle.read(plain).serving
    reranking = Reranking(alone.system, 1.0, 7)
    for number, serving in enumerate((alone, Serving("Re-ranked", None, None, reranking), Serving("BM25", 0.0))):
        with drafting(tmp_path / str(number), "bundle") as draft:
            Bundle.read(bundle).serve(draft, serving)
        source = FirstStage(source=str(tmp_path / str(number)))
        digests.append(source_digests("first_stage", source)["first_stage"])
    assert digests[0] == digests[1] != digests[2]
    assert set(new.files) - set(old.files) == {f"{RERANKER}/{path}" for path in written(bundle / RERANKER)}

    with drafting(tmp_path / "scorer", "model") as draft:
        write_colbert(tiny_backbone, draft.path)
    bundle_reranker(BundleReranker(), first_stage=bundle, reranker=tmp_path / "scorer", bundle=tmp_path / "again")
    assert written(tmp_path / "again" / RERANKER) == set(read_manifest(tmp_path / "scorer").files)
    damaged = Path(shutil.copytree(bundle, tmp_path / "damaged"))
    (damaged / RERANKER / "scorer.json").write_text("{}")
    with pytest.raises(UserError, match="is corrupt"):
        Bundle.read(damaged)


def written(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
