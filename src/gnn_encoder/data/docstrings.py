"""Docstrings read from source files by `ast`: nothing is imported or run."""

import ast
import inspect
import re
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SENTENCE = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?](?=\s+[^a-z\s]|$)")
"""Where a sentence ends: not after an abbreviation, nor before a small letter."""
SIGNATURE = re.compile(r"[\w.]*\w\(.*\)(\s*->.*)?:?|.*\)\s*->.*")
QUERY_WORDS = range(3, 41)
LONG_TITLE = 30
"""Words that a first paragraph without a full stop may have to count as a sentence."""


@dataclass(frozen=True)
class Docstring:
    """`query` is the first sentence, empty where it is of no use as one; `body` is the rest."""

    name: str
    query: str
    body: str
    line: int


def read_docstrings(path: Path, module: str) -> Iterator[Docstring]:
    """Docstrings of a source file, its module's first, in order; those of private names are left out.

    Raises:
        SyntaxError, UnicodeDecodeError: the file is not Python of this version.
    """
    with tokenize.open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in other people's strings
        tree = ast.parse(file.read())
    yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Docstring]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            query, body = split_docstring(inspect.cleandoc(text), name)
            yield Docstring(name, query, body, node.body[0].lineno)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return  # what a function defines inside is nobody's to look up
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from _walk(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _walk(child, name)  # definitions that depend on the platform


def split_docstring(text: str, name: str = "") -> tuple[str, str]:
    """(first sentence as a query, the rest) of a cleaned docstring; no query where the sentence is unfit.

    Leading lines that are signatures, as C functions have, or the dotted `name` belong to neither.
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
