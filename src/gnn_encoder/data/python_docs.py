"""The docstrings of Python's standard library, and of installed packages: real text on every machine.

A docstring's first sentence is a query; what follows, cut into passages, must be found for it. A
docstring whose first sentence is no use as a query gives passages that nobody asks for. Passages are
titled by the dotted name of what they describe. Queries of the same words are one query with several
relevant passages; passages of the same words are one passage. A query's split is decided by a hash of
its text (70 % train, 10 % dev, 20 % test), so it stays when the library changes. All of it is held in
memory: 3 MB of text for the standard library.
"""

import importlib.machinery
import importlib.metadata
import platform
import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gnn_encoder.data.cutting import cut
from gnn_encoder.data.docstrings import Docstring, read_docstrings
from gnn_encoder.data.lines import files_digest
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.splits import share
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

SKIPPED = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "_bundled", "__pycache__")
)
"""Folders of tests, programs and other people's packages."""
SHORTEST_BODY = 5
"""Words; a shorter rest, as in `See PEP 8.`, is not an answer."""
TEST_SHARE, DEV_SHARE = 0.2, 0.1
"""Shares of the queries: enough in test that a difference of some points can be told from chance."""


@dataclass(frozen=True)
class Described:
    """A docstring with its passages."""

    docstring: Docstring
    passages: list[str]
    file: str


class PythonDocs:
    """The standard library of the running interpreter and the named packages."""

    name = format = "python-docs"
    unit = "passages"

    def __init__(self, packages: Sequence[str], max_passages: int, seed: int, library: Path | None = None) -> None:
        self.remarks: list[str] = []
        self.facts = {"python": platform.python_version()}
        self._max, self._seed = max_passages, seed
        library = library or Path(sysconfig.get_paths()["stdlib"])
        self.sources = dict(_modules(library, ""))
        for package in packages:
            self.sources.update(_package(package))
            self.facts[package] = _version(package)

    @cached_property
    def work(self) -> int:
        """Passages to come."""
        return len(self._passages)

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """All passages, in the order of their modules' names."""
        del problems  # a program's source has none that the user could mend
        texts = list(self._passages)
        titles = [self._passages[text] for text in texts]
        ids = [f"p{i}" for i in range(len(texts))]
        yield PassageRows(ids, titles, texts, "docstrings", range(1, len(texts) + 1), len(texts))

    def questions(self, problems: Problems) -> Iterator[QueryRows | LabelRows]:
        """All queries, then their labels, split by split."""
        del problems
        rows = {text: i for i, text in enumerate(self._passages)}
        positives: dict[str, dict[int, None]] = {}
        texts: dict[str, str] = {}
        for described in self._described:
            if described.docstring.query:
                key = described.docstring.query.casefold()
                texts.setdefault(key, described.docstring.query)
                positives.setdefault(key, {}).update(dict.fromkeys(rows[p] for p in described.passages))
        keys = list(texts)
        numbers = {key: i for i, key in enumerate(keys)}
        splits = {key: _split(key) for key in keys}
        for split in ("train", "dev", "test"):
            chosen = [key for key in keys if splits[key] == split]
            lines = [numbers[key] + 1 for key in chosen]
            ids = [f"q{numbers[key]}" for key in chosen]
            yield QueryRows(ids, [texts[key] for key in chosen], [[] for _ in ids], split, "docstrings", lines)
            pairs = [(f"q{numbers[key]}", f"p{row}", numbers[key] + 1) for key in chosen for row in positives[key]]
            yield LabelRows(
                [q for q, _, _ in pairs], [p for _, p, _ in pairs], [1] * len(pairs),
                split, "docstrings", [line for _, _, line in pairs],
            )  # fmt: skip

    def digest(self) -> str:
        """Over the interpreter's version and the contents of the source files."""
        return files_digest(list(self.sources.values()), **self.facts)

    @cached_property
    def _passages(self) -> dict[str, str]:
        """Distinct passage → title, that of the first docstring that has it."""
        titles: dict[str, str] = {}
        for described in self._described:
            for text in described.passages:
                titles.setdefault(text, described.docstring.name)
        return titles

    @cached_property
    def _described(self) -> list[Described]:
        """Docstrings with passages, drawn if there are too many."""
        found = []
        for module, path in sorted(self.sources.items()):
            try:
                docstrings = list(read_docstrings(path, module))
            except (SyntaxError, UnicodeDecodeError) as error:
                self.remarks.append(f"{path} was not read: {type(error).__name__}")
                continue
            for docstring in docstrings:
                if len(docstring.body.split()) >= SHORTEST_BODY:
                    found.append(Described(docstring, cut(docstring.body), path.name))
        self.facts["docstrings"] = f"{len(found)}"
        return found if self._max == 0 else self._draw(found)

    def _draw(self, found: list[Described]) -> list[Described]:
        order = list(range(len(found)))
        random.Random(self._seed).shuffle(order)
        kept, texts = [], set[str]()
        for i in order:
            texts.update(found[i].passages)
            if len(texts) > self._max:
                break
            kept.append(i)
        return [found[i] for i in sorted(kept)]


def _split(text: str) -> str:
    place = share(text)
    return "test" if place < TEST_SHARE else "dev" if place < TEST_SHARE + DEV_SHARE else "train"


def _modules(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of all modules in a folder."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in SKIPPED and (path / "__init__.py").is_file():
                yield from _modules(path, f"{prefix}{path.name}.")
        elif path.name == "__init__.py":
            yield prefix.rstrip("."), path
        elif path.suffix == ".py":
            yield f"{prefix}{path.stem}", path


def _package(name: str) -> Iterator[tuple[str, Path]]:
    """Modules of an installed package or module, found without importing it."""
    top, *parts = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top)
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise UserError(f"ingest.packages names {name!r}, which is not installed: pip install it or leave it out")
    for location in spec.submodule_search_locations or [spec.origin or ""]:
        path = Path(location, *parts)
        path = path if path.exists() else path.with_suffix(".py")
        if not path.exists():
            raise UserError(f"ingest.packages names {name!r}, which {top} does not have: leave it out")
        yield from _modules(path, f"{name}.") if path.is_dir() else [(name, path)]


def _version(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package.partition(".")[0], [])
    return ",".join(importlib.metadata.version(name) for name in sorted(set(names)))
