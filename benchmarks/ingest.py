"""Reading a collection in MS MARCO's layout: seconds, MB/s and peak memory, beside reading only the bytes.

The collection is synthetic: 56 words per passage from a vocabulary of 30,000 with Zipf frequencies. Each reading has
its own process, so that peak memory is measured separately. With --index, BM25 indexes the passages, too.

    python benchmarks/ingest.py [--passages 1000000] [--rounds 3] [--index]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import PeakMemory, show

WORDS, LENGTH, QUERIES = 30_000, 56, 2_000


def write_collection(folder: Path, passages: int) -> None:
    """collection.tsv, and queries with one label each."""
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    lengths = generator.integers(2, 10, WORDS)
    words = np.array(["".join(generator.choice(letters, n)) for n in lengths], dtype=object)
    frequency = 1 / np.arange(10, WORDS + 10)
    with (folder / "collection.tsv").open("w") as file:
        for start in range(0, passages, 10_000):
            drawn = generator.choice(WORDS, (min(10_000, passages - start), LENGTH), p=frequency / frequency.sum())
            file.writelines(f"{start + i}\t{' '.join(row)}\n" for i, row in enumerate(words[drawn]))
    for split, (first, last) in {"train": (0, QUERIES), "dev.small": (QUERIES, QUERIES + 200)}.items():
        asked = range(first, last)
        (folder / f"queries.{split}.tsv").write_text("".join(f"{q}\twhat is number {q}\n" for q in asked))
        (folder / f"qrels.{split}.tsv").write_text("".join(f"{q}\t0\t{q}\t1\n" for q in asked))


def case(folder: str, index: bool) -> dict[str, float]:
    """One reading in this process, and one indexing."""
    from gnn_encoder.machine.memory import peak_gib
    from gnn_encoder.settings.bm25 import IndexBm25
    from gnn_encoder.settings.foundation import Ingest
    from gnn_encoder.steps.index_bm25 import index_bm25
    from gnn_encoder.steps.ingest import ingest

    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        with PeakMemory() as reading:
            ingest(Ingest(dataset=folder), dataset=f"{out}/dataset")
        measured = {"seconds": time.perf_counter() - began, "gib": peak_gib(), "reading": reading.peak / 1e9}
        if index:
            with PeakMemory() as indexing:
                index_bm25(IndexBm25(language="en"), dataset=Path(out, "dataset"), bm25_index=f"{out}/bm25")
            measured["indexing"] = indexing.peak / 1e9
    return measured


def main() -> None:
    """Write the collection, read it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--index", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(case(options.case, options.index)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_collection(Path(folder), options.passages)
        collection = Path(folder) / "collection.tsv"
        size, found, plain = collection.stat().st_size / 1e6, [], []
        for _ in range(options.rounds):
            began = time.perf_counter()
            collection.read_bytes().decode()
            plain.append(time.perf_counter() - began)
            command = [sys.executable, __file__, "--case", folder, *["--index"] * options.index]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    seconds, floor = statistics.median(f["seconds"] for f in found), statistics.median(plain)
    rows = [
        ("read and decode (floor)", f"{floor:.1f}", f"{size / floor:,.0f}", "", ""),
        ("ingest", f"{seconds:.1f}", f"{size / seconds:,.0f}", f"{max(f['gib'] for f in found):.2f} GiB",
         f"{max(f['reading'] for f in found):.2f} GB"),
    ]  # fmt: skip
    if options.index:
        rows.append(("index_bm25", "", "", "", f"{max(f['indexing'] for f in found):.2f} GB"))
    title = f"{options.passages:,} passages, {size:,.0f} MB, medians of {options.rounds}"
    show(title, ("", "seconds", "MB/s", "peak memory", "anonymous"), rows)


if __name__ == "__main__":
    main()
