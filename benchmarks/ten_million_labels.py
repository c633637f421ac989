"""Labelled queries by the million: what bundles of four systems take in memory, for a question and for `labels add`.

The data are synthetic: passages and training queries with random words (Zipf) and unit vectors around random topics, a
label for each query, drawn with a Pareto distribution, so that few passages have most labels. The encoder is a BERT of
random weights. The project's own steps write all artifacts. Each phase has a process of its own.

Memory is the largest anonymous memory: what the process holds itself. Pages of memory-mapped files, which the system
takes back when it needs them, are in another column. A question is ranked without being encoded, 10 hits. `labels add`
adds one label of a new query, its encoding included; then questions are asked again in a new process.

    python benchmarks/ten_million_labels.py [--labels 10000000] [--passages 1000000] [--width 64] [--index flat]
        [--folder F] [--phases data,words,parts,bundles,ask,add] [--kinds memory,field,linear,trees]
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import PeakMemory, options, show
from document_memory import write_backbone

from gnn_encoder.artifacts import Bundle, Dataset, DatasetWriter, drafting, read_manifest
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, create_rows, create_vectors, read_rows
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.fusion import FuseParts, MakeParts
from gnn_encoder.settings.labels import EncodeWithLabels

CHUNK, VOCABULARY, TOPICS, DEV = 100_000, 50_000, 2_000, 50
EXAMPLES = 300
"""Training queries that the fusions are learnt from. Their passages are indexed once more in each fold."""
ASKED, WARM_UP = 100, 5
"""Questions that are timed, and questions before them."""
KINDS = {"memory": "Query memory", "field": "BM25 with labels", "linear": "Linear fusion", "trees": "Learned fusion"}
HEADING = "a question: first, median, p95, median of a core, ms"
PHASES = ("data", "words", "parts", "bundles", "ask", "add")


def texts(words: np.ndarray, count: int, length: int, generator: np.random.Generator) -> pa.Array:
    """Random texts of `length` words; the word of rank r has a share of about 1 / r."""
    drawn = (VOCABULARY ** generator.random((count, length))).astype(np.int64) - 1
    return pc.binary_join_element_wise(*(pa.array(words[column]) for column in drawn.T), " ")


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors [n, d] at unit length."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def around(vectors: np.ndarray, noise: float, generator: np.random.Generator) -> np.ndarray:
    """Unit vectors [n, d] near unit vectors."""
    return unit(vectors + noise * unit(generator.normal(size=vectors.shape).astype(np.float32)))


def write_data(folder: Path, labels: int, passages: int, width: int) -> None:
    """Writes the dataset, the vectors and the encoder."""
    from gnn_encoder.models.dual_encoder import DualEncoder

    generator = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(VOCABULARY)])
    owner = np.minimum((1 - generator.random(passages)) ** (-1 / 1.2), 1e4)
    of = generator.choice(passages, labels + DEV, p=owner / owner.sum()).astype(np.int32)
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        for start in range(0, passages, CHUNK):
            rows = np.arange(start, min(start + CHUNK, passages))
            ids, empty = pc.cast(pa.array(rows), pa.string()), pa.array([""] * len(rows))
            writer.passages(*(pa.chunked_array([c]) for c in (ids, empty, texts(words, len(rows), 20, generator))))
        for start in range(0, len(of), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(of)))
            split = np.where(rows < labels, "train", "dev")
            lists = pa.ListArray.from_arrays(np.zeros(len(rows) + 1, np.int32), pa.array([], pa.string()))
            text = texts(words, len(rows), 6, generator)
            columns = (pc.cast(pa.array(rows), pa.string()), text, pa.array(split), lists)
            writer.queries(*(pa.chunked_array([column]) for column in columns))
        for start in range(0, len(of), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(of)))
            ids = (pa.chunked_array([pc.cast(pa.array(numbers), pa.string())]) for numbers in (rows, of[rows]))
            query_ids, passage_ids = ids
            writer.qrels(query_ids, passage_ids, np.ones(len(rows), np.int32), rows.astype(np.int32), of[rows])
        writer.close()
    topics = unit(generator.normal(size=(TOPICS, width)))
    with drafting(folder / "vectors", "vectors") as draft:
        vectors = create_vectors(draft, passages, width, np.float16)
        for start in range(0, passages, CHUNK):
            rows = np.arange(start, min(start + CHUNK, passages))
            vectors[rows] = around(topics[generator.integers(TOPICS, size=len(rows))], 0.8, generator)
        for name, first, last in ((QUERIES, 0, labels), (EVALUATED, labels, labels + DEV)):
            queries = create_rows(draft, name, (last - first, width))
            for start in range(first, last, CHUNK):
                rows = np.arange(start, min(start + CHUNK, last))
                queries[rows - first] = around(np.asarray(vectors[of[rows]], np.float32), 0.8, generator)
    write_backbone(folder / "bert", words[:1000], width)
    encoders = DualEncoder.from_backbone(
        str(folder / "bert"), pooling="mean", normalize="yes", query_length=32, passage_length=32, share_encoders=True
    )
    with drafting(folder / "dual_encoder", "model") as draft:
        encoders.save(draft.path)


def write_words(folder: Path) -> None:
    """Writes the BM25 index of the passages."""
    from gnn_encoder.steps.index_bm25 import index_bm25

    index_bm25(IndexBm25(), dataset=folder / "dataset", bm25_index=folder / "bm25")


def write_parts(folder: Path, index: str) -> None:
    """Writes what the fusions share."""
    from gnn_encoder.steps.make_parts import make_parts

    inputs = {"dataset": folder / "dataset", "passage_vectors": folder / "vectors", "bm25_index": folder / "bm25"}
    make_parts(MakeParts.model_validate({"index": index, "examples": EXAMPLES}), **inputs, parts=folder / "parts")
    print(read_manifest(folder / "parts").metrics["headline"], file=sys.stderr)


def write_bundle(folder: Path, kind: str, index: str) -> None:
    """Writes the bundle of a system."""
    from gnn_encoder.steps.encode_with_labels import encode_with_labels
    from gnn_encoder.steps.fuse_parts import fuse_parts

    inputs = {"dataset": folder / "dataset", "passage_vectors": folder / "vectors", "bm25_index": folder / "bm25"}
    inputs |= {"dual_encoder": folder / "dual_encoder"}
    latest = folder / kind / "latest"
    if kind == "memory":
        one = {"memory_forms": ("softmax",), "memory_weights": (0.5,), "memory_neighbours": (100,)}
        one |= {"memory_temperatures": (0.1,), "memory_thresholds": (0.0,)}
        settings = EncodeWithLabels.model_validate({"kind": kind, **one, "index": index})
        encode_with_labels(settings, **inputs, bundle=folder / kind / "bundle")
    else:
        fusion = FuseParts.model_validate({"kind": kind, "index": index})
        fuse_parts(fusion, **inputs, parts=folder / "parts", bundle=folder / kind / "bundle")
    print(read_manifest(folder / kind / "bundle").metrics["headline"], file=sys.stderr)
    latest.mkdir(exist_ok=True)
    (latest / "bundle").unlink(missing_ok=True)
    (latest / "bundle").symlink_to(folder / kind / "bundle")
    if not (latest / "dataset").is_symlink():
        (latest / "dataset").symlink_to(folder / "dataset")


def ask(folder: Path, kind: str) -> dict[str, float]:
    """Opens a bundle and ranks for questions, one after the other."""
    from gnn_encoder.retrieval.passage_index import PassageIndex
    from gnn_encoder.retrieval.search import ASKED as ROW
    from gnn_encoder.retrieval.search import ranking

    generator = np.random.default_rng(1)
    vectors = around(np.array(read_rows(folder / "vectors", QUERIES)[::97][: ASKED + WARM_UP]), 0.5, generator)
    words = np.array([f"w{number}" for number in range(VOCABULARY)])
    questions = texts(words, len(vectors), 6, generator).to_pylist()
    began = time.perf_counter()
    index = PassageIndex.read(Bundle.read(folder / kind / "latest" / "bundle"))
    opened, taken = time.perf_counter() - began, list[tuple[float, float]]()
    for question, vector in zip(questions, vectors, strict=True):
        began, began_cpu = time.perf_counter(), time.process_time()
        ranking(index, None, ROW, [question], vector[None], 10, None)
        taken.append((time.perf_counter() - began, time.process_time() - began_cpu))
    timed = 1000 * np.array(taken[WARM_UP:])[:, 0]
    processor = 1000 * np.median([cpu for _, cpu in taken[WARM_UP:]])
    return {
        "opening": opened, "first": 1000 * taken[0][0], "median": float(np.median(timed)),
        "p95": float(np.quantile(timed, 0.95)), "processor": float(processor), "mapped": mapped(),
    }  # fmt: skip


def add(folder: Path, kind: str) -> dict[str, float]:
    """Adds a label of a new query."""
    from gnn_encoder.labels.adding import add_labels
    from gnn_encoder.labels.requests import Wanted

    rows = Dataset(folder / "dataset").manifest.rows["corpus"]
    outcome = add_labels(folder / kind / "latest" / "bundle", [Wanted("a new query of w3 w5 w7", str(rows // 2))])
    return {"seconds": outcome.seconds}


def mapped() -> int:
    """Bytes of memory-mapped files in this process's memory."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssFile"].split()[0]) * 1024


def phase(name: str, kind: str, folder: Path, labels: int, passages: int, width: int, index: str) -> None:
    """Runs a phase in this process and prints its figures as JSON."""
    works: dict[str, Callable[[], dict[str, float] | None]] = {
        "data": lambda: write_data(folder, labels, passages, width), "words": lambda: write_words(folder),
        "parts": lambda: write_parts(folder, index), "bundles": lambda: write_bundle(folder, kind, index),
        "ask": lambda: ask(folder, kind), "add": lambda: add(folder, kind), "again": lambda: ask(folder, kind),
    }  # fmt: skip
    began, began_cpu = time.perf_counter(), time.process_time()
    with PeakMemory() as memory:
        figures = works[name]() or {}
    taken = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - began_cpu}
    print(json.dumps({**taken, "peak": memory.peak, **figures}))


def main() -> None:
    """Runs all phases and prints the table."""
    o = options(
        __doc__, None, labels=10_000_000, passages=1_000_000, width=64, index="flat", folder=None,
        kinds=",".join(KINDS), phases=",".join(PHASES), phase="", kind="",
    )  # fmt: skip
    sizes = (o.labels, o.passages, o.width, o.index)
    if o.phase:
        phase(o.phase, o.kind, Path(o.folder), *sizes)
        return
    phases, kinds = o.phases.split(","), o.kinds.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(o.folder or temporary).resolve()
        folder.mkdir(exist_ok=True)
        for name in PHASES:
            for kind in kinds if name in ("bundles", "ask", "add") else ("",):
                for part in (name, "again") if name == "add" else (name,):
                    if name in phases:
                        rows.append(row(part, kind, run(part, kind, folder, *sizes)))
    headings = ("phase", "seconds", "of a core", "own memory, MB", "mapped, MB", HEADING)
    title = f"{o.labels:,} labels, {o.passages:,} passages, width {o.width}, index {o.index}"
    show(title, headings, rows)


def run(name: str, kind: str, folder: Path, *sizes: object) -> dict[str, float]:
    """Runs a phase in a process of its own."""
    names = ("phase", "kind", "folder", "labels", "passages", "width", "index")
    values = [f"--{key}={value}" for key, value in zip(names, (name, kind, folder, *sizes), strict=True)]
    done = subprocess.run([sys.executable, __file__, *values], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, kind: str, figures: dict[str, float]) -> tuple[str, ...]:
    """A row of the table."""
    titles = {
        "data": "data", "words": "BM25 of the passages", "parts": "make_parts", "bundles": "writing",
        "ask": "opening, questions", "add": "labels add", "again": "opening, questions after it",
    }  # fmt: skip
    asked = ", ".join(f"{figures[key]:,.1f}" for key in ("first", "median", "p95", "processor") if key in figures)
    seconds = figures.get("opening", figures["seconds"])
    title = f"{KINDS[kind]}: {titles[name]}" if kind else titles[name]
    memory = (f"{figures[key] / 1e6:,.0f}" if key in figures else "" for key in ("peak", "mapped"))
    return title, f"{seconds:,.2f}", f"{figures['cpu']:,.1f}", *memory, asked


if __name__ == "__main__":
    main()
