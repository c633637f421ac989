"""`gnn-encoder explain` on a tiny bundle: what it tells equals the vectors, and what it lacks it says."""

import io
import json
import shutil
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import call
from manifests import write_manifest
from report_inputs import Structure
from rich.console import Console
from tiny_graph import ROUNDED, encode, write_models

from gnn_encoder.artifacts import Bundle, Dataset, Encoding, Graph, drafting
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.explanation.passages import LEGEND, NEEDED
from gnn_encoder.explanation.search import ExplainedHit, explain_reranked, explain_search, ranks, show_hit
from gnn_encoder.report.page import fill
from gnn_encoder.retrieval.reranking import reranked_by_bundle
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import ASKED, Searcher

QUESTION = "what is the old river"


@pytest.fixture(scope="module")
def latest(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    """ROOT/latest: links to what two steps made of the tiny dataset with random models."""
    folder = tmp_path_factory.mktemp("root")
    models = write_models(folder / "models", tiny_backbone)
    outputs = encode(tiny_dataset.path, models, folder / "made", shards=3)
    (folder / "latest").mkdir()
    places = {name: outputs / name for name in ("bundle", *NEEDED)}
    places |= {"dataset": tiny_dataset.path, "gnn_encoder": models["gnn_encoder"]}
    for name, target in places.items():
        (folder / "latest" / name).symlink_to(target)
    return folder / "latest"


@pytest.fixture(scope="module")
def hits(latest: Path) -> list[ExplainedHit]:
    return explain_search(Searcher(Bundle.read(latest / "bundle")), QUESTION, k=60, neighbors=2)


def test_scores_and_ranks_are_those_of_the_vectors(latest: Path, hits: list[ExplainedHit]) -> None:
    searcher = Searcher(Bundle.read(latest / "bundle"))
    question, _, rows = searcher.find(QUESTION, 60)
    run = searcher.run(QUESTION, 60)
    assert [explained.hit for explained in hits] == searcher.hits(run.score, run.passage)
    encoded = np.asarray(Encoding.read(latest / "encoding").passages)
    with_graph, without = searcher.bundle.vectors @ question, encoded @ question
    for explained, row in zip(hits, rows, strict=True):
        assert explained.why.score == pytest.approx(explained.hit.score, rel=ROUNDED)  # the stored vector is rounded
        assert explained.why.plain_score == pytest.approx(without[row], abs=1e-5)
        assert explained.rank == explained.hit.rank == 1 + (with_graph > with_graph[row]).sum()
        assert explained.plain_rank == 1 + (without > without[row]).sum()
    assert [explained.plain_rank for explained in hits] != [
        explained.rank for explained in hits
    ]  # Control: the graph did something.


def test_weights_and_texts_are_those_of_the_graph(
    latest: Path, hits: list[ExplainedHit], tiny_dataset: Dataset
) -> None:
    graph, count = Graph.read(latest / "graph"), 0
    for explained in hits:
        row, why = int(explained.hit.passage_id[1:]), explained.why
        reaching = graph.reverse[graph.indptr[row] : graph.indptr[row + 1]] // graph.edges.shape[1]
        assert len(why.influences) == min(2, len(reaching)) and why.others == max(0, len(reaching) - 2)
        total = why.own + why.others_weight + sum(influence.weight for influence in why.influences)
        assert total == pytest.approx(1, abs=1e-6)
        assert why.own == pytest.approx(np.mean(why.own_heads)) and 0 <= why.open_share <= 1 and 0 < why.opening < 1
        for influence in why.influences:
            count += 1
            query = int(influence.query_id[1:])
            assert query in graph.queries[reaching]
            assert influence.query == tiny_dataset.query_texts(np.array([query]))[0]
            assert influence.weight == pytest.approx(np.mean(influence.heads)) and len(influence.heads) == 4
            assert influence.score_change != 0
            near = [f"p{p}" for p in graph.edges[np.flatnonzero(graph.queries == query)[0]]]
            assert sorted(i.passage_id for i in influence.inflows) == sorted(near)  # 3 neighbours, 3 told
            assert influence.own + sum(i.weight for i in influence.inflows) == pytest.approx(1, abs=1e-6)
            assert all(i.title in i.text for i in influence.inflows)
    assert (
        count
        and any(explained.why.others for explained in hits)
        and not all(explained.why.influences for explained in hits)
    )


def test_ranks_in_any_chunk_and_with_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.integers(-3, 4, (50, 8)).astype(np.float32)  # exact in fp32, with ties
    question, rows = generator.integers(-3, 4, 8).astype(np.float32), np.arange(50)
    order = np.argsort(-(vectors @ question), kind="stable")
    expected = np.empty(50, int)
    expected[order] = np.arange(1, 51)
    assert ranks(vectors, question, rows) == expected.tolist()
    monkeypatch.setattr("gnn_encoder.explanation.search.CHUNK", 7)
    assert ranks(vectors, question, rows) == expected.tolist()
    assert ranks(vectors, question, rows, torch.neg) != expected.tolist()


def test_the_command_shows_it_and_writes_the_page(
    latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "why.html"
    options = ("--bundle", str(latest / "bundle"), "-k", "60", "--neighbors", "1", "--html", str(page))
    assert call("explain", QUESTION, *options) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if "[p" in line and line.startswith("  ")][:1] == ["1"]
    for words in ("with the graph", "without it", "gate open by", "the passage itself", "training query", str(page)):
        assert words in shown
    assert page.read_text("utf-8").count("<article>") == 60


def test_the_page_is_well_formed_and_the_terminal_says_the_same(hits: list[ExplainedHit]) -> None:
    structure = Structure()
    page = fill("explanation.html.j2", question="<b>why</b>", bundle="a bundle", hits=hits, legend=LEGEND)
    structure.feed(page)
    assert structure.open == structure.references == [] and "<b>" not in page and "prefers-color-scheme: dark" in page
    screen = Console(width=100, file=io.StringIO())
    for explained in hits:
        show_hit(screen, explained)
    printed = screen.file.getvalue()  # type: ignore[attr-defined]
    for explained in hits:
        for influence in explained.why.influences:
            assert f"{influence.score_change:+.4f}" in printed and f"{influence.score_change:+.4f}" in page
            assert influence.query in printed and influence.query in page


def test_a_hostile_text_does_not_reach_the_terminal(hits: list[ExplainedHit]) -> None:
    """Whatever text is in an explanation, its escape sequences are not shown."""

    def hostile(part: object) -> Any:
        if isinstance(part, str):
            return f"{part}\x1b[2J\u202e\x9b"
        if isinstance(part, list):
            return [hostile(element) for element in part]
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: hostile(getattr(part, field.name)) for field in fields(part)})
        return part

    screen = Console(width=400, file=io.StringIO())
    explained = next(element for element in hits if element.why.influences and element.why.influences[0].inflows)
    show_hit(screen, hostile(explained))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("[2J") >= 7 and not set("\x1b\u202e\x9b") & set(shown)


@pytest.mark.parametrize(
    "file", ["encoding/parts/1/passages.npy", "graph/edges.npy", "bundle/query_encoder/model.safetensors"]
)
def test_a_flipped_bit_in_what_explains_is_one_line(
    latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    damaged, _, _ = file.partition("/")
    for name in ("bundle", *NEEDED):
        if name == damaged:
            shutil.copytree(latest / name, tmp_path / name)
        else:
            (tmp_path / name).symlink_to((latest / name).resolve())
    content = bytearray((tmp_path / file).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / file).write_bytes(content)
    assert call("explain", QUESTION, "--bundle", str(tmp_path / "bundle")) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"{file} is corrupt: its digest differs" in captured.err


@pytest.mark.parametrize("missing", NEEDED)
def test_a_missing_sibling_is_one_line(
    latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    for name in {"bundle", *NEEDED} - {missing}:
        (tmp_path / name).symlink_to(latest / name)
    assert call("explain", QUESTION, "--bundle", str(tmp_path / "bundle")) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"no {missing} beside it" in captured.err and "give --bundle ROOT/latest/bundle" in captured.err


@pytest.mark.parametrize("other", ["graph", "encoding"])
def test_what_belongs_to_another_bundle_is_refused(
    latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    for name in ("bundle", *NEEDED):
        if name != other:
            (tmp_path / name).symlink_to((latest / name).resolve())
    shutil.copytree(latest / other, tmp_path / other)
    manifest = tmp_path / other / "manifest.json"
    text = manifest.read_text("utf-8")
    digest = Bundle.read(latest / "bundle").manifest.inputs[other]
    assert digest in text
    write_manifest(manifest.parent, json.loads(text.replace(digest, "0" * 64)))
    assert call("explain", QUESTION, "--bundle", str(tmp_path / "bundle")) == 2
    captured = capsys.readouterr()
    assert f"{other} is not what" in captured.err and captured.err.count("\n") == 1


class WordsOfPairs:
    """A re-ranker with scores below 0, of two parts or, as a cross-encoder's, of none."""

    def __init__(self, has_parts: bool, scale: float = 1.0) -> None:
        self.has_parts, self.scale = has_parts, scale

    def score(self, data: Any, query: np.ndarray, passage: np.ndarray, **options: Any) -> np.ndarray:
        return (self.scale * (passage * 7 % 31) - 9).astype(np.float32)

    def explain(self, data: Any, query: str, passage: int) -> list[Contribution]:
        parts = [Contribution("words", self.scale * (passage * 7 % 31)), Contribution("length", -9.0)]
        return parts if self.has_parts else []


@pytest.mark.parametrize("weight", [0.7, 1.0])
@pytest.mark.parametrize("scorer", [WordsOfPairs(True), WordsOfPairs(False), WordsOfPairs(True, scale=0.0)])
def test_the_parts_of_a_re_ranked_score_sum_to_it(
    latest: Path, tmp_path: Path, scorer: WordsOfPairs, weight: float
) -> None:
    with drafting(tmp_path / "bundle", "bundle") as draft:
        bundle = Bundle.read(latest / "bundle")
        bundle.serve(draft, Serving("re-ranked", None, reranking=Reranking("GNN-encoder", weight, 20)))
    searcher = Searcher(Bundle.read(tmp_path / "bundle"))
    first = searcher.run(QUESTION, 20)
    expected = reranked_by_bundle(searcher.bundle, scorer, ASKED, [QUESTION], first, 20)  # type: ignore[arg-type]
    explained = explain_reranked(searcher, scorer, QUESTION, 20)  # type: ignore[arg-type]
    assert [hit for hit, _ in explained] == searcher.hits(expected.score, expected.passage)
    for hit, parts in explained:
        named = [part.source for part in parts]
        assert named[-2:] == ["words", "length"] if weight == 1 and parts else True
        if parts:
            assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-5)
    amounts = [{part.source: part.amount for part in parts} for _, parts in explained]
    assert bool(amounts[0]) == (scorer.has_parts or weight < 1)
    if weight < 1:
        shares = [part for one in amounts for source, part in one.items() if source.startswith("GNN-encoder")]
        assert len(shares) == 20 and max(shares) == pytest.approx(0.3) and min(shares) == 0
        assert all(("the re-ranker" in one) != scorer.has_parts for one in amounts)
    if weight < 1 and scorer.has_parts and scorer.scale:
        rows = [int(hit.passage_id[1:]) for hit, _ in explained]
        raw = np.array([row * 7 % 31 for row in rows])
        assert [one["words"] for one in amounts] == pytest.approx((raw * 0.7 / np.ptp(raw)).tolist())
