"""This project's own pages, a folder of Markdown, are a data set: read with their structure, searched and explained."""

import json
import posixpath
import re
import shutil
from pathlib import Path

import documentation
import numpy as np
import pytest
from tiny_graph import ROUNDED, encode, write_models

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.artifacts.structure import Structure
from gnn_encoder.data import open_source
from gnn_encoder.data.validation import Problems
from gnn_encoder.explanation.passages import NEEDED
from gnn_encoder.explanation.search import explain_search
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.steps.ingest import ingest

PROJECT = documentation.PROJECT
PAGES = [str(path.relative_to(PROJECT)) for path in (*documentation.PAGES, PROJECT / "benchmarks/RESULTS.md")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The pages, with each section's heading as a query that the section's passages answer."""
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / page, folder / page)
    answers: dict[str, list[str]] = {}
    for rows in open_source(Ingest(dataset=str(folder))).passages(Problems()):
        for passage, title in zip(rows.ids, rows.titles, strict=True):
            answers.setdefault(title if isinstance(title, str) else title.as_py(), []).append(str(passage))
    lines = [json.dumps({"_id": f"q{i}", "text": title}) for i, title in enumerate(answers)]
    (folder / "queries.jsonl").write_text("\n".join(lines), "utf-8")
    (folder / "qrels").mkdir()
    for part, split in enumerate(("train", "dev", "test")):
        labels = [f"q{i}\t{p}\t1" for i, answer in enumerate(answers.values()) if i % 3 == part for p in answer]
        text = "\n".join(["query-id\tcorpus-id\tscore", *labels])
        (folder / "qrels" / f"{split}.tsv").write_text(text, "utf-8")
    ingest(Ingest(dataset=str(folder)), dataset=folder.parent / "dataset")
    return Dataset(folder.parent / "dataset")


def structure_of(dataset: Dataset) -> Structure:
    assert dataset.structure is not None
    return dataset.structure


@pytest.mark.slow
def test_each_page_is_a_document_with_its_sections(dataset: Dataset) -> None:
    structure = structure_of(dataset)
    assert sorted(structure.document_ids.to_pylist()) == sorted(PAGES)
    titles, passages = structure.titles.to_pylist(), dataset.passages.take(np.arange(len(dataset.passages)))
    for row, title in enumerate(passages.titles):
        parent = structure.parent[row]
        assert title.rpartition(" > ")[2] == titles[parent]
        assert parent >= structure.passages and structure.document[parent] == structure.document[row]


def test_links_between_the_pages_are_citations(dataset: Dataset) -> None:
    structure = structure_of(dataset)
    names = np.array(structure.document_ids.to_pylist())
    source, target = (names[structure.document[ends]].tolist() for ends in structure.citations)
    between = {(one, other) for one, other in zip(source, target, strict=True) if one != other}
    written = set()
    for page in PAGES:
        for link in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]*)?\)", (PROJECT / page).read_text("utf-8")):
            written.add((page, posixpath.normpath(posixpath.join(posixpath.dirname(page), link))))
    assert between == {(page, other) for page, other in written if page != other} and between


@pytest.mark.slow
def test_they_are_searched_and_explained(dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", tiny_backbone)
    outputs = encode(dataset.path, models, tmp_path / "made")
    (tmp_path / "latest").mkdir()
    places = {name: outputs / name for name in ("bundle", *NEEDED)}
    for name, target in (places | {"dataset": dataset.path, "gnn_encoder": models["gnn_encoder"]}).items():
        (tmp_path / "latest" / name).symlink_to(target)
    bundle = tmp_path / "latest" / "bundle"
    searcher = Searcher(Bundle.read(bundle))
    # The vectors are of a random model; the words alone find the section.
    run = searcher.run("add a setting with a type, a default and a docstring", 3, weight=0.0)
    assert searcher.hits(run.score, run.passage)[0].passage_id.startswith("CONTRIBUTING.md#")
    explained = explain_search(searcher, "how is a champion promoted", k=len(dataset.passages), neighbors=2)
    assert [one.hit.rank for one in explained] == list(range(1, len(dataset.passages) + 1))
    for one in explained:
        assert one.why.score == pytest.approx(one.hit.score, rel=ROUNDED)
    influences = [influence for one in explained for influence in one.why.influences]
    assert influences and all(0 < influence.weight < 1 for influence in influences)
