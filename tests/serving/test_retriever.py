"""An application gets what `gnn-encoder search` shows: one question, many questions, many threads."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle

import gnn_encoder
from gnn_encoder import Hit, Retriever, UserError
from gnn_encoder.artifacts import Bundle, Dataset, Passages, PassageTable, drafting
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.search import Searcher, served_weight
from gnn_encoder.serving.answers import answers_of
from gnn_encoder.serving.batching import Ask
from gnn_encoder.serving.following import Followed
from gnn_encoder.settings.outcome import IndexKind

QUESTIONS = ["what is the old river", "garden", "violin market in winter", "the stone of the mountain"]


def same(hits: list[Hit], expected: list[Hit]) -> bool:
    """Whether hits are the same; scores may differ in the last bits of fp32."""
    named = [
        [(hit.rank, hit.passage_id, hit.title, hit.text) for hit in of_question] for of_question in (hits, expected)
    ]
    return named[0] == named[1] and np.allclose([h.score for h in hits], [h.score for h in expected], atol=1e-5)


def searched(path: Path, question: str, k: int, weight: float | None) -> list[Hit]:
    searcher = Searcher(Bundle.read(path))
    run = searcher.run(question, k, weight)
    return searcher.hits(run.score, run.passage)


def test_passages_of_many_questions_are_read_once(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, read = Retriever.load(bundles["vectors"]), []
    take = PassageTable.take

    def counted(self: PassageTable, rows: np.ndarray) -> Passages:
        read.append(rows)
        return take(self, rows)

    monkeypatch.setattr(PassageTable, "take", counted)
    hits = retriever.search(QUESTIONS, k=30)
    (rows,) = read
    assert len(np.unique(rows)) == len(rows) < sum(map(len, hits))


@pytest.mark.parametrize(("name", "weight"), [("vectors", None), ("both", 0.3), ("words", 0.0)])
def test_many_questions_get_what_each_gets_alone(bundles: dict[str, Path], name: str, weight: float | None) -> None:
    retriever = Retriever.load(bundles[name])
    many = retriever.search(QUESTIONS, k=7)
    for question, hits in zip(QUESTIONS, many, strict=True):
        assert same(hits, searched(bundles[name], question, 7, weight)) and hits
        assert same(hits, retriever.search(question, k=7))
    assert not same(many[0], many[1]), "the control: other questions have other hits"
    assert retriever.search([], k=7) == []


def test_a_fusion_can_be_asked_for_and_declined(bundles: dict[str, Path]) -> None:
    question, path = QUESTIONS[0], bundles["vectors"]
    plain, both, words = (searched(path, question, 5, weight) for weight in (None, 0.3, 0.0))
    served, recommended = Retriever.load(path), Retriever.load(str(bundles["both"]))
    assert same(recommended.search(question, 5), both) and not same(plain, both)
    assert same(recommended.search(question, 5, fuse=False), plain)
    assert same(served.search(question, 5, weight=0.3), both) and same(served.search(question, 5), plain)
    assert same(served.search(question, 5, weight=0.0), words)
    assert same(served.search(question, 5, fuse=True), searched(path, question, 5, 0.5))


@pytest.fixture
def latest(bundles: dict[str, Path], tmp_path: Path) -> Path:
    """ROOT/latest: a link to a bundle, and a report that tuned the weight 0.2 of its vectors on dev."""
    inputs = {"dual_encoder": "a" * 64}
    with drafting(tmp_path / "made", "bundle") as draft:
        bundle = Bundle.read(bundles["vectors"])
        bundle.serve(draft, Serving(bundle.system, None))
        draft.manifest.inputs = inputs
    with drafting(tmp_path / "latest" / "report", "report") as draft:
        fusion = {"method": CONVEX, "dense": bundle.system, "weight": 0.2, "tuned_on": "dev"}
        (draft / "metrics.json").write_text(json.dumps({"fusions": {"sum": fusion}}))
        write_history(draft.path, {"report": Record(inputs=inputs)})
    (tmp_path / "latest" / "bundle").symlink_to(tmp_path / "made")
    return tmp_path / "latest"


def test_the_tuned_weight_is_that_of_the_command_line(latest: Path) -> None:
    question, link = QUESTIONS[0], latest / "bundle"
    assert served_weight(Bundle.read(link), fuse=True) == (0.2, "vectors 0.20 + BM25 0.80, tuned on dev")
    tuned, untuned = (searched(link, question, 5, weight) for weight in (0.2, 0.5))
    retriever = Retriever.load(link)
    assert same(retriever.search(question, 5, fuse=True), tuned) and not same(tuned, untuned)
    shutil.rmtree(latest / "report")
    assert same(retriever.search(question, 5, fuse=True), tuned), "it is read once"
    (hits,) = answers_of(Followed(str(link), Path("none")).current, [Ask(question, 5, fuse=True)])
    assert same([Hit(**hit) for hit in hits.hits], untuned), "control: without the report"  # type: ignore[union-attr]


def test_threads_do_not_disturb_each_other(bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(bundles["both"])
    questions = [f"{first} {second}" for first in QUESTIONS for second in QUESTIONS]
    expected = [retriever.search(question, 5) for question in questions]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda question: retriever.search(question, 5), questions * 4))
    assert all(same(hits, right) for hits, right in zip(answers, expected * 4, strict=True))


def test_vectors_of_queries_score_as_hits_do(bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(bundles["vectors"])
    vectors = retriever.encode_queries(QUESTIONS)
    scores = vectors.astype(np.float64) @ retriever.bundle.vectors.astype(np.float64).T
    best = [hits[0].score for hits in retriever.search(QUESTIONS, 1)]
    np.testing.assert_allclose(best, scores.max(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "call", "words"),
    [
        ("vectors", {"questions": ["garden", " "]}, "question is empty"),
        ("vectors", {"questions": "garden", "k": 0}, "ask for at least 1"),
        ("vectors", {"questions": ["garden", "half \ud83d"]}, "half of a surrogate pair"),
        ("vectors", {"questions": "garden", "rerank": True, "depth": 0}, "ask for at least 1"),
        ("vectors", {"questions": "garden", "weight": 1.5}, "from 0 to 1"),
        ("vectors", {"questions": "garden", "weight": float("nan")}, "from 0 to 1"),
        ("vectors", {"questions": "garden", "rerank": True}, "has no re-ranker"),
        ("without", {"questions": "garden", "fuse": True}, "no BM25 index"),
    ],
)
def test_what_cannot_be_done_is_one_line(bundles: dict[str, Path], name: str, call: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Retriever.load(bundles[name]).search(**call)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vectors", "both", "words"])
def test_more_hits_than_passages_take_no_memory(bundles: dict[str, Path], name: str) -> None:
    retriever, most = Retriever.load(bundles[name]), 10**15
    count = len(retriever.bundle.passages)
    assert retriever.search(QUESTIONS, most) == retriever.search(QUESTIONS, count)
    assert retriever.search(QUESTIONS[0], most) == retriever.search(QUESTIONS[0], count)
    searcher = Searcher(retriever.bundle)
    for weight in (None, 0.3, 0.0):
        runs = [searcher.run(QUESTIONS[0], k, weight) for k in (most, count)]
        assert len(runs[0].passage) and (runs[0].passage == runs[1].passage).all()
    assert len(searcher.find(QUESTIONS[0], most)[1]) == count


def test_a_retriever_stays_with_its_bundle_when_the_link_moves(bundles: dict[str, Path], tmp_path: Path) -> None:
    link = tmp_path / "bundle"
    link.symlink_to(bundles["vectors"])
    retriever, expected = Retriever.load(link), Retriever.load(bundles["vectors"])
    link.unlink()
    link.symlink_to(bundles["without"])  # has no BM25, which the retriever has not read yet
    assert retriever.search("the old river", 5, fuse=True) == expected.search("the old river", 5, fuse=True)


def test_ids_are_known_or_not(bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(bundles["vectors"])
    assert retriever.has_passage("p3") and not retriever.has_passage("p") and not retriever.has_passage("")


def test_a_weight_without_a_fusion_is_refused(bundles: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="leave one of them out"):
        Retriever.load(bundles["vectors"]).search("the old river", fuse=False, weight=0.3)


def test_no_such_bundle() -> None:
    with pytest.raises(UserError, match="no bundle"):
        Retriever.load("not/there")


@pytest.mark.slow
def test_a_folder_needs_neither_mlflow_nor_kfp(bundles: dict[str, Path]) -> None:
    program = (
        "import sys, gnn_encoder\n"
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules), 'an import alone is light'\n"
        f"hits = gnn_encoder.Retriever.load({str(bundles['both'])!r}).search('the old river', k=3)\n"
        "assert len(hits) == 3\n"
        "print(sorted({'mlflow', 'kfp', 'boto3', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names() -> None:
    assert all(getattr(gnn_encoder, name) is not None for name in gnn_encoder.__all__)
    expected = {"Explanation", "Hit", "Retriever", "UserError", "__version__"}
    expected |= {"Comparison", "Result", "compare", "evaluate", "run"}
    assert set(dir(gnn_encoder)) == set(gnn_encoder.__all__) == expected
    with pytest.raises(AttributeError, match="nothing"):
        gnn_encoder.nothing  # noqa: B018


def test_a_recommended_bundle_with_an_index_in_parts_finds_the_same(
    bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    plain = Bundle.read(bundles["vectors"])
    hits_of = {}
    for parts in (1, 3):
        unserved, served, kind = tmp_path / f"made{parts}", tmp_path / f"served{parts}", "flat_fp16"
        with drafting(unserved, "bundle") as draft:
            save = TextEncoder.load(plain.query_encoder_path).save
            fill_bundle(draft, plain.vectors, tiny_dataset, save, kind=IndexKind(index=kind, index_parts=parts))
        with drafting(served, "bundle") as draft:
            Bundle.read(unserved).serve(draft, Serving("Dual encoder", None))
        shutil.rmtree(unserved)
        retriever = Retriever.load(served)
        assert len(retriever.bundle.index_files) == parts
        hits_of[parts] = retriever.search(QUESTIONS, k=40)
    assert hits_of[1] == hits_of[3] and all(len(hits) == 40 for hits in hits_of[1])
    (served / "index-00002-of-00003.faiss").unlink()
    with pytest.raises(UserError, match=r"index-00002-of-00003\.faiss is corrupt: missing"):
        Retriever.load(served)
