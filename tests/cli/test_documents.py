"""`run --documents`: what a folder of documents needs no option for."""

from pathlib import Path

import pytest
from command_line import call


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(12):
        text = "\n\n".join(f"Part {part} of guide {number} says how to turn the wheel." for part in range(4))
        (folder / f"guide{number}.md").write_text(f"# Guide {number}\n\n{text}\n", "utf-8")
    return folder


def steps_of_run(folder: Path, root: Path) -> int:
    options = ("--until", "words", "--root", str(root), "--dry-run")
    return call("run", "--documents", str(folder), *options)


def test_queries_are_written_where_there_are_none(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steps_of_run(documents, tmp_path / "root") == 0
    assert "\nwrite_queries " in capsys.readouterr().out


def test_people_s_queries_need_no_generator(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (documents / "queries.jsonl").write_text('{"_id": "q", "text": "How do I turn the wheel?"}\n', "utf-8")
    (documents / "qrels").mkdir()
    labels = "query-id\tcorpus-id\tscore\nq\tguide1.md#guide-1:1\t1\n"
    (documents / "qrels" / "test.tsv").write_text(labels, "utf-8")
    assert steps_of_run(documents, tmp_path / "root") == 0
    assert "write_queries" not in capsys.readouterr().out
