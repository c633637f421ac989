"""Peak memory of each step over structured documents, at two sizes: what grows with the nodes.

The data are synthetic: 90 % short passages, 10 % sections in trees, 50 nodes in a document on average. Sizes of
documents and sections, and numbers of citations of a node, follow power laws. The models are tiny (a BERT of two layers
and width 32, token vectors of width 16), so the figures are those of nodes, edges and token ids. The memory-mapped
token vectors of a real model have 8 times this width, and may have 10 times as many tokens. Each step has its own
process.

RSS counts the pages of memory-mapped files that happen to be in memory, which the system takes back when it needs them;
anonymous memory does not.

    python benchmarks/document_memory.py [--nodes 250000 1000000] [--steps train encode] [--folder F]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import PeakMemory, show

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting
from gnn_encoder.artifacts.dataset_writer import Column
from gnn_encoder.settings.documents import BuildDocumentGraph, EncodeContext
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.reranking import PropagateSections, TrainReranker

WORDS, LENGTH, CHUNK = 500, 4, 10_000
QUERIES = {"train": 128, "dev": 50, "test": 200}
HITS = 1000
MEASURES = ("PRES(doc)@100", "R(doc)@100", "AP(doc)@100", "MAP(D)", "PREC(D)", "RR@10")


def texts(words: np.ndarray, count: int, length: int, generator: np.random.Generator) -> pa.Array:
    """Random texts of `length` words."""
    drawn = words[generator.integers(0, WORDS, (count, length))]
    return pc.binary_join_element_wise(*(pa.array(column) for column in drawn.T), " ")


def power_law(count: int, most: float, generator: np.random.Generator) -> np.ndarray:
    """Shares [count] that sum to 1, of a Pareto distribution with exponent 1.5, cut off at `most` times the least."""
    weight = np.minimum((1 - generator.random(count)) ** (-1 / 1.5), most)
    return np.asarray(weight / weight.sum())


def structure(passages: int, sections: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Numbers of documents, parents and places, and citations; section 0 of a document has all others in its tree."""
    documents = max(1, (passages + sections) // 50)
    others = generator.choice(documents, sections - documents, p=power_law(documents, 200, generator))
    of_section = np.concatenate([np.arange(documents), np.sort(others)])
    of_passage = np.sort(generator.choice(sections, passages, p=power_law(sections, 100, generator)))
    # A section's parent is the one before it in its document or that one's parent, by chance; -1 for the first.
    order = np.argsort(of_section, kind="stable")
    first = np.concatenate([[True], np.diff(of_section[order]) > 0])
    root = order[np.maximum.accumulate(np.where(first, np.arange(sections), 0))]
    before = np.where(generator.random(sections) < 0.5, root, np.roll(order, 1))
    parent = np.empty(sections, np.int64)
    parent[order] = np.where(first, -1, passages + before)
    document = np.concatenate([of_section[of_passage], of_section])
    rank = np.empty(sections, np.int64)
    rank[order] = np.arange(sections)
    # Reading order: a section, then its passages, then the document's next section.
    section_of = np.concatenate([of_passage, np.arange(sections)])
    reading = np.lexsort((np.arange(passages + sections) < passages, rank[section_of]))
    place = np.empty(len(document), np.int64)
    starts = np.searchsorted(document[reading], document[reading])
    place[reading] = np.arange(len(reading)) - starts
    citing = generator.integers(0, passages, (passages + sections) // 2)
    near = np.minimum(citing + generator.integers(1, 20, len(citing)), passages - 1)
    far = (passages * generator.random(len(citing)) ** 2).astype(np.int64)  # some are cited often
    cited = np.where(generator.random(len(citing)) < 0.5, near, far)
    keys = np.unique((citing * len(document) + cited)[citing != cited])
    parents = np.concatenate([passages + of_passage, parent])
    return {
        "document": document, "parent": parents, "place": place,
        "citing": keys // len(document), "cited": keys % len(document),
    }  # fmt: skip


def write_inputs(folder: Path, nodes: int) -> None:
    """Writes a data set, a run of hits by chance, and the tiny backbone."""
    generator, passages = np.random.default_rng(0), nodes * 9 // 10
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.unique(["".join(generator.choice(letters, 5)) for _ in range(2 * WORDS)])[:WORDS].astype(object)
    found = structure(passages, nodes - passages, generator)
    total = sum(QUERIES.values())
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        for start in range(0, passages, CHUNK):
            rows = np.arange(start, min(start + CHUNK, passages))
            empty = pa.array([""] * len(rows))
            texts_of = (pc.cast(pa.array(rows), pa.string()), empty, texts(words, len(rows), LENGTH, generator))
            writer.passages(*(pa.chunked_array([column]) for column in texts_of))
        ids = [f"q{i}" for i in range(total)]
        splits = [split for split, count in QUERIES.items() for _ in range(count)]
        writer.queries(ids, texts(words, total, 5, generator).to_pylist(), splits, [[]] * total)
        positive = generator.integers(0, passages, total)
        writer.qrels(ids, [str(p) for p in positive], [1] * total, np.arange(total), positive)
        titles = [pa.array([""]).take(pa.array(np.zeros(passages, np.int32)))]
        titles.append(texts(words, nodes - passages, 3, generator))
        columns: list[Column] = [pc.cast(pa.chunked_array([np.arange(nodes)]), pa.string()), pa.chunked_array(titles)]
        numbers = {name: array.astype(np.int32) for name, array in found.items()}
        names = [f"d{i}" for i in range(int(found["document"].max()) + 1)]
        columns += [numbers[name] for name in ("document", "parent", "place")]
        writer.structure(columns, names, [numbers["citing"], numbers["cited"]])
        writer.close()
    hits = np.stack([generator.choice(passages, HITS, replace=False) for _ in range(total)])
    hits[:, 3] = positive
    scores = np.broadcast_to(-np.arange(HITS, dtype=np.float32), hits.shape)
    with drafting(folder / "run", "run") as draft:
        Run.from_hits(np.arange(total), hits, scores).write(draft, "A")
    write_backbone(folder / "bert", words)


def write_backbone(folder: Path, words: np.ndarray, width: int = 32) -> None:
    """Writes a random BERT of two layers, whose vocabulary is `words`."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words) + 5, hidden_size=width, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)


def read_structure(folder: Path) -> None:
    """Reads every column."""
    found = Dataset(folder / "dataset").structure
    assert found
    for name in ("node_ids", "titles", "document", "parent", "place", "document_ids", "citations"):
        getattr(found, name)


def build_graph(folder: Path) -> None:
    """Builds and writes the document graph."""
    from gnn_encoder.steps.build_document_graph import build_document_graph

    build_document_graph(BuildDocumentGraph(), dataset=folder / "dataset", document_graph=folder / "graph")


def train(folder: Path) -> None:
    """Four steps of training, with the cache of all nodes that the passages of any triple read."""
    from gnn_encoder.steps.train_reranker import train_reranker

    settings = TrainReranker(
        kind="lim", backbone=str(folder / "bert"), epochs=1, batch_size=64, negative_depth=200, dev_queries=20,
        redraw_negatives=True, token_width=16, query_length=12, passage_length=16, graph_heads=2,
    )  # fmt: skip
    inputs = {"dataset": folder / "dataset", "first_run": folder / "run", "document_graph": folder / "graph"}
    train_reranker(settings, **inputs, reranker=folder / "reranker")


def encode(folder: Path) -> None:
    """The token vectors of all nodes, and the context vectors of all passages (lim)."""
    from gnn_encoder.steps.encode_context import encode_context

    inputs = {"dataset": folder / "dataset", "document_graph": folder / "graph", "reranker": folder / "reranker"}
    encode_context(EncodeContext(), **inputs, scorer=folder / "scorer")


def propagate(folder: Path) -> None:
    """Section propagation of the run."""
    from gnn_encoder.steps.propagate_sections import propagate_sections

    settings = PropagateSections(system="B")
    propagate_sections(settings, dataset=folder / "dataset", ranking=folder / "run", run=folder / "propagated")


def evaluate(folder: Path) -> None:
    """Measures of documents and of passages in documents, of two systems."""
    from gnn_encoder.steps.evaluate import evaluate as measure

    settings = Evaluate(measures=MEASURES, baseline="A", candidate="B")
    runs = [folder / "run", folder / "propagated"]
    measure(settings, dataset=folder / "dataset", runs=runs, evaluation=folder / "evaluation")


STEPS: dict[str, Callable[[Path], None]] = {
    "imports": lambda folder: None,
    "structure": read_structure,
    "graph": build_graph,
    "train": train,
    "encode": encode,
    "propagate": propagate,
    "evaluate": evaluate,
}
"""In the order in which they run; each needs the outputs of those before."""


def peak_resident() -> float:
    """Peak resident memory of this process, GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024 / 1e9


def case(folder: Path, step: str) -> dict[str, float]:
    """One step in this process: seconds, and peaks in GB."""
    import torch  # the import is no part of a step's seconds

    import gnn_encoder.training.document_rerankers  # noqa: F401

    torch.manual_seed(0)
    began = time.perf_counter()
    with PeakMemory() as anonymous:
        STEPS[step](folder)
        time.sleep(0.2)
    return {"seconds": time.perf_counter() - began, "rss": peak_resident(), "anonymous": anonymous.peak / 1e9}


def measured(folder: Path, nodes: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures of each step over `nodes` nodes; inputs in the folder are used again."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "GNN_ENCODER_CHECKPOINTS": str(folder / "checkpoints"), "TMPDIR": str(folder)}
    command = [sys.executable, __file__, "--folder", str(folder), "--case"]
    if not (folder / "bert").is_dir():
        subprocess.run([*command, "inputs", "--nodes", str(nodes)], check=True, env=environment)
    found: dict[str, dict[str, float]] = {}
    for step in options.steps:
        output = subprocess.run([*command, step], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
        found[step] = json.loads(output.splitlines()[-1])
        print(f"{nodes:,} nodes, {step}: {found[step]}", file=sys.stderr)
    return found


def main() -> None:
    """Write the data, run the steps, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[250_000, 1_000_000])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--folder", type=Path, help="keep the data here, for the next call")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case == "inputs":
        write_inputs(options.folder, options.nodes[0])
        return
    if options.case:
        print(json.dumps(case(options.folder, options.case)))
        return
    with tempfile.TemporaryDirectory() as own:
        folder = options.folder or Path(own)
        found = {nodes: measured(folder / str(nodes), nodes, options) for nodes in options.nodes}
    headings = ["step"] + [f"{n:,} nodes: {what}" for n in found for what in ("seconds", "peak RSS", "anonymous, GB")]
    rows = [
        [step, *(f"{of[step][name]:.{places}f}" for of in found.values() for name, places in FIGURES)]
        for step in options.steps
    ]
    show("Steps over structured documents, each in its own process", headings, rows)


FIGURES = (("seconds", 0), ("rss", 2), ("anonymous", 2))

if __name__ == "__main__":
    main()
