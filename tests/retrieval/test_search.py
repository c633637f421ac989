"""Questions to a bundle get what a float64 product of the vectors says."""

import shutil
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle, modules_of_search
from command_line import call

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.search import Hit, Searcher, fusion_weight
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.outcome import IndexKind


def search_bundle(bundle: Bundle, question: str, k: int) -> list[Hit]:
    searcher = Searcher(bundle)
    run = searcher.run(question, k)
    return searcher.hits(run.score, run.passage)


def fused_search(bundle: Bundle, question: str, k: int, weight: float | None = None) -> tuple[list[Hit], str]:
    searcher, (weight, weights) = Searcher(bundle), fusion_weight(bundle, weight)
    run = searcher.run(question, k, weight)
    return searcher.hits(run.score, run.passage), weights


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Bundle:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling="mean", max_length=32)
    vectors = np.empty((len(tiny_dataset.passages), encoder.width), np.float32)
    encode_passages(encoder, tiny_dataset.passages, vectors, precision="fp32")
    path = tmp_path_factory.mktemp("search") / "bundle"
    for name, bm25 in (("bundle", Bm25.build(tiny_dataset.passages, IndexBm25())), ("without", None)):
        with drafting(path.with_name(name), "bundle") as draft:
            fill_bundle(draft, vectors, tiny_dataset, encoder.save, bm25=bm25)
    return Bundle.read(path)


def test_hits_are_the_largest_products(bundle: Bundle) -> None:
    question = "what is the old river"
    hits = search_bundle(bundle, question, 5)
    vector = encode_texts(TextEncoder.load(bundle.query_encoder_path), [question], precision="fp32")[0]
    exact = bundle.vectors.astype(np.float64) @ vector
    best = np.argsort(-exact, kind="stable")[:5]
    passages = bundle.passages.take(best)
    assert [hit.passage_id for hit in hits] == passages.ids
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    np.testing.assert_allclose([hit.score for hit in hits], exact[best], rtol=1e-5)
    assert astuple(hits[0])[2:] == (passages.ids[0], passages.titles[0], passages.texts[0])


def test_more_than_there_are(bundle: Bundle) -> None:
    assert len(search_bundle(bundle, "garden", 1000)) == len(bundle.passages)


@pytest.mark.parametrize(
    ("question", "k"),
    [("  ", 5), ("\u200b", 5), ("\ufeff", 5), ("\u3164\u00ad", 5), ("\u2800", 5), ("garden", 0), ("half \ud83d", 5)],
)
def test_impossible_questions_are_one_line(bundle: Bundle, question: str, k: int) -> None:
    for search in (search_bundle, fused_search):
        with pytest.raises(UserError):
            search(bundle, question, k)


@pytest.mark.parametrize("more", [("--fuse", "--weight", "0"), ("--fuse", "--weight", "0", "--rerank")])
def test_a_search_without_a_hit_says_so(
    more: tuple[str, ...], bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("search", "unheard words", "--bundle", str(bundle.path), *more) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no hit: no passage has a word of the question"


@pytest.mark.parametrize(("color", "more", "whole"), [("1", (), False), ("1", ("--full",), True), ("", (), True)])
def test_a_terminal_shows_the_first_lines_of_a_passage(
    color: str, more: tuple[str, ...], whole: bool,
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with drafting(tmp_path / "dataset", "dataset") as dataset:
        writer = DatasetWriter(dataset)
        writer.passages(["long"], [""], [" ".join(f"word{number}" for number in range(100))])
        writer.close()
    with drafting(tmp_path / "bundle", "bundle") as draft:
        save = TextEncoder.load(bundle.query_encoder_path).save
        fill_bundle(draft, bundle.vectors[:1], Dataset(tmp_path / "dataset"), save)
    monkeypatch.setenv("FORCE_COLOR", color)  # rich takes the output for a terminal, or does not
    monkeypatch.setenv("COLUMNS", "60")
    assert call("search", "a question", "--bundle", str(tmp_path / "bundle"), *more) == 0
    shown = capsys.readouterr().out
    assert "word9 " in shown and ("word99" in shown) == whole == ("…" not in shown)


def test_fused_hits_lie_between_those_of_either(bundle: Bundle, tiny_dataset: Dataset) -> None:
    question = "the old river is in winter"
    words, rows = Bm25.build(tiny_dataset.passages, IndexBm25()).search([question], 100)
    dense = {hit.passage_id: hit.score for hit in search_bundle(bundle, question, 1000)}
    is_hit = rows[0] >= 0
    lexical = dict(zip(tiny_dataset.passages.take(rows[0][is_hit]).ids, words[0][is_hit].tolist(), strict=True))

    def scaled(scores: dict[str, float], passage: str) -> float:
        low, high = min(scores.values()), max(scores.values())
        return (scores[passage] - low) / (high - low) if passage in scores else 0.0

    hits, weights = fused_search(bundle, question, 7, 0.3)
    assert weights == "vectors 0.30 + BM25 0.70, as given"
    expected = {passage: 0.3 * scaled(dense, passage) + 0.7 * scaled(lexical, passage) for passage in dense}
    best = sorted(expected.values(), reverse=True)[:7]
    np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-5)
    np.testing.assert_allclose([expected[hit.passage_id] for hit in hits], best, atol=1e-5)
    alone, _ = fused_search(bundle, question, 7, 1.0)
    assert [hit.passage_id for hit in alone] == list(dense)[:7] != [hit.passage_id for hit in hits]


def test_fusing_without_what_it_needs(bundle: Bundle) -> None:
    _, weights = fused_search(bundle, "winter", 3)
    assert weights.startswith("vectors 0.50 + BM25 0.50, not tuned")
    with pytest.raises(UserError, match="no BM25 index"):
        fused_search(Bundle.read(bundle.path.with_name("without")), "winter", 3)


@pytest.mark.parametrize(("kind", "parts"), [("flat", 1), ("flat", 3), ("sq8", 1), ("sq8", 3)])
def test_a_bundle_with_an_index_finds_the_same(
    bundle: Bundle, tiny_dataset: Dataset, tmp_path: Path, kind: str, parts: int
) -> None:
    save = TextEncoder.load(bundle.query_encoder_path).save
    with drafting(tmp_path / "bundle", "bundle") as draft:
        index_kind = IndexKind(index=kind, index_parts=parts)  # type: ignore[arg-type]
        fill_bundle(draft, bundle.vectors, tiny_dataset, save, kind=index_kind)
    hits, expected = (search_bundle(one, "the old river", 5) for one in (Bundle.read(tmp_path / "bundle"), bundle))
    assert [hit.passage_id for hit in hits][:2] == [hit.passage_id for hit in expected][:2]
    assert (hits == expected) == (kind != "sq8")


def test_encoder_of_another_width_is_refused(bundle: Bundle, tiny_dataset: Dataset, tmp_path: Path) -> None:
    save = TextEncoder.load(bundle.query_encoder_path).save
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, bundle.vectors[:, :-1], tiny_dataset, save)
    with pytest.raises(UserError, match="do not fit"):
        Searcher(Bundle.read(tmp_path / "bundle"))


def test_every_damage_to_a_bundle_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle.path, tmp_path / "bundle"))
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(contents) >= 12
    rng = np.random.default_rng(4)
    for path, content in contents.items():
        flipped, others = bytearray(content), [other for other in contents.values() if other != content]
        # What other bits of a manifest do is tested on their own: some are white space.
        at = content.rindex(b'"') - 9 if path.name == "manifest.json" else rng.integers(len(content))
        flipped[at] ^= 1
        for damaged in (bytes(flipped), content[:-1], content + b"\0", b"", others[rng.integers(len(others))], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            with pytest.raises(UserError) as caught:
                Bundle.read(folder)
            assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
            if path.name != "manifest.json":
                assert str(path) in str(caught.value)
            path.write_bytes(content)
    assert search_bundle(Bundle.read(folder), "the old river", 3) == search_bundle(bundle, "the old river", 3)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"


def test_a_hostile_passage_does_not_reach_the_terminal(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with drafting(tmp_path / "dataset", "dataset") as dataset:
        writer = DatasetWriter(dataset)
        writer.passages([f"p{HOSTILE}1"], [f"title{HOSTILE}2"], [f"text{HOSTILE}3 [bold]"])
        writer.close()
    with drafting(tmp_path / "bundle", "bundle") as draft:
        save = TextEncoder.load(bundle.query_encoder_path).save
        data = Dataset(tmp_path / "dataset")
        fill_bundle(draft, bundle.vectors[:1], data, save)
    assert call("search", f"river{HOSTILE}", "--bundle", str(tmp_path / "bundle")) == 0
    assert call("search", "river", "--bundle", f"nothing{HOSTILE}") == 2
    shown = "".join(capsys.readouterr())
    assert all(part in shown for part in ("title", "text", "[p", "2", "3 [bold]", "error: no bundle nothing"))
    assert not set(HOSTILE) & set(shown) - set("]0;owned[2J31m")


@pytest.mark.slow
def test_a_search_imports_nothing_heavy(bundle: Bundle) -> None:
    """It took 7 s of processor time, nearly all of it for importing; it takes 0.7 s."""
    assert modules_of_search(bundle.path) == set()
    # The control, and all that fusing adds.
    assert modules_of_search(bundle.path, "--fuse") == {"bm25s"}
