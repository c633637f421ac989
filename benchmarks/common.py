"""Functions that the benchmarks share: sides that take turns, one table format, the machine's rates."""

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
from rich.console import Console
from rich.table import Table


def in_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Each side's median seconds over `rounds`, and its last result. Sides take turns, so noise affects all sides."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            results[name] = side()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in seconds.items()}, results


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


def documentation(folder: Path, passages: int) -> Path:
    """A dataset artifact of the standard library's documentation."""
    from gnn_encoder.settings.foundation import Ingest
    from gnn_encoder.steps.ingest import ingest

    path = folder / "dataset"
    ingest(Ingest(dataset="python-docs", max_passages=passages), dataset=path)
    return path
