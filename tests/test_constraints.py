"""The file of constraints: what a run needs comes first, because `make run` installs that part at once."""

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
BUILD = {"editables", "hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"}
"""What builds the project itself."""


def find_needed(package: str, extra: str, found: set[tuple[str, str]]) -> None:
    """Adds to `found` whatever `package` needs on this machine with this extra ("": none), and the extra of each."""
    for requirement in map(Requirement, distribution(package).requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = canonicalize_name(requirement.name)
            for needed in {(name, ""), *((name, other) for other in requirement.extras)} - found:
                found.add(needed)
                find_needed(*needed, found)


def test_the_first_part_is_what_a_run_needs() -> None:
    run, others = (
        {canonicalize_name(line.split("==")[0]) for line in part.splitlines() if "==" in line}
        for part in CONSTRAINTS.read_text().split("# What extras need")
    )
    found: set[tuple[str, str]] = set()
    find_needed("gnn-encoder", "", found)
    assert run - BUILD == ({package for package, _ in found} & (run | others)) - BUILD
