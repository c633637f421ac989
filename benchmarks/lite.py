"""Training steps per second of lite re-rankers, in the first epoch and in later ones, against the full re-rankers.

BERT-DMN's Table 3, with MiniLM, on long passages of the standard library's documentation. The first epoch of a lite
re-ranker has the frozen encoder's work. The systems take turns; the table shows medians of `batches_per_second`, which
every training reports after each epoch.

    python benchmarks/lite.py [--batch 32] [--steps 10] [--epochs 3] [--rounds 3]
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from common import documentation, show

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import SYSTEMS
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS

JOINED = 2
"""Passages of the documentation in a passage here: the pairs have 230 tokens on average."""


def inputs(folder: Path, pairs: int) -> dict[str, Path]:
    """A data set of queries with one positive each, and a run of one other passage each."""
    source = Dataset(documentation(folder, 2 * JOINED * pairs))
    texts = source.passages.take(np.arange(JOINED * pairs)).full_texts()
    queries, rows = source.query_texts(np.arange(pairs)), np.arange(pairs)
    with drafting(folder / "long", "dataset") as draft:
        writer = DatasetWriter(draft)
        ids = [str(row) for row in rows]
        writer.passages(ids, [""] * pairs, [" ".join(texts[row * JOINED : (row + 1) * JOINED]) for row in rows])
        writer.queries(ids, queries, ["train"] * pairs, [[]] * pairs)
        writer.qrels(ids, ids, [1] * pairs, rows.tolist(), rows.tolist())
        writer.close()
    with drafting(folder / "run", "run") as draft:
        Run.from_hits(rows, np.roll(rows, 1)[:, None], np.zeros((pairs, 1))).write(draft)
    return {"dataset": folder / "long", "first_run": folder / "run"}


def main() -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="of a lite re-ranker; a full one has one epoch")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    first: dict[str, list[float]] = {}
    later: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[CHECKPOINTS] = str(folder / "checkpoints")
        given = inputs(folder, options.steps * options.batch // 2)
        for number in range(options.rounds):
            for system in (name for name in SYSTEMS if SYSTEMS[name].kind in ("cross_encoder", "bert_dmn")):
                out, lite = folder / f"{system}{number}", SYSTEMS[system].changes.get("lite", False)
                settings = TrainReranker(
                    kind=SYSTEMS[system].kind, lite=lite, backbone="minilm", epochs=options.epochs if lite else 1,
                    batch_size=options.batch, dropout=0.0, dev_queries=0, keep="last",
                )  # fmt: skip
                train_reranker(settings, **given, reranker=out)
                rates = [rate for _, rate in read_history(out)["train_reranker"].curves["batches_per_second"]]
                first.setdefault(system, []).append(rates[0])
                later.setdefault(system, []).extend(rates[1:] or rates)
    rows = []
    for system in first:
        full, one, more = (median(rates) for rates in (first[SYSTEMS[system].kind], first[system], later[system]))
        rows.append((SYSTEMS[system].title, f"{one:.2f}", f"{more:.2f}", f"{more / one:.1f}", f"{more / full:.1f}"))
    title = f"MiniLM, {options.batch} pairs a batch, {options.steps} steps an epoch, medians of {options.rounds} rounds"
    show(title, ("re-ranker", "first epoch, batches/s", "later ones", "ratio", "ratio to the full re-ranker"), rows)


if __name__ == "__main__":
    main()
