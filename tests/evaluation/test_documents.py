"""Which document a passage is in: files, datasets, and refusals."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gnn_encoder.artifacts import Dataset, Qrels, Run
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.documents import Documents, Membership, documents_of


def written(folder: Path, text: str | bytes, name: str = "documents.tsv") -> Path:
    path = folder / name
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["documents.tsv", "documents.tsv.gz"])
@pytest.mark.parametrize("header", ["", "passage_id\tdocument_id\n"])
def test_a_file_is_read_and_joined_by_text_id(tmp_path: Path, name: str, header: str) -> None:
    text = f'{header}p1\td"x\np 2\td y\r\nqü\td"x\np1\td"x\n'
    membership = Membership.read(written(tmp_path, text, name))
    documents = membership.of(pa.chunked_array([["qü"], ["p%202", "p1"]]), "the run")
    ids = documents.ids.to_pylist()
    assert [ids[d] for d in documents.document] == ['d"x', "d%20y", 'd"x']
    assert documents.document.dtype == np.int32 and len(ids) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p\td\np\n", "Row #2: Expected 2 columns, got 1: p): write each line as passage<TAB>document"),
        ("p\td\tmore\n", "Expected 2 columns, got 3"),
        ("p\td\nq\t\n\tx\n", "has 2 lines with an empty field"),
        ("", "cannot be read (Empty CSV file): write each line as"),
        ("passage_id\tdocument_id\n", "holds no line"),
        (b"p\t\xff\n", "invalid UTF8"),
        (b"\x1f\x8b\x08 no gzip", "cannot be read"),
        (gzip.compress(b"p\td\n" * 1000, mtime=0)[:-20], "cannot be read"),
        ("a\t1\na\t2\nb\t1\nc\t1\nc\t2\nb\t1\n", "has 2 passages with more than one document ('a', 'c')"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        Membership.read(path)
    assert str(caught.value).startswith(f"{path} ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unknown_passages_are_counted_and_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a\t1\nb\t1\nc\t2\n")
    membership = Membership.read(path)
    with pytest.raises(UserError) as caught:
        membership.of(pa.chunked_array([["x1", "a", "x2", "x3", "x4"]]), "my.trec")
    assert str(caught.value) == f"{path} lacks 4 passages of my.trec ('x1', 'x2', 'x3', …): add their lines"
    some = pa.chunked_array([["b"]])
    assert membership.of(some, "my.trec").document.tolist() == [0]
    with pytest.raises(UserError) as caught:
        membership.of(some, "data", alone=True)
    assert str(caught.value) == f"{path} has 2 passages that data lacks ('a', 'c'): leave them out"


def test_runs_and_labels_of_documents() -> None:
    documents = Documents(np.array([1, 0, 1, 0], dtype=np.int32), pa.chunked_array([["x", "y"]]))
    hits = np.array([[2, 0, 1], [3, 2, -1]])
    ranked = documents.run(Run.from_hits(np.array([4, 7]), hits, np.array([[3.0, 2.0, 2.0], [5.0, 5.0, 0.0]])))
    assert ranked.query.tolist() == [4, 4, 7, 7]
    assert ranked.passage.tolist() == [1, 0, 0, 1]
    assert ranked.rank.tolist() == [1, 2, 1, 2]
    assert ranked.score.tolist() == [3.0, 2.0, 5.0, 5.0]
    labels = documents.qrels(Qrels(*(np.array(c, dtype=np.int32) for c in ([4, 4, 4, 7], [0, 2, 1, 3], [0, 2, -1, 1]))))
    assert [column.tolist() for column in (labels.query, labels.passage, labels.relevance)] == [
        [4, 4, 7], [0, 1, 0], [-1, 2, 1],
    ]  # fmt: skip


def test_a_passage_that_the_data_lack_is_a_document_of_its_own() -> None:
    documents = Documents(np.array([1, 0], dtype=np.int32), pa.chunked_array([["x", "y"]])).of_rows(np.arange(4))
    assert documents.document.tolist() == [1, 0, 2, 3]
    assert len(set(documents.ids.to_pylist())) == 4


def test_a_dataset_without_documents_refuses_measures_of_documents(
    tiny_dataset: Dataset, tiny_documents: Dataset
) -> None:
    assert documents_of(tiny_dataset, ("AP", "R@5")) is None
    assert Membership.of_dataset(tiny_dataset, ("AP",)) is None
    with pytest.raises(UserError, match=r"^R\(doc\)@5, MAP\(D\): nothing in .* says which document a passage is in"):
        documents_of(tiny_dataset, ("AP", "R(doc)@5", "MAP(D)"))
    documents = documents_of(tiny_documents, ("MAP(D)",))
    assert documents and documents.document.tolist() == [row // 4 for row in range(100)]
