"""Packages of an image: `packages.py wanted cpu|gpu|serve` lists packages, `packages.py check FOLDER` checks wheels.

FAISS and torch for GPUs both require CUDA's libraries as packages. PyPI's torch 2.13 is built for CUDA 13 and FAISS for
CUDA 12, so an image would hold both versions. torch's build for CUDA 12.6 uses the same libraries as FAISS.
"""

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1]
GPU = {"torch": "torch==2.13.0+cu126", "faiss-cpu": "faiss-gpu==1.15.1"}
"""Package of the CPU image → its replacement in the GPU image."""
STEPS = ("documents", "word-vectors", "pysbd")
"""Extras that steps need, too: `ingest` reads PDF and office files, `train_reranker` trains word vectors and splits
sentences. A server does none of it."""
LIBRARY = re.compile(r"nvidia-(.+?)(?:-cu(\d+))?$")


def wanted(target: str) -> list[str]:
    """Returns the packages that an image for the target needs beside this one, as pip names them."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    replaced = GPU if target == "gpu" else {}
    extras = () if target == "serve" else STEPS
    of_steps = [name for extra in extras for name in project["optional-dependencies"][extra]]
    return [replaced.get(name, name) for name in [*project["dependencies"], *of_steps]]


def problems(packages: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the problems of packages (name, version): not exactly one FAISS build, or a CUDA library twice."""
    found = sorted({(re.sub(r"[._]+", "-", name).lower(), version) for name, version in packages})
    builds = [name for name, _ in found if re.fullmatch(r"faiss-[cg]pu", name)]
    wrong = [] if len(builds) == 1 else [f"FAISS is in it as {', '.join(builds) or 'nothing'}, where one build belongs"]
    libraries = defaultdict(list)
    for name, version in found:
        if match := LIBRARY.match(name):
            libraries[match[1]].append(f"{name} {version}")
    return wrong + [f"a CUDA library twice: {', '.join(names)}" for names in libraries.values() if len(names) > 1]


def main(what: str, argument: str) -> None:
    """Prints the packages, or exits with their problems."""
    if what == "wanted":
        print("\n".join(wanted(argument)))
    elif wrong := problems((path.name.split("-")[0], path.name.split("-")[1]) for path in Path(argument).glob("*.whl")):
        sys.exit("\n".join(f"error: {each}" for each in wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
