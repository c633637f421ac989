"""An export gives other programs the bundle's vectors; one that does not is refused and leaves nothing."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from bundles import fill_bundle
from command_line import call

from gnn_encoder import Retriever, UserError
from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.bundle import VECTOR_PASSAGES, Reranking, Serving
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.backbone_files import sentence_transformers_layout
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.serving.exports import export, parquet_file, query_encoder, rows
from gnn_encoder.serving.exports.job import FACTS, Job, questions_of
from gnn_encoder.serving.exports.parquet_file import PASSAGES


@pytest.fixture
def bundle(bundles: dict[str, Path]) -> Bundle:
    return Bundle.read(bundles["vectors"])


LOADING = (
    "import json, sys, numpy as np\n"
    "from sentence_transformers import SentenceTransformer\n"
    "found = SentenceTransformer(sys.argv[1], device='cpu').encode(json.loads(sys.argv[2]))\n"
    "assert not any(name.startswith('gnn_encoder') for name in sys.modules)\n"
    "np.save(sys.argv[3], found)\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", "yes"), ("cls", "no")])
def test_sentence_transformers_has_the_same_vectors_without_this_project(
    pooling: str, normalize: str, tiny_backbone: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling=pooling, normalize=normalize, max_length=12)
    vectors = np.random.default_rng(0).normal(size=(len(tiny_dataset.passages), encoder.width)).astype(np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, encoder.save)
    said = export(Bundle.read(tmp_path / "bundle"), "sentence-transformers", tmp_path / "out")
    texts = ["the old river", "a garden in winter " * 9, "x", *questions_of(Bundle.read(tmp_path / "bundle"))]
    command = [sys.executable, "-c", LOADING, str(tmp_path / "out"), json.dumps(texts), str(tmp_path / "found.npy")]
    subprocess.run(command, check=True, cwd=tmp_path)
    encoded, expected = np.load(tmp_path / "found.npy"), encode_texts(encoder, texts, precision="fp32")
    cosine = (encoded * expected).sum(axis=1) / np.linalg.norm(encoded, axis=1) / np.linalg.norm(expected, axis=1)
    assert (cosine >= 0.99999).all() and np.allclose(encoded, expected, atol=1e-4)
    assert "texts have the bundle's vectors" in said
    layout = sentence_transformers_layout(str(tmp_path / "out"))
    assert layout.pooling == (pooling,) and layout.normalize == (normalize == "yes")
    facts = json.loads((tmp_path / "out" / FACTS).read_text())
    assert facts["system"] == "GNN-encoder" and facts["width"] == encoder.width and facts["replay"] == said


def test_parquet_has_the_vectors_and_the_hits(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS", 7)
    export(bundle, "parquet", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / PASSAGES)
    vectors = np.stack(table.column("vector").to_numpy())
    assert np.array_equal(vectors, bundle.vectors) and pq.ParquetFile(tmp_path / "out" / PASSAGES).num_row_groups > 9
    retriever, question = Retriever(bundle), "the old river"
    best = np.argsort(-(vectors @ retriever.encode_queries([question])[0]), kind="stable")[:5]
    expected = retriever.search(question, 5)
    for name, wanted in (("passage_id", "passage_id"), ("title", "title"), ("text", "text")):
        assert table.column(name).take(best).to_pylist() == [getattr(hit, wanted) for hit in expected]


def test_the_replay_asks_nothing_that_nobody_sees(tmp_path: Path) -> None:
    """A title that is empty to the eye gives way to the text."""
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["a", "b", "c"], ["\u200b", "a title", "\ufeff"], ["some words", "text", "\u2800"])
        writer.queries([], [], [], [])
        writer.close()
    passages = Dataset(tmp_path / "dataset").passages
    assert questions_of(SimpleNamespace(passages=passages)) == ["some words", "a title"]  # type: ignore[arg-type]


def test_a_passage_with_several_vectors_has_several_rows(bundle: Bundle, tiny_dataset: Dataset, tmp_path: Path) -> None:
    of = np.sort(np.concatenate([np.arange(len(bundle.passages)), [3, 3, 50]])).astype(np.int32)
    vectors = np.random.default_rng(0).normal(size=(len(of), bundle.vectors.shape[1])).astype(np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        np.save(draft / f"{VECTOR_PASSAGES}.npy", of)
        fill_bundle(draft, vectors, tiny_dataset, TextEncoder.load(bundle.query_encoder_path).save)
    export(Bundle.read(tmp_path / "bundle"), "parquet", tmp_path / "out")
    names = pq.read_table(tmp_path / "out" / PASSAGES).column("passage_id")
    assert names.to_pylist() == bundle.passages.ids().take(of).to_pylist()


def test_an_export_that_differs_is_refused(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = query_encoder._write

    def wrong(job: Job, folder: Path) -> None:
        real(job, folder)
        path = folder / "1_Pooling" / "config.json"
        swapped = {
            key: not value if isinstance(value, bool) else value for key, value in json.loads(path.read_text()).items()
        }
        path.write_text(json.dumps(swapped))

    monkeypatch.setattr(query_encoder, "_write", wrong)
    with pytest.raises(UserError, match="gives other vectors"):
        export(bundle, "sentence-transformers", tmp_path / "out")
    for column in ("vector", "passage_id", "title", "text"):
        monkeypatch.undo()
        right = parquet_file._write

        def rolled(job: Job, folder: Path, column: str = column, right: Any = right) -> None:
            right(job, folder)
            table = pq.read_table(folder / PASSAGES)
            position = table.column_names.index(column)
            moved = table.column(column).take(np.roll(np.arange(len(table)), 1))
            pq.write_table(table.set_column(position, table.schema.field(position), moved), folder / PASSAGES)

        monkeypatch.setattr(parquet_file, "_write", rolled)
        with pytest.raises(UserError, match="other rows"):
            export(bundle, "parquet", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [50, 150])
def test_a_file_with_fewer_or_more_blocks_is_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(rows, "ROWS", 50)
    right = parquet_file._write

    def wrong(job: Job, folder: Path) -> None:
        right(job, folder)
        table = pq.read_table(folder / PASSAGES)
        pq.write_table(table.take([row % len(table) for row in range(kept)]), folder / PASSAGES)

    monkeypatch.setattr(parquet_file, "_write", wrong)
    with pytest.raises(UserError, match=f"other rows than the bundle from row {min(kept, 100)} on"):
        export(bundle, "parquet", tmp_path / "out")


def test_on_the_command_line(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        code = call("export", "--bundle", str(bundle.path), *arguments)
        return code, "".join(capsys.readouterr())

    target = str(tmp_path / "out")
    code, shown = run("--format", "parquet", target)
    assert code == 0 and f"{target}/{PASSAGES}" in shown and "export: writing 100/100 rows" in shown
    assert run("--format", "parquet", target) == (2, f"error: {target} exists: name a folder that does not\n")
    code, shown = run("--format", "csv", str(tmp_path / "other"))
    assert (
        code == 2
        and "choose sentence-transformers, parquet, lancedb or pgvector" in shown
        and not (tmp_path / "other").exists()
    )
    for options, problem in (
        (["--format", "parquet", "--update"], "leave out --update"),
        (["--format", "parquet", "--index"], "tables of LanceDB and PostgreSQL"),
        (["--format", "lancedb", "--table", "a'b"], "lower-case letters"),
    ):
        code, shown = run(*options, str(tmp_path / "other"))
        assert code == 2 and problem in shown and shown.count("\n") == 1
    code, shown = run("--format", "lancedb", "s3://bucket/table")
    assert code == 2 and "is a folder of this machine" in shown and list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize(
    ("serving", "warns"),
    [
        (Serving("Dual encoder", None), False),
        (Serving("BM25 + Dual encoder", 0.3, "dev"), True),
        (Serving("BM25", 0.0), True),
        (Serving("Dual encoder, re-ranked", None, reranking=Reranking("Dual encoder", 1.0, 20)), True),
        (Serving("Dual encoder", None, reranking=Reranking("Dual encoder", 1.0, 20, is_default=False)), False),
    ],
)
def test_a_ranking_by_more_than_vectors_is_warned_of(
    bundle: Bundle, serving: Serving, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with drafting(tmp_path / "bundle", "bundle") as draft:
        bundle.serve(draft, serving)
    named = ("--bundle", str(tmp_path / "bundle"), "--format", "parquet", str(tmp_path / "out"))
    assert call("export", *named) == 0
    warning = f"warning: a search ranks by {serving.system}, and the export by vectors alone"
    assert (warning in capsys.readouterr().err) == warns
