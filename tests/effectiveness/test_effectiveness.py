"""Runs of presets reach the figures that are written down, a file per data set, as Anserini keeps its regressions.

`make test-effectiveness` runs them: the quickstart, and with DATA=FOLDER the sets whose BEIR folders are in it.
Finished steps of an earlier run in the same root are reused.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnn_encoder.artifacts import Report

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.yaml"))
OTHERS = "others"


def misses(pinned: Mapping[str, Any], results: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yields what differs by more than the tolerance, in either direction: a better figure is pinned anew."""
    tolerances = pinned["tolerance"]
    for system, figures in pinned["figures"].items():
        for measure, expected in figures.items():
            figure = results.get(system, {}).get(measure)
            if figure is None or abs(figure - expected) > tolerances.get(system, tolerances[OTHERS]):
                yield f"{system}, {measure}: {expected:.3f} is pinned, the run has {figure}"


@pytest.mark.effectiveness
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_preset_reaches_its_figures(file: Path) -> None:
    pinned, name = yaml.safe_load(file.read_text("utf-8")), file.stem
    root, command = Path(os.environ.get("GNN_ENCODER_ROOT", "gnn-encoder-runs")), ["run", "--preset", name]
    if pinned.get("python"):
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        if pinned["python"] != here:
            pytest.skip(f"the figures are of Python {pinned['python']}'s docstrings, this is {here}")
    else:
        if not (folder := os.environ.get("DATA")) or not (data := Path(folder) / name).is_dir():
            pytest.skip(f"no folder {name} in DATA")
        root /= name
        command += ["--dataset", str(data)]
    subprocess.run([Path(sys.executable).with_name("gnn-encoder"), *command, "--root", root], check=True)
    results = Report.read(root / "latest" / "report").metrics["results"]["test"]
    assert not list(misses(pinned, results))


def test_a_miss_is_seen() -> None:
    pinned = {"tolerance": {"BM25": 0.001, OTHERS: 0.03}, "figures": {"BM25": {"AP": 0.5}, "Mine": {"AP": 0.5}}}
    assert not list(misses(pinned, {"BM25": {"AP": 0.5005}, "Mine": {"AP": 0.48}}))
    assert len(list(misses(pinned, {"BM25": {"AP": 0.52}, "Mine": {"AP": 0.55}}))) == 2
    assert len(list(misses(pinned, {"BM25": {"AP": 0.5}}))) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_figures_is_complete(file: Path) -> None:
    pinned = yaml.safe_load(file.read_text("utf-8"))
    assert OTHERS in pinned["tolerance"] and all(0 < tolerance <= 0.05 for tolerance in pinned["tolerance"].values())
    assert {"BM25", "Dual encoder", "GNN-encoder"} <= set(pinned["figures"])
    assert (HERE.parents[1] / "pipelines" / "presets" / file.name).is_file()
