"""The time of each heavy step of the training pipeline at a size: computed from measured rates, not measured itself.

    python benchmarks/scale.py [--preset msmarco] [--passages 8841823] [--queries 502939] [--train 502939]

`--queries` are all queries, as for `gnn-encoder doctor`, which gives the disk; texts have MS MARCO's lengths. The rates
are those of `RESULTS.md`: on a GPU an H200 with MiniLM, which waited for launches of kernels most of the time, so a
larger model loses less than its size says, and the hours are upper bounds; on processors one core. A model's time per
token is that of MiniLM times (layers · width²) over MiniLM's.
"""

import argparse
import os
from dataclasses import dataclass
from typing import Any

from common import show

from gnn_encoder.flow.declared import declared
from gnn_encoder.pipelines.train import train as train_graph
from gnn_encoder.planning.data_size import DataSize
from gnn_encoder.planning.disk import needed, run_space
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings

TOKEN = 6.2
"""Bytes of text to a token of WordPiece in `obliqa`."""
OBLIQA, QUERY = 470 / TOKEN + 2, 20
"""Tokens of a passage and of a query of `obliqa`, by which rates per text become rates per token."""
READ, TRAINED = 8_291 * OBLIQA, 515 * (2 * OBLIQA + QUERY)
"""Tokens per second of MiniLM on an H200: encoded, and trained with batches of 64 triples."""
MINILM = 6 * 384**2
INGESTED, INDEXED, MATCHED, PROPAGATED = 157e6, 19_400, 2_097 * 60_000, 8_841_823 / 206 / 2
"""Of one core: bytes ingested, passages indexed for BM25, queries × passages of BM25's search, passages propagated at
width 768; each per second."""
SEARCHED = 0.68 * 77e9
"""Operations per second of one core in exact search: the share of the matrix rate, and the rate in fp32."""


@dataclass(frozen=True)
class Work:
    """What a step does, in seconds of a GPU and of a core."""

    step: str
    what: str
    gpu: float
    core: float


def works(settings: Settings, size: DataSize, train: int, layers: int, width: int) -> list[Work]:
    """The heavy steps, in order."""
    heavier = layers * width**2 / MINILM
    made: dict[str, Any] = {node.step: node.settings for node in train_graph(settings).nodes}
    m, judged = size.passages, size.queries["dev"] + size.queries["test"]
    passage = min(2 + size.text / TOKEN, settings.train_dual_encoder.passage_length)
    query = 2 + size.query_text / TOKEN
    asked = train + judged

    def encoded(tokens: float) -> float:
        return tokens * heavier / READ

    def trained(tokens: float) -> float:
        return tokens * heavier / TRAINED

    def examples(step: str) -> float:
        own = made[step]
        return float(train * own.epochs * (query + (1 + own.negatives) * passage))

    scored = train * min(2 * made["score_candidates"].candidates, m)
    edges = train * settings.build_graph.neighbors
    pair = query + passage
    cross = made["train_cross_encoder"]
    gnn = made["train_gnn"]
    neighbours = edges / m * (2 if gnn.layers == 2 else 1)
    products = 2 * asked * m * width
    texts = m * size.text
    return [
        Work("ingest", f"{texts / 1e9:,.1f} GB of text", 0, texts / INGESTED),
        Work("index_bm25", f"{m:,} passages", 0, m / INDEXED),
        Work("bm25_retrieve", f"{asked:,} queries", 0, asked * m / MATCHED),
        Work("train_dpr", f"{made['train_dpr'].epochs} epochs", trained(examples("train_dpr")), 0),
        Work("dense_retrieve", f"{m:,} passages, all queries", encoded(m * passage), products / SEARCHED),
        Work(
            "train_cross_encoder", f"{cross.epochs} epochs",
            trained(train * cross.epochs * (1 + cross.negatives) * pair), 0),
        Work("score_candidates", f"{scored:,} pairs at most", encoded(scored * pair), 0),
        Work(
            "train_dual_encoder", f"{made['train_dual_encoder'].epochs} epochs",
            trained(examples("train_dual_encoder")) * (4 / 3 if settings.train_dual_encoder.gradient_cache else 1), 0),
        Work(
            "build_graph", f"{edges:,} edges at most, all passages", encoded(m * passage + edges * pair),
            2 * train * m * width / SEARCHED),
        Work(
            "train_gnn", f"{gnn.epochs} epochs",
            trained(examples("train_gnn") + train * gnn.epochs * 2 * neighbours * query)
            * (4 / 3 if gnn.gradient_cache else 1), 0),
        Work("encode_nodes", f"{m:,} passages", encoded(m * passage), 0),
        Work("encode_corpus", f"{m:,} passages", 0, m / PROPAGATED),
    ]  # fmt: skip


def divided(step: str) -> str:
    """The settings by which several pods, or processes, share the step's work."""
    if step == "encode_corpus":
        return "nothing"  # its `shards` are of encode_nodes
    fields = declared(step).settings.model_fields
    return ", ".join(name for name in ("shards", "nodes", "processes") if name in fields) or "nothing"


def main() -> None:
    """Compute and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="msmarco")
    parser.add_argument("--passages", type=int, default=8_841_823)
    parser.add_argument("--queries", type=int, default=510_000)
    parser.add_argument("--train", type=int, default=502_939)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    o = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # only sizes of backbones are looked up, and a BERT's is assumed without them
    settings = load_settings(o.preset)
    size = DataSize.assumed(o.passages, o.queries)
    rows = []
    for work in works(settings, size, o.train, o.layers, o.width):
        hours = [f"{seconds / 3600:,.1f}" if seconds else "" for seconds in (work.gpu, work.core)]
        rows.append((work.step, work.what, *hours, divided(work.step)))
    spaces = run_space(settings, size)
    caption = f"disk of a run: {needed(spaces) / 1e9:,.0f} GB"
    title = f"{o.preset}, {o.passages:,} passages, {o.train:,} training queries, {o.layers} layers of width {o.width}"
    show(title, ("step", "work", "hours of a GPU", "hours of a core", "divided by"), rows, caption)


if __name__ == "__main__":
    main()
