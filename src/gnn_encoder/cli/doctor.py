"""`gnn-encoder doctor`: checks whether this environment can run the steps, and whether a run fits on the disk."""

import importlib.metadata
import itertools
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Data, Overrides, Root
from gnn_encoder.errors import UserError, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from gnn_encoder.planning.disk import Space
    from gnn_encoder.settings.pipeline import Settings

DISTRIBUTION = "gnn-encoder"
FAISS = ("faiss-cpu", "faiss-gpu")
ROOM = 2 * 2**30
"""Free bytes that a small run needs."""


@dataclass(frozen=True)
class Finding:
    """The result of one check; `advice` says how to fix a problem, empty if there is none."""

    subject: str
    result: str
    advice: str = ""


def doctor(
    preset: Annotated[str | None, typer.Option(help="Also forecast the disk that a run of this preset takes.")] = None,
    dataset: Data = None,
    passages: Annotated[int | None, typer.Option(min=1, help="Passages, if the data are not here.")] = None,
    queries: Annotated[int | None, typer.Option(min=3, help="Queries, if the data are not here.")] = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Check this environment: packages, processor or GPU, disk, and the MLflow store if one is set.

    With --preset, also show what a run will write, step by step, before it starts.
    """
    if preset is None and (dataset or overrides or passages or queries):
        raise UserError("--dataset, --passages, --queries and --set describe a run: add --preset")
    findings = examine(root)
    if preset is not None:
        from rich.console import Console

        from gnn_encoder.engines.pipelines import dataset_override
        from gnn_encoder.settings.presets import load_settings

        settings = load_settings(preset, [*(overrides or []), *dataset_override(dataset)])
        spaces = run_space(settings, passages, queries)
        Console().print(space_table(spaces), "")
        findings = itertools.chain(findings, [check_backbones(settings)], check_space(spaces, root))
    wrong = 0
    for finding in findings:
        wrong += bool(finding.advice)
        typer.echo(f"{'✗' if finding.advice else '✓'} {finding.subject:<10} {finding.result}")
        if finding.advice:
            typer.echo(f"  {'':<10} {finding.advice}")
    if wrong:
        raise UserError(f"{wrong} of these checks failed: follow the advice")


def examine(root: Path) -> Iterator[Finding]:
    """Yields the results of all checks, quick checks first; `root` is the folder of runs."""
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    yield _packages()
    yield _faiss()
    yield from _torch()
    yield _room(root)
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        yield _tracking(uri)


def _packages() -> Finding:
    from packaging.requirements import Requirement

    missing = []
    required = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
    required = [part for part in required if part.marker is None or part.marker.evaluate({"extra": ""})]
    for requirement in required:
        version = version_of(requirement.name)
        # FAISS for GPUs is another distribution with the same modules.
        if not version and requirement.name not in FAISS:
            missing.append(requirement.name)
        elif version and not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement} (here {version})")
    advice = f"install {', '.join(missing)}" if missing else ""
    return Finding("packages", f"{DISTRIBUTION} {version_of(DISTRIBUTION)}, {len(required)} required", advice)


def _faiss() -> Finding:
    import faiss
    import numpy as np

    builds = [name for name in FAISS if version_of(name)]
    index = faiss.IndexFlatIP(4)
    index.add(np.eye(4, dtype=np.float32))
    _, rows = index.search(np.eye(4, dtype=np.float32), 1)
    wrong = rows[:, 0].tolist() != [0, 1, 2, 3]
    advice = f"have one of {' and '.join(FAISS)}" if len(builds) != 1 else "install it again" if wrong else ""
    return Finding("faiss", f"{', '.join(builds) or 'no build'} {faiss.__version__}", advice)


def _torch() -> Iterator[Finding]:
    import torch

    from gnn_encoder.inference.encoding import fast_bf16

    correct = torch.equal(torch.eye(3) @ torch.ones(3, 1), torch.ones(3, 1))
    yield Finding("torch", torch.__version__, "" if correct else "install it again: a matrix product is wrong")
    bf16 = "bf16 is fast" if fast_bf16() else "bf16 is not faster: fp32 is used"
    yield Finding("processor", f"{platform.machine()}, {torch.get_num_threads()} threads, {bf16}")
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        yield Finding(f"gpu {number}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")
    if torch.version.cuda and not torch.cuda.is_available():
        yield Finding("gpu", f"none, though torch is built for CUDA {torch.version.cuda}: the processor is used")


def run_space(settings: "Settings", passages: int | None, queries: int | None) -> "list[Space]":
    """Returns what a run with these settings will take of the disk.

    `passages` and `queries` are the numbers of a data set that is not there; without them, the data set is read. No hub
    is asked.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a backbone that is not here is taken for a BERT
    from gnn_encoder.planning import disk
    from gnn_encoder.planning.data_size import DataSize

    if (passages is None) != (queries is None):
        raise UserError("--passages and --queries belong together: give both, or neither to read the data")
    if passages is not None and queries is not None:
        size = DataSize.assumed(passages, queries)
    elif settings.ingest.dataset:
        size = DataSize.read(settings)
    else:
        raise UserError("no data to measure: give --dataset, or its --passages and --queries")
    return disk.run_space(settings, size)


def check_backbones(settings: "Settings") -> Finding:
    """Checks that the pretrained models of a run are read as their publishers meant, as `run_space` without a hub."""
    from gnn_encoder.models.check import check_models
    from gnn_encoder.pipelines.train import train

    try:
        return Finding("backbones", ", ".join(check_models(train(settings).nodes)))
    except UserError as error:
        return Finding("backbones", "one is refused", one_line(error))


def space_table(spaces: "Sequence[Space]") -> "Table":
    """Returns a table of the steps' outputs, with the calls of a step in one row."""
    from gnn_encoder.report.table import figures_table

    table = figures_table(("calls", "GB kept", "GB more while it runs"), names="step")
    steps: dict[str, list[Space]] = {}
    for space in spaces:
        steps.setdefault(space.title.partition(": ")[0], []).append(space)
    for step, calls in steps.items():
        meanwhile = max(space.meanwhile for space in calls)
        extra = f"{meanwhile / 1e9:,.2f}" if meanwhile else ""
        table.add_row(step, str(len(calls)), f"{sum(space.kept for space in calls) / 1e9:,.2f}", extra)
    table.add_section()
    table.add_row("in all", "", f"{sum(space.kept for space in spaces) / 1e9:,.2f}", "")
    return table


def check_space(spaces: "Sequence[Space]", root: Path) -> Iterator[Finding]:
    """Compares what a run needs with what is free for the root, and for the data in the folder of temporary files."""
    from gnn_encoder.planning.disk import needed

    # Steps have their temporary files in ROOT/tmp. Only a run without a preset and this check read data elsewhere.
    data = next(space.kept for space in spaces if space.title == "ingest")
    for purpose, folder, need in (("the run", root, needed(spaces)), ("temporary", Path(tempfile.gettempdir()), data)):
        free = _free(folder)
        advice = "" if free >= need else "free space (gnn-encoder prune), or choose another disk"
        yield Finding(purpose, f"needs {need / 1e9:,.2f} GB of the {free / 1e9:,.2f} GB free for {folder}", advice)


def _free(folder: Path) -> int:
    """Returns the free bytes for a folder, which need not exist."""
    existing = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


def _room(root: Path) -> Finding:
    free = _free(root)
    advice = "" if free >= ROOM else f"free space: a small run needs {ROOM / 2**30:.0f} GiB"
    return Finding("disk", f"{free / 2**30:.0f} GiB free for {root}", advice)


def _tracking(uri: str) -> Finding:
    from gnn_encoder.tracking.mlflow_runs import find_experiment, reaching
    from gnn_encoder.tracking.pipeline_run import impatient

    try:
        with impatient(), reaching(uri) as client:
            experiment = find_experiment(client)
    except UserError as error:
        return Finding("mlflow", "no answer", one_line(error))
    return Finding("mlflow", "reached" if experiment else "reached, no runs yet")


def version_of(distribution: str) -> str:
    """Returns the version of a distribution, empty if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
