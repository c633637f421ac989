"""The blocks of a marked-up page, as the parsers of Markdown and HTML yield them, and anchors of headings."""

from dataclasses import dataclass, field

import regex

NOT_IN_ANCHORS = regex.compile(r"[^\p{L}\p{M}\p{N}\p{Pc}\- ]")


@dataclass
class Block:
    """A heading, or a paragraph, list, table or piece of code, in the order of the page."""

    level: int
    """1 to 6 for a heading; 0 for text."""
    text: str
    """May be empty for a heading: it ends the section before it."""
    line: int
    """From 1."""
    anchors: list[str] = field(default_factory=list)
    """Names that the page itself gives to the block, or to a place in it."""
    links: list[str] = field(default_factory=list)
    """Targets of the links in the block, as written."""
    place: str = ""
    """Where the block is in a file with pages, as the end of a link to it: `page=3` or `slide=3`."""


def anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading: small letters, no punctuation, `-` for a space.

    GitHub numbers repeated anchors of a page: `name`, `name-1`, `name-2`. `Anchors` does that.
    """
    return str(NOT_IN_ANCHORS.sub("", heading.strip().lower())).replace(" ", "-")


class Anchors:
    """The anchors of a page, each given once."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """The name if no anchor has it, or else the name with the first free number."""
        result, number = name, self._next.get(name, 0)
        while result in self._next:
            number += 1
            result = f"{name}-{number}"
        self._next[name] = number
        self._next.setdefault(result, 0)
        return result
