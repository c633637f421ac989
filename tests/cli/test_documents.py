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


def test_a_corpus_alone_gets_queries_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    corpus = "".join(f'{{"_id": "d{i}", "title": "Wheel {i}", "text": "How wheel {i} turns."}}\n' for i in range(20))
    (tmp_path / "data" / "corpus.jsonl").write_text(corpus, "utf-8")
    command = ("run", "--dataset", str(tmp_path / "data"), "--until", "words", "--root", str(tmp_path / "root"))
    assert call(*command, "--dry-run", "--generator", "titles") == 0
    assert "\nwrite_queries " in capsys.readouterr().out
    assert call(*command, "--dry-run", "--generator", "titel") == 2
    assert "no generator 'titel': did you mean 'titles'?" in capsys.readouterr().err
    assert call(*command, "--dry-run") == 2
    assert "has passages but no queries: let them be written, with --generator titles" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dataset", ""), "the value of ingest.dataset is empty"),
        (("--dataset", "data", "--json", "--dry-run"), "--json prints the events of a run"),
    ],
)
def test_options_that_say_nothing_are_one_line(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_people_s_queries_need_no_generator(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (documents / "queries.jsonl").write_text('{"_id": "q", "text": "How do I turn the wheel?"}\n', "utf-8")
    (documents / "qrels").mkdir()
    labels = "query-id\tcorpus-id\tscore\nq\tguide1.md#guide-1:1\t1\n"
    (documents / "qrels" / "test.tsv").write_text(labels, "utf-8")
    assert steps_of_run(documents, tmp_path / "root") == 0
    assert "write_queries" not in capsys.readouterr().out
