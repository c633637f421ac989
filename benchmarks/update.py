"""Carrying over unchanged results: both steps after a share of the passages changed, against a run from nothing.

Both sides run whole steps (load models, read texts, write index and digests) over python-docs with MiniLM and random
GNN weights. If more passages are needed than the documentation has, its passages are repeated with shuffled words.

    python benchmarks/update.py [--passages 12000] [--changed 0.01] [--precision auto]
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
from common import documentation, show

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting, read_manifest
from gnn_encoder.artifacts.finished_run import graph_bundle
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import EncodeCorpus, EncodeNodes
from gnn_encoder.settings.shared import Precision
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.encode_corpus import encode_corpus
from gnn_encoder.steps.encode_nodes import encode_nodes
from gnn_encoder.steps.index_bm25 import index_bm25


def write_dataset(
    source: Dataset, path: Path, passages: int, changed: int, labels: bool = False, more: tuple[str, int] | None = None
) -> Path:
    """Write `passages` passages of the documentation, repeated if needed, of which `changed` have reversed words.

    `labels`: write the training labels, too; `more`: a further query and its passage.
    """
    table, generator = source.passages.take(np.arange(len(source.passages))), np.random.default_rng(0)
    texts = [table.texts[i % len(table.texts)] for i in range(passages)]
    for i in range(len(table.texts), passages):
        texts[i] = " ".join(generator.permutation(texts[i].split()))
    for i in generator.choice(passages, changed, replace=False):
        texts[i] = " ".join(reversed(texts[i].split()))
    titles = [table.titles[i % len(table.titles)] for i in range(passages)]
    rows = source.query_rows("train")
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        for start in range(0, passages, BATCH):
            some = range(start, min(start + BATCH, passages))
            writer.passages([f"p{i}" for i in some], [titles[i] for i in some], [texts[i] for i in some])
        ids = [f"q{row}" for row in rows]
        ids, questions = [*ids, *(["more"] if more else [])], [*source.query_texts(rows), *(more[:1] if more else [])]
        writer.queries(ids, questions, ["train"] * len(ids), [[] for _ in ids])
        if labels:
            training = source.split_qrels("train").positive()
            query = [*np.searchsorted(rows, training.query).tolist(), *([len(ids) - 1] if more else [])]
            passage = [*training.passage.tolist(), *(more[1:] if more else [])]
            names = [f"p{row}" for row in passage]
            writer.qrels([ids[row] for row in query], names, [1] * len(query), query, passage)
        writer.close()
    return path


def write_models(folder: Path) -> dict[str, Path]:
    """Write MiniLM as M_de, as a cross-encoder, and with a GNN."""
    encoders = DualEncoder.from_backbone(
        "minilm", pooling="auto", normalize="auto", query_length=32, passage_length=128, share_encoders=False
    )
    scorer = CrossEncoder.from_backbone("minilm", 160)
    joint = GnnEncoder(encoders, GNN(GnnConfig(width=384, edge_width=0)))
    models: dict[str, Any] = {"dual_encoder": encoders, "cross_encoder": scorer, "gnn_encoder": joint}
    for name, model in models.items():
        with drafting(folder / name, "model") as draft:
            model.save(draft.path)
    return {name: folder / name for name in models}


def run_steps(
    dataset: Path, models: dict[str, Path], out: Path, precision: Precision, previous: str = ""
) -> dict[str, float]:
    """Seconds of the steps; the outputs are stored in `out`."""
    built = {"graph": out / "graph", "passage_vectors": out / "passage_vectors"}
    began = time.perf_counter()
    build_graph(
        BuildGraph(neighbors=10, edge_features="none", previous=previous, precision=precision), dataset=dataset,
        dual_encoder=models["dual_encoder"], cross_encoder=models["cross_encoder"], **built,
    )  # fmt: skip
    middle = time.perf_counter()
    inputs = {"dataset": dataset, "gnn_encoder": models["gnn_encoder"], **built, "encoding": out / "encoding"}
    encode_nodes(EncodeNodes(previous=previous, precision=precision), **inputs)
    encoded = time.perf_counter()
    index_bm25(IndexBm25(), dataset=dataset, bm25_index=out / "bm25_index")
    inputs["bm25_index"] = out / "bm25_index"
    indexed = time.perf_counter()
    encode_corpus(EncodeCorpus(previous=previous, precision=precision), **inputs, bundle=graph_bundle(out))
    ended = time.perf_counter()
    return {
        "build_graph": middle - began,
        "encode_nodes": encoded - middle,
        "index_bm25": indexed - encoded,
        "encode_corpus": ended - indexed,
        "together": ended - began,
    }


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=12_000)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the passages")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, models = Dataset(documentation(folder, o.passages)), write_models(folder)
        few = round(o.passages * o.changed)
        days = {
            day: write_dataset(source, folder / day / "dataset", o.passages, changed)
            for day, changed in (("before", 0), ("after", few))
        }

        run_steps(days["before"], models, folder / "before", o.precision)
        sides = {
            "from nothing": run_steps(days["after"], models, folder / "full", o.precision),
            "carried over": run_steps(days["after"], models, folder / "update", o.precision, str(folder / "before")),
        }
        vectors = [Bundle.read(graph_bundle(folder / side)).vectors for side in ("full", "update")]
        difference = np.abs(vectors[0] - vectors[1]).max()
        last = folder / "update"
        encoded, propagated = (read_manifest(path).metrics for path in (last / "encoding", graph_bundle(last)))
    rows = [
        (f"{step}, {side}", f"{taken[step]:.1f}", f"{taken[step] / sides['from nothing'][step]:.1%}")
        for step in sides["from nothing"]
        for side, taken in sides.items()
    ]
    title = (
        f"{o.passages:,} passages, {few} changed; {encoded['encoded']} encoded, {propagated['propagated']} propagated"
    )
    show(
        title, ("step", "seconds", "of the whole"), rows, f"largest difference of a coordinate of h'_p {difference:.0e}"
    )


if __name__ == "__main__":
    main()
