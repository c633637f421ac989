"""The file of constraints: what a run needs comes first, because `make run` installs that part at once."""

import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
BUILD = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
"""What builds the project itself."""


def find_needed(package: str, extra: str, names: set[tuple[str, str]]) -> None:
    """Adds to `names` whatever `package` needs on this machine with this extra ("": none), and the extra of each."""
    for requirement in map(Requirement, distribution(package).requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = canonicalize_name(requirement.name)
            for needed in {(name, ""), *((name, other) for other in requirement.extras)} - names:
                names.add(needed)
                find_needed(*needed, names)


def test_the_first_part_is_what_a_run_needs() -> None:
    run, others = (
        {canonicalize_name(line.split("==")[0]) for line in part.splitlines() if "==" in line}
        for part in CONSTRAINTS.read_text().split("# What extras need")
    )
    needed: set[tuple[str, str]] = set()
    find_needed("gnn-encoder", "", needed)
    assert run - BUILD == ({package for package, _ in needed} & (run | others)) - BUILD


def test_the_oldest_python_is_enough_for_every_pin() -> None:
    project = tomllib.loads((CONSTRAINTS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = f"{project['requires-python'].removeprefix('>=')}.0"
    pinned = {canonicalize_name(line.split("==")[0]) for line in CONSTRAINTS.read_text().splitlines() if "==" in line}
    needed = {canonicalize_name(package.name): package.metadata.get("Requires-Python") for package in distributions()}
    assert not [name for name in pinned & set(needed) if not SpecifierSet(needed[name] or "").contains(oldest)]
    assert not SpecifierSet(">=3.11.5").contains(oldest)
