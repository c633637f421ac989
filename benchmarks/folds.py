"""Folds of a BEIR folder's training queries, so that settings are chosen without use of the test queries.

    python benchmarks/folds.py DATA OUT --folds 3
    gnn-encoder ablate --preset scifact --dataset OUT/0 --root ROOTS/0 --variant "NAME: SETTING …"    # and 1, 2

Each fold is a BEIR folder. `train` has the training queries of the other folds, `test` has the training queries of this
fold, and `dev` is unchanged. Queries of equal text are in one fold. Corpus and queries are links to DATA's files.
"""

import argparse
import csv
import gzip
import json
from pathlib import Path

import numpy as np


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    files = [next(arguments.data.glob(f"{name}.jsonl*")).resolve() for name in ("corpus", "queries")]
    with gzip.open(files[1], "rt", encoding="utf-8") if files[1].suffix == ".gz" else files[1].open() as lines:
        texts = {row["_id"]: row["text"].strip().lower() for row in map(json.loads, lines)}
    with (arguments.data / "qrels" / "train.tsv").open(newline="") as labels:
        header, *rows = csv.reader(labels, delimiter="\t")
    distinct = sorted({texts[row[0]] for row in rows})
    places = np.random.default_rng(arguments.seed).permutation(len(distinct)) % arguments.folds
    fold_of = dict(zip(distinct, places.tolist(), strict=True))
    for fold in range(arguments.folds):
        folder = arguments.out / str(fold)
        (folder / "qrels").mkdir(parents=True)
        for file in files:
            (folder / file.name).symlink_to(file)
        (folder / "qrels" / "dev.tsv").symlink_to((arguments.data / "qrels" / "dev.tsv").resolve())
        for split in ("train", "test"):
            with (folder / "qrels" / f"{split}.tsv").open("w", newline="") as file:
                writer = csv.writer(file, delimiter="\t", lineterminator="\n")
                writer.writerow(header)
                writer.writerows(row for row in rows if (fold_of[texts[row[0]]] == fold) == (split == "test"))


if __name__ == "__main__":
    main()
