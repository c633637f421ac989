"""What goes into an image: `packages.py wanted cpu|gpu` names the packages, `packages.py check FOLDER` looks at wheels.

The GPU's FAISS and the GPU's torch each bring CUDA's libraries as packages of their own. PyPI's torch 2.13 is built for
CUDA 13 and FAISS for CUDA 12, which would put both into one image; torch's build for CUDA 12.6 takes the same ones.
"""

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).parents[1]
GPU = {"torch": "torch==2.13.0+cu126", "faiss-cpu": "faiss-gpu==1.15.1"}
"""What the GPU's image has in the place of the CPU's."""
LIBRARY = re.compile(r"nvidia-(.+?)(?:-cu(\d+))?$")


def wanted(target: str) -> list[str]:
    """The packages that this one requires, for an image of that target."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    replaced = GPU if target == "gpu" else {}
    return [replaced.get(name, name) for name in project["dependencies"]]


def problems(packages: Iterable[tuple[str, str]]) -> list[str]:
    """What is wrong with a set of packages, (name, version) each: FAISS twice or not at all, a CUDA library twice."""
    found = sorted({(re.sub(r"[._]+", "-", name).lower(), version) for name, version in packages})
    builds = [name for name, _ in found if re.fullmatch(r"faiss-[cg]pu", name)]
    wrong = [] if len(builds) == 1 else [f"FAISS is in it as {', '.join(builds) or 'nothing'}, where one build belongs"]
    libraries = defaultdict(list)
    for name, version in found:
        if match := LIBRARY.match(name):
            libraries[match[1]].append(f"{name} {version}")
    return wrong + [f"a CUDA library twice: {', '.join(names)}" for names in libraries.values() if len(names) > 1]


def main(what: str, argument: str) -> None:
    """Print the packages, or exit with what is wrong with them."""
    if what == "wanted":
        print("\n".join(wanted(argument)))
    elif wrong := problems((path.name.split("-")[0], path.name.split("-")[1]) for path in Path(argument).glob("*.whl")):
        sys.exit("\n".join(f"error: {each}" for each in wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
