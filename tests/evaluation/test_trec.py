import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Evaluation, Qrels, Run, drafting
from gnn_encoder.artifacts.dataset import MISSING
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import Collected
from gnn_encoder.evaluation.compare import compare
from gnn_encoder.evaluation.trec import Ids, read_qrels, read_run, read_run_of, write_qrels, write_run

QUERY_IDS = pa.chunked_array([["q a", "qü"], ["q3"]])
PASSAGE_IDS = pa.chunked_array([[f"p{i}" for i in range(50)]])


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def some_run() -> Run:
    generator = np.random.default_rng(0)
    passages = generator.permuted(np.tile(np.arange(50), (3, 1)), axis=1)[:, :20]
    scores = -np.sort(-generator.normal(0, 1e-3, (3, 20)).astype(np.float32), axis=1)
    return Run.from_hits(np.arange(3), passages, scores)


def test_what_is_written_is_read_to_the_last_bit(tmp_path: Path) -> None:
    run = some_run()
    qrels = Qrels(*(np.array(c, dtype=np.int32) for c in ([0, 1, 2], [4, 5, 6], [1, 0, -2])))
    write_qrels(tmp_path / "qrels.gz", qrels, QUERY_IDS, PASSAGE_IDS)
    write_run(tmp_path / "run.gz", run, QUERY_IDS, PASSAGE_IDS, "a tag")
    first = gzip.decompress((tmp_path / "run.gz").read_bytes()).decode().splitlines()[0].split()
    assert first[:2] == ["q%20a", "Q0"]
    assert first[3] == "1" and first[5] == "a%20tag"
    queries, passages = Ids(), Ids()
    labels = read_qrels(tmp_path / "qrels.gz", queries, passages)
    assert labels.relevance.tolist() == [1, 0, -2]
    assert queries.column().to_pylist() == ["q%20a", "qü", "q3"]
    read_back = read_run(tmp_path / "run.gz", queries, passages)
    assert [passages.column()[p].as_py() for p in read_back.passage] == [f"p{p}" for p in run.passage]
    for name in ("query", "rank", "score"):
        np.testing.assert_array_equal(getattr(read_back, name), getattr(run, name))


def test_writing_again_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "a.gz", some_run(), QUERY_IDS, PASSAGE_IDS, "t")
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_run(tmp_path / "b.gz", some_run(), QUERY_IDS, PASSAGE_IDS, "t")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


@pytest.mark.parametrize("name", ["run", "run.gz"])
def test_scores_rank_whatever_the_ranks_say(tmp_path: Path, name: str) -> None:
    queries, passages = Ids(), Ids()
    read_qrels(written(tmp_path, "qrels", "\ufeffq 0 a 1\r\n\nq 0 a 1\nr\t0\tb\t0\n"), queries, passages)
    text = "q Q0 x 1 0.5 t\nother Q0 x 1 9 t\nr Q0 a 7 -1e3 t\nq Q0 y 2 0.75 t\n"
    run = read_run(written(tmp_path, name, text), queries, passages)
    ids = passages.column().to_pylist()
    hits = zip(run.query.tolist(), (ids[p] for p in run.passage), run.rank.tolist(), run.score.tolist(), strict=True)
    assert list(hits) == [(0, "y", 1, 0.75), (0, "x", 2, 0.5), (1, "a", 1, -1000.0)]
    assert len(queries) == 2  # the query without a label has no number


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "run",
            "q Q0 p 1 2 t\nq Q0 p 1 2\n",
            "line 2: 5 fields where there must be 6: query Q0 passage rank",
        ),
        ("run", "q Q0 p 1 high t\n", "line 1: score 'high' is not a number"),
        ("run", "q Q0 p 1 nan t\n", "line 1: score 'nan' is not a number"),
        ("run", "\nq Q0 p 1 3 t\nq Q0 r 2 2 t\nq Q0 p 3 1 t\n", "line 4: the same query and passage as in line 2"),
        ("run", b"q Q0 \xff 1 3 t\n", "line 1: not UTF-8"),
        ("qrels", "q 0 p 1\nq 0 p\n", "line 2: 3 fields where there must be 4: query 0 passage relevance"),
        ("run", "q Q0 p 1 1_0 t\n", "line 1: score '1_0' is not a number"),
        (
            "run",
            b"\xef\xbb\xbfq Q0 p 1 2 t\n\xef\xbb\xbfq Q0 p 1 2 t\n",
            "line 2: the same query and passage as in line 1",
        ),
        ("run", "q Q0 p 1 2 t\n" + "x" * (1 << 21), "line 2 is longer than 1,048,576 bytes"),
        ("qrels", "q 0 p 1.5\n", "line 1: relevance '1.5' is not an integer from -1,000 to 1,000"),
        ("qrels", "q 0 p 99999999999\n", "line 1: relevance '99999999999' is not an integer"),
        ("qrels", "q 0 p 1000\nq 0 r -1000\nq 0 s 1001\n", "line 3: relevance '1001' is not an integer"),
        ("qrels", "q 0 p -2147483648\n", "line 1: relevance '-2147483648' is not an integer"),
        ("qrels", "q 0 p \u0661\n", "line 1: relevance '\u0661' is not an integer"),
        ("qrels", "q 0 p 1\nq 0 p 2\n", "line 2: another relevance than in line 1"),
        ("qrels", "\n", "holds no label"),
        ("qrels", b"\x1f\x8b\x08 no gzip", "cannot be read"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, kind: str, text: str | bytes, message: str) -> None:
    queries, passages = Ids(), Ids()
    queries[b"q"]
    path = written(tmp_path, kind, text)
    with pytest.raises(UserError) as caught:
        (read_run if kind == "run" else read_qrels)(path, queries, passages)
    assert str(caught.value).startswith(f"{path} ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"q 0 p 1\n" * 1000)
    with pytest.raises(UserError, match="cannot be read"):
        read_qrels(written(tmp_path, "qrels", whole[:-20]), Ids(), Ids())


def evaluated(folder: Path, passages: list[str], missing: str) -> tuple[Dataset, Run, dict[str, Path], dict]:
    """A dataset, a run of equal scores, its files, and its figures; the last passage and a missing one are relevant."""
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(passages, [""] * len(passages), ["text"] * len(passages))
        writer.queries(["q"], ["question"], ["test"], [[]])
        writer.qrels(["q"], passages[-1:], [1], [0], [len(passages) - 1])
        writer.table(MISSING, [0], [missing], [1])
        writer.close()
    data = Dataset(folder / "dataset")
    run = Run.from_hits(np.zeros(1, np.int32), np.arange(len(passages))[None], np.ones((1, len(passages))))
    with drafting(folder / "evaluation", "evaluation") as draft:
        collected = Collected(data, ("RR@10", "AP"), draft, 10)
        collected.add("system", run)
        collected.finish()
        names = {"run": ("system", "trec"), "qrels": ("test", "qrels")}
        files = {kind: Evaluation.trec_file(draft, *name).relative_to(draft.path) for kind, name in names.items()}
    return data, run, {kind: draft.target / file for kind, file in files.items()}, collected.figures(("AP",))


def test_equal_scores_are_in_the_order_of_the_ids_that_are_written(tmp_path: Path) -> None:
    """`a b` is before `a!b`, and `a%20b` after it; trec_eval puts the higher id first."""
    _, _, files, figures = evaluated(tmp_path, ["a!b", "a b"], "c")
    comparison = compare([files["run"]], files["qrels"], ("AP",))
    assert comparison["results"]["system"]["AP"] == figures["test"]["system"][0, 0] == 0.5


def test_white_space_in_the_id_of_a_missing_passage_changes_no_file_that_is_read(tmp_path: Path) -> None:
    data, run, files, _ = evaluated(tmp_path, ["a%20b", "c"], "a d")
    read_back = read_run_of(files["run"], data)
    assert sorted(read_back.passage.tolist()) == run.passage.tolist() == [0, 1]
