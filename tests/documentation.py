"""What the tests of the documentation read: its pages, their blocks of code, and the commands in these."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[1]
PAGES = [
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)(<!-- not run: .+? -->\n *)?```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"<<'?(\w+)'?(.*)\n.*?\n\1$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: whether the tests run it, its language, and its text."""

    runs: bool
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(not mark, language, code) for _, mark, language, code in _FENCE.findall(text)]


def commands(text: str) -> Iterator[list[str]]:
    """Yields each command of shell text as its words; what a here-document holds is no command."""
    for line in _HERE.sub(r"\2", text.replace("\\\n", " ")).splitlines():
        lexer = shlex.shlex(line.replace("$(", " ; "), posix=True, punctuation_chars=True)
        lexer.whitespace_split, words = True, []
        for word in lexer:
            if set(word) <= set("();<>|&"):
                yield words
                words = []
            elif words or not re.fullmatch(r"\w+=.*", word):
                words.append(word)
        yield words
