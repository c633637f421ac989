"""Writes small BEIR folders, right or spoilt, and reads data sets."""

import json
from pathlib import Path

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.data import canonicalize, open_source
from gnn_encoder.data.validation import DataReport
from gnn_encoder.settings.foundation import Ingest

PASSAGES = [{"_id": f"d{i}", "title": f"Title {i}", "text": f"text of passage {i}"} for i in range(6)]
QUERIES = [{"_id": f"q{i}", "text": f"what is number {i}"} for i in range(6)]
QRELS = {
    "train": [("q0", "d0", 1), ("q1", "d1", 1), ("q2", "d2", 0)],
    "dev": [("q3", "d3", 2)],
    "test": [("q4", "d4", 1)],
}


def lines(records: list[dict[str, str]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def write_beir(
    folder: Path, corpus: str | None = None, queries: str | None = None, qrels: dict[str, list[tuple]] | None = None
) -> Path:
    """Six passages, six queries of which q5 is in no split; texts of the files can be given instead."""
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(lines(PASSAGES) if corpus is None else corpus, encoding="utf-8")
    (folder / "queries.jsonl").write_text(lines(QUERIES) if queries is None else queries, encoding="utf-8")
    for split, rows in (QRELS if qrels is None else qrels).items():
        text = "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder


def ingested(settings: Ingest, out: Path) -> tuple[Dataset, DataReport]:
    """The dataset that is written of a data set, and the report on it."""
    with drafting(out, "dataset") as draft:
        report = canonicalize(open_source(settings), settings, draft=draft)
    return Dataset(out), report


def check(settings: Ingest) -> DataReport:
    """The report of a data set, of which nothing is written."""
    return canonicalize(open_source(settings), settings)
