"""Functions that the benchmarks share: options, sides that take turns, one table format, the machine's rates."""

import argparse
import functools
import importlib.util
import math
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from gnn_encoder.artifacts import Dataset


def options(description: str | None, arguments: Sequence[str] | None, **defaults: Any) -> argparse.Namespace:
    """The options of a script, read from `arguments` or the command line; None as a default is for a text.

    `--seconds`, which every script has, is the time after which `in_turns` begins no further round.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {**defaults, "seconds": math.inf}.items():
        parser.add_argument(
            "--" + name.replace("_", "-"), type=str if default is None else type(default), default=default
        )
    return parser.parse_args(arguments)


def in_turns(
    sides: Mapping[str, Callable[[], Any]], rounds: int, seconds: float = math.inf
) -> tuple[dict[str, float], dict[str, Any]]:
    """Each side's median seconds over `rounds`, and its last result. Sides take turns, so noise affects all sides.

    After `seconds` no further round begins. On a GPU an untimed round comes first, because first calls load kernels.
    """
    ends = time.perf_counter() + seconds
    if torch.cuda.is_available():
        for name, side in sides.items():
            set_tokenizer_threads(name)
            side()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, Any] = {}
    for number in range(rounds):
        if number and time.perf_counter() > ends:
            break
        for name, side in sides.items():
            set_tokenizer_threads(name)
            began = time.perf_counter()
            results[name] = side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}, results


def set_tokenizer_threads(side: str) -> None:
    """Beside a GPU tokenizers use all cores, as in a run, unless processes load batches."""
    many = torch.cuda.is_available() and "loaders" not in side
    os.environ["TOKENIZERS_PARALLELISM"] = str(many).lower()


def ratio(seconds: Mapping[str, float]) -> float:
    """The speed of our fastest side, in multiples of the fastest peer's."""
    ours = [taken for name, taken in seconds.items() if name.startswith("gnn-encoder")]
    return min(
        (taken for name, taken in seconds.items() if not name.startswith("gnn-encoder")), default=math.nan
    ) / min(ours)


def peer_attention() -> str:
    """The fastest attention of transformers on this machine, as sentence-transformers' models take it."""
    found = torch.cuda.is_available() and importlib.util.find_spec("flash_attn")
    return "flash_attention_2" if found else "sdpa"


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    """Print a table, and below the table the machine and the package versions of the measurement."""
    table = Table(title=title, caption=caption or None)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # a log has no width limit, so no figure needs to be cut
        console.width = 200
    console.print(table)
    console.print(machine(), highlight=False)


def machine() -> str:
    """Processor or GPU, threads, and the packages' versions."""
    from gnn_encoder.inference.encoding import fast_bf16

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    packages = ("torch", "transformers", "sentence-transformers", "torch-geometric", "faiss-cpu", "bm25s", "numpy")
    versions = ", ".join(f"{name} {found}" for name in packages if (found := _version(name)))
    return f"{where}, {torch.get_num_threads()} threads, fast bf16: {fast_bf16()}; {versions}"


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return ""


def processor() -> str:
    """The CPU's model name on Linux, otherwise the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


@functools.cache
def matmul_rate(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a [rows, inner] × [inner, columns] product on this machine, best of 20: the rate behind a floor."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, device=where).to(dtype) for size in ((rows, inner), (inner, columns)))
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        if where == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * rows * inner * columns / best


class PeakMemory(threading.Thread):
    """The largest anonymous memory of this process while the block runs, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()

    def run(self) -> None:
        """Measure ten times a second."""
        while not self.over.wait(0.1):
            status = Path("/proc/self/status").read_text()
            kib = next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
            self.peak = max(self.peak, int(kib) * 1024)

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


@contextmanager
def dataset(path: str | None, passages: int) -> Iterator["Dataset"]:
    """In the block, a dataset artifact, or without a path the standard library's documentation."""
    from gnn_encoder.artifacts import Dataset

    with tempfile.TemporaryDirectory() as folder:
        yield Dataset(path or documentation(Path(folder), passages))


def documentation(folder: Path, passages: int) -> Path:
    """A dataset artifact of the standard library's documentation."""
    from gnn_encoder.settings.foundation import Ingest
    from gnn_encoder.steps.ingest import ingest

    path = folder / "dataset"
    ingest(Ingest(dataset="python-docs", max_passages=passages), dataset=path)
    return path
