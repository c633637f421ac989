"""The hits to re-rank, from every source, against what each source says itself."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle, write_bm25
from slow_store import slow_store

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, Run, drafting, read_manifest
from gnn_encoder.artifacts.dataset import POOL
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.provenance import source_digests
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.steps.first_stage import first_stage
from gnn_encoder.storage import put_folder


@pytest.fixture(scope="module")
def lexical(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset) -> Path:
    """BM25's run, which finds passage 99 first and passage 98 second for every query."""
    queries, path = np.arange(100), tmp_path_factory.mktemp("lexical") / "run"
    with drafting(path, "run") as draft:
        Run.from_hits(queries, np.tile([99, 98], (100, 1)), np.tile([2.0, 1.0], (100, 1))).write(draft, "BM25")
    return path


def stage(
    data: Dataset, lexical: Path, folder: Path, source: str, fields: str = "joined", **settings: object
) -> tuple[Run, str]:
    """The run of a source, and the name of the system; `fields` of the BM25 index that orders a pool."""
    stage_settings = FirstStage(source=source, precision="fp32", **settings)  # type: ignore[arg-type]
    bm25_index = write_bm25(data.path, folder / "bm25_index", fields=fields)
    first_stage(stage_settings, dataset=data.path, bm25_run=lexical, bm25_index=bm25_index, run=folder / "out")
    return Run.read(folder / "out"), System.of(folder / "out").name


def same(run: Run, other: Run) -> bool:
    return all(np.array_equal(getattr(run, name), getattr(other, name)) for name in Run.__dataclass_fields__)


def test_bm25_is_passed_on(tmp_path: Path, tiny_dataset: Dataset, lexical: Path) -> None:
    run, name = stage(tiny_dataset, lexical, tmp_path, "bm25")
    assert name == "BM25" and same(run, Run.read(lexical))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_run_file_ranks_by_its_scores_and_bm25_has_the_splits_that_it_lacks(
    tmp_path: Path, tiny_dataset: Dataset, lexical: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "q95 Q0 p7 1 0.5 t\nq80 Q0 p3 9 -1 t\nq95 Q0 p2 2 0.75 t\nq80 Q0 p4 1 -2 t\n"
    path = tmp_path / f"other.system.trec{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending else text.encode())
    run, name = stage(tiny_dataset, lexical, tmp_path, str(path))
    assert name == "other.system"
    test, rest = run.of(tiny_dataset.query_rows("test")), np.arange(80)
    assert test.query.tolist() == [80, 80, 95, 95] and test.passage.tolist() == [3, 4, 2, 7]
    assert test.rank.tolist() == [1, 2, 1, 2] and test.score.tolist() == [-1, -2, 0.75, 0.5]
    assert same(run.of(rest), Run.read(lexical).of(rest))  # train and dev
    assert "other.system has no train and no dev query, BM25's hits for train and dev" in capsys.readouterr().err
    assert "BM25's hits for train and dev" in read_manifest(tmp_path / "out").metrics["headline"]

    # A query of train is enough: the file's train queries are those that it has.
    path.with_name("more").write_text(text + "q0 Q0 p1 1 1 t\n")
    more, _ = stage(tiny_dataset, lexical, tmp_path, str(path.with_name("more")))
    assert more.of(tiny_dataset.query_rows("train")).passage.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "".join(f"q9 Q0 x{n} 1 {n} t\n" for n in range(1200)) + "q\x1b9 Q0 p1 1 1 t\nq9 Q0 p1 1 1 t\n",
            "1 of queries ('q 9') and 1,200 of passages ('x0', 'x1', 'x2', …): leave their lines out",
        ),
        ("q70 Q0 p1 1 1 t\n", "has no hit of a test query, so there is nothing to re-rank"),
        ("\n", "holds no hit"),
        ("q90 p1 1\n", "line 1: 3 fields where there must be 6"),
    ],
)
def test_a_run_file_that_does_not_fit_is_one_line(
    tmp_path: Path, tiny_dataset: Dataset, lexical: Path, text: str, words: str
) -> None:
    (tmp_path / "bad.run").write_text(text)
    with pytest.raises(UserError) as caught:
        stage(tiny_dataset, lexical, tmp_path, str(tmp_path / "bad.run"))
    assert (
        words in str(caught.value) and "\n" not in str(caught.value) and str(tmp_path / "bad.run") in str(caught.value)
    )


def test_ids_with_white_space_are_found_as_a_run_of_this_program_writes_them(tmp_path: Path, lexical: Path) -> None:
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p 1", "p\u20032", "p3"], [""] * 3, ["ant", "bee", "cat"])
        writer.queries(["q 1"], ["ant"], ["test"], [[]])
        writer.qrels(["q 1"], ["p3"], [1], [0], [2])
        writer.close()
    (tmp_path / "own.run").write_text("q%201 Q0 p%201 1 3 t\nq%201 Q0 p%E2%80%832 2 2 t\nq%201 Q0 p3 3 1 t\n")
    run, _ = stage(Dataset(tmp_path / "data"), lexical, tmp_path, str(tmp_path / "own.run"))
    assert run.passage.tolist() == [0, 1, 2]


@pytest.mark.parametrize("fields", ["joined", "separate"])
def test_a_pool_is_in_bm25s_order(tmp_path: Path, tiny_dataset: Dataset, lexical: Path, fields: str) -> None:
    generator = np.random.default_rng(0)
    queries = np.sort(np.concatenate([tiny_dataset.query_rows(split) for split in ("train", "test")]))
    passages = np.stack([np.sort(generator.permutation(100)[:9]) for _ in queries])
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        for batch in tiny_dataset.passages.stream():
            writer.passages(batch.ids, batch.titles, batch.texts)
        writer.queries(*(tiny_dataset.queries[name] for name in ("query_id", "text", "split", "answers", "group")))
        rows = tiny_dataset.qrels
        writer.qrels([""] * 100, [""] * 100, rows.relevance, rows.query, rows.passage)
        writer.table(POOL, np.repeat(queries, 9), passages.ravel())
        writer.close()
    data = Dataset(tmp_path / "data")
    run, name = stage(data, lexical, tmp_path, "pool", fields=fields)
    assert name == "Pool"
    index = Bm25.build(data.passages, IndexBm25(fields=fields))  # type: ignore[arg-type]
    scores, rows = index.search(data.query_texts(queries), 100)
    for query, pool, score, row in zip(queries, passages, scores, rows, strict=True):
        order = [p for p in row.tolist() if p in pool] + sorted(set(pool.tolist()) - set(row.tolist()))
        hits = run.of(np.array([query]))
        assert hits.passage.tolist() == order and hits.rank.tolist() == list(range(1, 10))
        score_of = dict(zip(row.tolist(), score.tolist(), strict=True))
        np.testing.assert_allclose(hits.score, [score_of.get(p, 0.0) for p in order], rtol=1e-6)
    dev = data.query_rows("dev")
    assert same(run.of(dev), Run.read(lexical).of(dev))


def test_data_without_a_pool_are_refused(tmp_path: Path, tiny_dataset: Dataset, lexical: Path) -> None:
    with pytest.raises(UserError, match="so no pool: choose another first stage"):
        stage(tiny_dataset, lexical, tmp_path, "pool")


def test_a_bundle_is_searched_for_the_queries_of_all_splits(
    tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, lexical: Path
) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    vectors = np.random.default_rng(0).normal(size=(100, encoder.width)).astype(np.float32)
    with drafting(tmp_path / "latest" / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, encoder.save)
    query_vectors = encode_texts(encoder, tiny_dataset.query_texts(np.arange(100)), precision="fp32").astype(np.float64)
    best = np.argsort(-(query_vectors @ Bundle.read(tmp_path / "latest" / "bundle").vectors.T), axis=1, kind="stable")
    for source in (tmp_path / "latest", tmp_path / "latest" / "bundle"):
        run, name = stage(tiny_dataset, lexical, tmp_path, str(source), train_depth=3, eval_depth=5)
        assert name == "Bundle"
        for split, depth in (("train", 3), ("dev", 5), ("test", 5)):
            rows = tiny_dataset.query_rows(split)
            np.testing.assert_array_equal(run.hits(rows, 6)[:, :depth], best[rows, :depth])
            assert (run.hits(rows, 6)[:, depth:] == -1).all()

    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0"], [""], ["another passage"])
        writer.close()
    with pytest.raises(UserError, match="has other passages than the dataset: give the dataset of that run"):
        stage(Dataset(tmp_path / "data"), lexical, tmp_path, str(tmp_path / "latest"))


@pytest.mark.slow
def test_run_files_and_bundles_in_an_object_store(
    tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, lexical: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_CACHE", str(tmp_path / "cache"))
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    vectors = np.random.default_rng(0).normal(size=(100, encoder.width)).astype(np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, encoder.save)
    with slow_store(monkeypatch) as store:
        put_folder(tmp_path / "bundle", "s3://bucket/models/bundle")
        remote, name = stage(tiny_dataset, lexical, tmp_path, "s3://bucket/models/bundle", train_depth=3)
        assert name == "Bundle"
        assert same(remote, stage(tiny_dataset, lexical, tmp_path, str(tmp_path / "bundle"), train_depth=3)[0])

        address = "s3://bucket/runs/other.trec.gz"
        store.objects["runs/other.trec.gz"] = gzip.compress(b"q95 Q0 p7 1 0.5 t\n")
        run, name = stage(tiny_dataset, lexical, tmp_path, address)
        assert name == "other" and run.of(tiny_dataset.query_rows("test")).passage.tolist() == [7]
        before = source_digests("first_stage", FirstStage(source=address))
        store.objects["runs/other.trec.gz"] = gzip.compress(b"q95 Q0 p8 1 0.5 t\n")
        assert source_digests("first_stage", FirstStage(source=address)) != before
        run, _ = stage(tiny_dataset, lexical, tmp_path, address)
        assert run.of(tiny_dataset.query_rows("test")).passage.tolist() == [8]


def test_a_first_stage_that_is_none_is_refused_before_any_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no first stage 'nothing': give bm25, pool, a TREC run file, or the folder of"):
        source_digests("first_stage", FirstStage(source="nothing"))
    (tmp_path / "a.run").write_text("1")
    before = source_digests("first_stage", FirstStage(source=str(tmp_path / "a.run")))
    (tmp_path / "a.run").write_text("2")
    assert source_digests("first_stage", FirstStage(source=str(tmp_path / "a.run"))) != before
    assert not source_digests("first_stage", FirstStage())
