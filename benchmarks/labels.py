"""Adding a label to a finished run's bundle, against an update with the same label in the data.

The run has MiniLM as query encoder and cross-encoder, and a GNN that begins as the mean of a passage's queries. Without
--dataset it is over python-docs, repeated with shuffled words up to the number of passages. The passage encoder is one
layer of MiniLM over 32 tokens, because neither side encodes a passage. Seconds are of the work alone, without the start
of a process and its imports; models are loaded from the disk each time.

    python benchmarks/labels.py [--dataset FOLDER] [--passages 13012] [--edges labelled] [--index flat] [--root FOLDER]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from common import documentation, in_turns, show
from update import write_dataset

from gnn_encoder.artifacts import Bundle, Dataset, Graph, drafting
from gnn_encoder.artifacts.bundle import ADDED
from gnn_encoder.labels.adding import add_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.labels.versions import Versions
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import EncodeCorpus, EncodeNodes
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.encode_corpus import encode_corpus
from gnn_encoder.steps.encode_nodes import encode_nodes
from gnn_encoder.steps.index_bm25 import index_bm25
from gnn_encoder.steps.ingest import ingest

ROUNDS = 5
LINKED = ("bundle", "encoding", "graph", "passage_vectors", "dataset", "gnn_encoder", "dual_encoder", "cross_encoder")
QUERY = "which form has to be sent before the end of the year"


def write_models(folder: Path) -> None:
    """Write M_de and the cross-encoder."""
    encoders = DualEncoder.from_backbone(
        "minilm", pooling="auto", normalize="auto", query_length=48, passage_length=32, share_encoders=False
    )
    passages = encoders.passage_encoder.backbone
    passages.encoder.layer, passages.config.num_hidden_layers = passages.encoder.layer[:1], 1
    for name, model in (("dual_encoder", encoders), ("cross_encoder", CrossEncoder.from_backbone("minilm", 112))):
        with drafting(folder / name, "model") as draft:
            model.save(draft.path)


def run_steps(dataset: Path, models: Path, out: Path, edges: str, index: str, previous: str = "") -> None:
    """Run the steps; without a GNN-encoder yet, write one between them."""
    graph = {name: out / name for name in ("graph", "passage_vectors")}
    built = BuildGraph.model_validate({"neighbors": 10, "retrieved": 25, "edges": edges, "previous": previous})
    build_graph(
        built, dataset=dataset, dual_encoder=models / "dual_encoder", cross_encoder=models / "cross_encoder", **graph
    )
    if not (models / "gnn_encoder").exists():
        gnn = GNN(GnnConfig(width=384, edge_width=EdgeFeatures(Graph.read(out / "graph")).width))
        gnn.start_from_mean(-1.0)
        with drafting(models / "gnn_encoder", "model") as draft:
            GnnEncoder(DualEncoder.load(models / "dual_encoder"), gnn).save(draft.path)
    given = {"dataset": dataset, "gnn_encoder": models / "gnn_encoder", **graph, "encoding": out / "encoding"}
    encode_nodes(EncodeNodes(previous=previous), **given)
    index_bm25(IndexBm25(), dataset=dataset, bm25_index=out / "bm25_index")
    given["bm25_index"] = out / "bm25_index"
    encode_corpus(EncodeCorpus.model_validate({"previous": previous, "index": index}), **given, bundle=out / "bundle")


def finished_run(folder: Path, given: str, passages: int, edges: str, index: str) -> tuple[Path, Ingest]:
    """ROOT/latest of a run in `folder`, and the settings of its data; a run that is there already is used again."""
    made, latest, settings = folder / "made", folder / "latest", Ingest(dataset=given)
    if latest.is_dir():
        return latest, settings
    if given:
        ingest(settings, dataset=made / "dataset")
    else:
        source = Dataset(documentation(folder, passages))
        write_dataset(source, made / "dataset", passages, 0, labels=True)
    write_models(made)
    run_steps(made / "dataset", made, made, edges, index)
    latest.mkdir()
    for name in LINKED:
        (latest / name).symlink_to(made / name)
    return latest, settings


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="", help="BEIR folder")
    parser.add_argument("--passages", type=int, default=13_012)
    parser.add_argument("--edges", choices=["labelled", "retrieved", "retrieved+labelled"], default="labelled")
    parser.add_argument("--index", choices=["flat", "flat_fp16", "sq8", "ivf", "hnsw"], default="flat")
    parser.add_argument("--root", type=Path, help="folder that keeps the run")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = o.root or Path(name)
        latest, settings = finished_run(folder.resolve(), o.dataset, o.passages, o.edges, o.index)
        bundle, ids = latest / "bundle", Bundle.read(latest / "bundle").passages.ids()
        before = np.array(Bundle.read(bundle).vectors)

        def add() -> np.ndarray:
            changed = add_labels(bundle, [Wanted(QUERY, ids[len(ids) // 2].as_py())]).changed
            vectors.append(np.array(Bundle.read(bundle).vectors))
            return changed

        def undo() -> None:
            with Versions.of(bundle) as versions:
                versions.undo()

        vectors: list[np.ndarray] = []
        seconds, results = in_turns({"labels add": add, "labels undo": undo}, ROUNDS)
        began_cpu = time.process_time()
        add()
        processor = {"labels add": time.process_time() - began_cpu}
        undo()
        assert np.array_equal(Bundle.read(bundle).vectors, before), "undo restores every bit"
        add()
        began, began_cpu = time.perf_counter(), time.process_time()
        today = Path(name) / "today"
        labels = bundle / ADDED / "labels.jsonl"
        if o.dataset:
            ingest(settings.model_copy(update={"labels": str(labels)}), dataset=today / "dataset")
        else:
            source = Dataset(latest / "dataset")
            more = (QUERY, len(ids) // 2)
            write_dataset(source, today / "dataset", len(source.passages), 0, labels=True, more=more)
        run_steps(today / "dataset", folder.resolve() / "made", today, o.edges, o.index, str(folder.resolve() / "made"))
        seconds["update"], processor["update"] = time.perf_counter() - began, time.process_time() - began_cpu
        difference = np.abs(Bundle.read(today / "bundle").vectors - vectors[-1]).max()
        undo()
    rows = [
        (name, f"{taken:.2f}", f"{taken / seconds['update']:.1%}", f"{processor.get(name, 0.0):.2f}")
        for name, taken in seconds.items()
    ]
    title = f"{len(ids):,} passages, {o.edges} edges, index {o.index}; {len(results['labels add'])} vectors change"
    caption = f"largest difference of a coordinate of h'_p from the update {difference:.0e}"
    show(title, ("side", "seconds", "of the update", "of the processor"), rows, caption)


if __name__ == "__main__":
    main()
