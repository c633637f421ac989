"""Reads the docstrings of Python's standard library and of installed packages: real text on every machine.

A docstring's first sentence is a query. The remaining text is cut into passages, which are relevant to the query. If
the first sentence cannot serve as a query, the docstring gives passages only. A passage's title is the dotted name of
the described object. A top-level package or module is a document; its packages, modules, classes and functions are
sections. Equal queries become one query with several relevant passages; equal passages become one passage.
A hash of a query's text decides the split (70 % train, 10 % dev, 20 % test), so the split stays the same when the
library changes. Everything is held in memory: 3 MB of text for the standard library. `ast` reads the docstrings from
source files, and no code is imported or run.
"""

import ast
import importlib.machinery
import importlib.metadata
import platform
import random
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path

import pyarrow as pa

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.data.cutting import cut
from gnn_encoder.data.lines import files_digest
from gnn_encoder.data.rows import PLACES, Label, PassageRows, Query, SectionRows, Source
from gnn_encoder.data.splits import share
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

SKIPPED = frozenset(
    ("test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "_bundled", "__pycache__")
)
"""Folders of tests, programs and other people's packages."""
SHORTEST_BODY = 5
"""Words; a shorter body, such as `See PEP 8.`, is not an answer."""
TEST_SHARE, DEV_SHARE = 0.2, 0.1
"""Shares of the queries. The test split is large enough that a difference of some points is significant."""
SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?](?=\s+[^a-z\s]|$)")
"""The end of a sentence: not after an abbreviation, and not before a small letter."""
SIGNATURE = re.compile(r"[\w.]*\w\(.*\)(\s*->.*)?:?|.*\)\s*->.*")
QUERY_WORDS = range(3, 41)
LONG_TITLE = 30
"""Words; a first paragraph without a full stop and with at most so many words counts as a sentence."""


@dataclass(frozen=True)
class Docstring:
    """`query` is the first sentence, empty if it cannot serve as a query; `body` is the remaining text."""

    name: str
    query: str
    body: str


class PythonDocs(Source):
    """The standard library of the running interpreter and the named packages."""

    format = "python-docs"
    unit = "passages"
    ids_name_documents = True

    def __init__(self, packages: Sequence[str], max_passages: int, seed: int, library: Path | None = None) -> None:
        super().__init__(self.format)
        self.facts = {"python": platform.python_version()}
        self._max, self._seed = max_passages, seed
        self.sources = dict(_modules(library or Path(sysconfig.get_paths()["stdlib"]), ""))
        for package in packages:
            self.sources.update(_package(package))
            self.facts[package] = _version(package)

    @property
    def work(self) -> int:
        """Number of passages."""
        return len(self._titles)

    def passages(self, problems: Problems) -> Iterator[PassageRows]:
        """All passages, in the order of their modules' names."""
        del problems  # a program's source has none that the user could mend
        texts, titles = list(self._titles), list(self._titles.values())
        ids = [f"p{i}" for i in range(len(texts))]
        lines = range(1, len(texts) + 1)
        yield PassageRows(ids, titles, texts, "docstrings", lines, len(texts), _places(titles, titles))

    def sections(self, problems: Problems) -> Iterator[SectionRows]:
        """Packages, modules, classes and functions with a passage, and those around them; ids are dotted names."""
        del problems
        prefixes = (accumulate(name.split("."), "{}.{}".format) for name in self._titles.values())
        names = list(dict.fromkeys(chain.from_iterable(prefixes)))
        around = [name.rpartition(".") for name in names]
        parents, titles = [parts[0] for parts in around], pa.array([parts[2] for parts in around], pa.string())
        ids, lines = pa.array(names, pa.string()), [0] * len(names)
        yield SectionRows(ids, titles, _places(names, parents), "docstrings", lines)

    def questions(self, problems: Problems) -> Iterator[Query | Label]:
        """Queries with their labels, split by split."""
        del problems
        rows = {text: i for i, text in enumerate(self._titles)}
        positives: dict[str, dict[int, None]] = {}
        texts: dict[str, str] = {}
        for docstring, passages in self._docstrings:
            if docstring.query:
                key = docstring.query.casefold()
                texts.setdefault(key, docstring.query)
                positives.setdefault(key, {}).update(dict.fromkeys(rows[passage] for passage in passages))
        for split in SPLITS:
            for number, (key, text) in enumerate(texts.items()):
                if _split(key) == split:
                    yield Query(f"q{number}", text, [], split, "docstrings", number + 1)
                    for row in positives[key]:
                        yield Label(f"q{number}", f"p{row}", 1, split, "docstrings", number + 1)

    def digest(self) -> str:
        """Hex digest of the interpreter's version and the contents of the source files."""
        return files_digest(list(self.sources.values()), **self.facts)

    @cached_property
    def _titles(self) -> dict[str, str]:
        """Distinct passage → title: the name of the first docstring that has the passage."""
        titles: dict[str, str] = {}
        for docstring, passages in self._docstrings:
            for text in passages:
                titles.setdefault(text, docstring.name)
        return titles

    @cached_property
    def _docstrings(self) -> list[tuple[Docstring, list[str]]]:
        """Docstrings with passages; a random draw of docstrings if there are too many passages."""
        documented = []
        for module, path in sorted(self.sources.items()):
            try:
                docstrings = list(read_docstrings(path, module))
            except (SyntaxError, UnicodeDecodeError) as error:
                self.remarks.append(f"{path} was not read: {type(error).__name__}")
                continue
            documented += [
                (docstring, cut(docstring.body))
                for docstring in docstrings
                if len(docstring.body.split()) >= SHORTEST_BODY
            ]
        self.facts["docstrings"] = f"{len(documented)}"
        if self._max == 0:
            return documented
        order = list(range(len(documented)))
        random.Random(self._seed).shuffle(order)
        kept, texts = [], set[str]()
        for i in order:
            texts.update(documented[i][1])
            if len(texts) > self._max:
                break
            kept.append(i)
        return [documented[i] for i in sorted(kept)]


def _places(names: list[str], parents: list[str]) -> pa.Table:
    columns = {"document": [name.partition(".")[0] for name in names], "parent": parents}
    return pa.table([pa.array(columns.get(f.name, [None] * len(names)), f.type) for f in PLACES], schema=PLACES)


def _split(text: str) -> str:
    fraction = share(text)
    return "test" if fraction < TEST_SHARE else "dev" if fraction < TEST_SHARE + DEV_SHARE else "train"


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


def read_docstrings(path: Path, module: str) -> Iterator[Docstring]:
    """Yields the docstrings of public names in a source file, in order; the module's docstring is first.

    Raises SyntaxError or UnicodeDecodeError if the file is not Python of this version.
    """
    with tokenize.open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in other people's strings
        tree = ast.parse(file.read())
    yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Docstring]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield Docstring(name, *split_docstring(text, name))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return  # functions inside functions are not documented
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from _walk(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _walk(child, name)  # definitions that depend on the platform


def split_docstring(text: str, name: str = "") -> tuple[str, str]:
    """Splits a docstring into (query, body): first sentence and remaining text; query "" if the sentence is unsuitable.

    Leading lines with a signature (as C functions have) or with the dotted `name` are removed.
    """
    lines = text.split("\n")
    while lines and (lines[0].strip() in ("", name) or SIGNATURE.fullmatch(lines[0].strip())):
        lines.pop(0)
    text = "\n".join(lines)
    paragraph, _, rest = text.partition("\n\n")
    end = SENTENCE.search(paragraph)
    if end:
        sentence, rest = paragraph[: end.start()], text[end.end() :]
    elif len(paragraph.split()) <= LONG_TITLE:
        sentence = paragraph
    else:
        sentence, _, rest = text.partition("\n")
    query = " ".join(sentence.split())
    if len(query.split()) not in QUERY_WORDS or ">>>" in query:
        return "", text.strip()
    return query, rest.strip()
