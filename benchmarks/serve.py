"""`gnn-encoder serve` against thirty lines of FastAPI around sentence-transformers and FAISS, over the same vectors.

Both answer the same questions, each of 64 clients one after the other over a kept connection, for `--seconds`. The
peer runs once with each number of threads of torch (one, and all), because neither is best everywhere. Then one client
asks alone: `gnn-encoder serve` in turn with a search of the same questions without HTTP, in blocks, because the speed
of a virtual machine changes within seconds. Without --bundle the vectors are random ones of ObliQA's shape, and the
texts Python's documentation, repeated.

    python benchmarks/serve.py [--bundle FOLDER] [--clients 64] [--seconds 60] [--passages 13012]
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import documentation, show
from update import write_dataset

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.arrays import create_vectors
from gnn_encoder.artifacts.bundle import QUERY_ENCODER
from gnn_encoder.models.dual_encoder import TextEncoder

K = 10
BLOCKS, BLOCK = 12, 50
"""Blocks of questions that are asked over HTTP and directly, and questions of a block."""
PEER = """
import json, os, sys
import faiss, numpy as np, pyarrow.parquet as pq, torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder, port, threads = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = SentenceTransformer(sys.argv[1], device="cpu")
torch.set_num_threads(threads)
faiss.omp_set_num_threads(threads)
vectors = np.load(folder + "/vectors.npy")
index = faiss.IndexFlatIP(vectors.shape[1])
index.add(vectors)
table = pq.read_table(folder + "/corpus.parquet")
ids, titles, texts = (table.column(name).to_pylist() for name in ("passage_id", "title", "text"))
app = FastAPI()


class Request(BaseModel):
    questions: list[str]
    k: int = 10


@app.post("/search")
def search(request: Request):
    scores, rows = index.search(model.encode(request.questions, show_progress_bar=False), request.k)
    hits = [[{"rank": r + 1, "score": float(s), "passage_id": ids[i], "title": titles[i], "text": texts[i]}
             for r, (s, i) in enumerate(zip(*each))] for each in zip(scores, rows)]
    return {"results": [{"question": q, "hits": h} for q, h in zip(request.questions, hits)]}


@app.get("/health/ready")
def ready():
    return {}


uvicorn.run(app, port=port, log_level="warning", access_log=False)
"""


def write_bundle(folder: Path, passages: int) -> Path:
    """A bundle of MiniLM and random vectors over Python's documentation, repeated up to a number of passages."""
    documents = Dataset(documentation(folder, passages))
    dataset = Dataset(write_dataset(documents, folder / "repeated", passages, 0))
    encoder = TextEncoder.from_backbone("minilm", max_length=48)
    with drafting(folder / "bundle", "bundle") as draft:
        vectors = create_vectors(draft, len(dataset.passages), encoder.width)
        vectors[:] = np.random.default_rng(0).standard_normal(vectors.shape, dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors.flush()
        encoder.save(draft / QUERY_ENCODER)
        Bundle.complete(draft, dataset)
    return folder / "bundle"


def questions_of(bundle: Bundle) -> list[str]:
    """Questions of 5 to 25 words from the passages."""
    chance = np.random.default_rng(1)
    rows = np.sort(chance.choice(len(bundle.passages), min(2000, len(bundle.passages)), replace=False))
    words = [re.findall(r"\w+", text) for text in bundle.passages.take(rows).texts]
    return [" ".join(each[: chance.integers(5, 26)]) for each in words if len(each) >= 5]


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: str) -> int:
    """Sends a question over a kept connection and reads the answer; returns its status."""
    body = json.dumps({"questions": [question], "k": K}).encode()
    head = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)[1])  # type: ignore[index]
    await reader.readexactly(length)
    return int(answer.split()[1])


async def load(port: int, questions: list[str], clients: int, seconds: float) -> tuple[np.ndarray, int]:
    """Lets clients ask until the time is over; returns seconds per answer, and the number of answers but 200."""
    took: list[float] = []
    wrong, end = 0, time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number * 31
        while time.perf_counter() < end:
            began = time.perf_counter()
            wrong += await ask(reader, writer, questions[place % len(questions)]) != 200
            took.append(time.perf_counter() - began)
            place += 1
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    return np.array(took), wrong


def in_turns(port: int, retriever: Retriever, questions: list[str]) -> np.ndarray:
    """Medians of each block, seconds [blocks, 2]: one client over HTTP, and the retriever called directly."""

    async def over_http(some: list[str]) -> list[float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        took = []
        for question in some:
            began = time.perf_counter()
            assert await ask(reader, writer, question) == 200
            took.append(time.perf_counter() - began)
        writer.close()
        return took

    medians = []
    for block in range(BLOCKS):
        some, direct = [questions[(block * BLOCK + i) % len(questions)] for i in range(BLOCK)], []
        served = asyncio.run(over_http(some))
        for question in some:
            began = time.perf_counter()
            retriever.search(question, K)
            direct.append(time.perf_counter() - began)
        medians.append([np.median(served), np.median(direct)])
    return np.array(medians[1:])  # the first block finds cold caches


async def started(port: int, process: subprocess.Popen[bytes]) -> float:
    """Waits until a server is ready; returns the seconds."""
    began = time.perf_counter()
    while process.poll() is None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            if b" 200 " in await reader.readline():
                return time.perf_counter() - began
        except OSError:
            await asyncio.sleep(0.05)
    raise SystemExit("the server ended")


def rss(process: subprocess.Popen[bytes]) -> float:
    """Resident memory in MiB; on Linux only."""
    status = Path(f"/proc/{process.pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024 if status.is_file() else 0.0  # type: ignore[index]


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path)
    for name, default in (("clients", 64), ("seconds", 60), ("passages", 13_012), ("port", 8750)):
        parser.add_argument(f"--{name}", type=int, default=default)
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = o.bundle or write_bundle(Path(temporary), o.passages)
        bundle = Bundle.read(folder)
        questions, cores = questions_of(bundle), len(os.sched_getaffinity(0))
        exported = Path(temporary) / "encoder"
        program = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()"]
        export = ["export", "--bundle", str(folder), "--format", "sentence-transformers", str(exported)]
        subprocess.run([*program, *export], check=True)
        peer = [sys.executable, "-c", PEER, str(exported), str(folder)]
        serve = [*program, "serve", "--bundle", str(folder), "--port"]
        sides: dict[str, Callable[[str], list[str]]] = {
            f"peer, {threads} thread{'s' * (threads > 1)}": lambda port, t=threads: [*peer, port, str(t)]  # type: ignore[misc]
            for threads in sorted({1, cores})
        }
        sides["gnn-encoder serve"] = lambda port: [*serve, port]
        rows, rates, retriever, compared = [], {}, Retriever(bundle), np.empty((0, 2))
        for number, (name, command) in enumerate(sides.items()):
            port = o.port + number
            with subprocess.Popen(command(str(port)), stdout=subprocess.DEVNULL) as process:
                try:
                    ready = asyncio.run(started(port, process))
                    asyncio.run(load(port, questions, o.clients, 3))
                    before = rss(process)
                    took, wrong = asyncio.run(load(port, questions, o.clients, o.seconds))
                    after = rss(process)
                    alone, _ = asyncio.run(load(port, questions, 1, 5))
                    if number == len(sides) - 1:
                        compared = in_turns(port, retriever, questions)
                finally:
                    process.terminate()
            rates[name] = len(took) / o.seconds
            figures = [1000 * np.percentile(took, p) for p in (50, 99)] + [1000 * np.percentile(alone, 50)]
            rows.append(
                [name, f"{rates[name]:.0f}", f"{rates[name] / max(list(rates.values())[: len(sides) - 1]):.2f}"]
                + [f"{figure:.1f}" for figure in figures]
                + [str(wrong), f"{before:.0f} → {after:.0f}", f"{ready:.1f}"]
            )
        served, direct = 1000 * np.median(compared, axis=0)
        rows.append(["Retriever.search", *[""] * 4, f"{direct:.1f}", *[""] * 3])
    headings = (
        "side", "questions/s", "ratio", "p50, ms", "p99, ms", "alone p50, ms", "errors", "MiB", "ready after, s",
    )  # fmt: skip
    ratio = np.median(compared[:, 0] / compared[:, 1])
    note = f"in turns, alone: {served:.1f} ms over HTTP, {direct:.1f} ms directly, {ratio:.2f} × (median of blocks)"
    title = f"{o.clients} clients for {o.seconds} s, {len(bundle.passages):,} passages, k = {K}"
    show(title, headings, rows, note)


if __name__ == "__main__":
    main()
