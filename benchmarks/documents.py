"""Some documents of a BEIR folder with documents, and the queries about them, for trials of less time.

    python benchmarks/documents.py DATA OUT --documents 1 3 10
    gnn-encoder ablate --preset obliqa-structured --dataset OUT --study structure

OUT is a BEIR folder. Its corpus and sections are those of the named documents, unchanged. Its queries are those whose
relevant passages are all in these documents. Citations of other documents are left out.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--documents", nargs="+", required=True, help="values of doc_id")
    arguments = parser.parse_args()
    documents = set(arguments.documents)

    def rows_of(name: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        with gzip.open(arguments.data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [row for row in map(json.loads, lines) if wanted(row)]

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        with gzip.open(arguments.out / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)

    (arguments.out / "qrels").mkdir(parents=True)
    corpus, nodes = (rows_of(name, lambda row: row["doc_id"] in documents) for name in ("corpus", "nodes"))
    kept = {row["_id"] for row in corpus}
    known = kept | {row["_id"] for row in nodes}
    for row in (*corpus, *nodes):
        row["citations"] = [each for each in row["citations"] if each["target"] in known]
    write("corpus", corpus)
    write("nodes", nodes)
    queries = set()
    for split in ("train", "dev", "test"):
        with (arguments.data / "qrels" / f"{split}.tsv").open(newline="") as labels:
            header, *rows = csv.reader(labels, delimiter="\t")
        outside = {query for query, passage, *_ in rows if passage not in kept}
        rows = [row for row in rows if row[0] not in outside]
        queries |= {row[0] for row in rows}
        with (arguments.out / "qrels" / f"{split}.tsv").open("w", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows([header, *rows])
        print(f"{split}: {len({row[0] for row in rows})} queries, {len(rows)} labels")
    write("queries", rows_of("queries", lambda row: row["_id"] in queries))
    print(f"{len(kept)} passages")


if __name__ == "__main__":
    main()
