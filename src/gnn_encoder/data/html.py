"""Reads an HTML page as a sequence of blocks, with the standard library's parser.

The parser reports tags as they come and never builds a tree, so missing end tags do not matter: a block ends where the
next one begins. lxml or BeautifulSoup would be a new dependency for what this needs: text, headings, links, anchors.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from gnn_encoder.data.blocks import Block

HEADINGS = {f"h{level}": level for level in range(1, 7)}
WHOLE = frozenset({"p", "ul", "ol", "dl", "table", "pre", "blockquote", "figure"})
"""Each is one block with everything inside it. Other elements are seen through; text right in them is a block, too."""
LINES = frozenset({"p", "li", "dt", "dd", "tr", "br", "div", "ul", "ol", "dl", "blockquote", "caption", "figcaption"})
"""These begin a line inside a block."""
PARTS = (
    WHOLE | LINES | HEADINGS.keys() | {"section", "article", "main", "body", "html", "hr", "details", "summary", "form"}
)
"""These end a text that stands in no element of its own."""
HIDDEN = frozenset({"title", "script", "style", "template", "nav", "svg", "noscript", "select", "button"})
ABOUT_PAGE = frozenset({"html", "head", "link", "meta", "base"})
"""Their ids name no place in the page."""
PERMALINK = re.compile(r"\s*[¶#]$")
"""The sign at the end of a heading that Sphinx and others make a link to the heading itself."""


def html_blocks(text: str, first_line: int = 1) -> Iterator[Block]:
    """The blocks of a page; `first_line` is the line at which the text begins."""
    reader = _Reader(first_line)
    reader.feed(text)
    reader.close()
    reader.end_block()
    yield from reader.blocks


class _Reader(HTMLParser):
    def __init__(self, first_line: int) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._before = first_line - 1
        self._names: list[str] = []
        """Anchors for the next block: those of empty elements, and of elements around it."""
        self._open = ""
        """The element that the current block is, and how many elements of its name are open in it."""
        self._depth = 0
        self._hidden = ""
        """The hidden element that the parser is in, and how many elements of its name are open."""
        self._hidden_depth = 0
        self._start()

    def _start(self) -> None:
        self._text: list[str] = []
        self._links: list[str] = []
        self._line = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._hidden_depth += tag == self._hidden
            return
        if tag in HIDDEN:
            self._hidden, self._hidden_depth = tag, 1
            return
        if tag in HEADINGS and self._open not in ("", tag, *HEADINGS) and self._open != "p":
            self._text.append("\n")  # a heading in a list or a table is text of it
        elif tag in HEADINGS or (tag in WHOLE and self._open in ("", "p", *HEADINGS)):
            self.end_block()
            self._open, self._depth = tag, 0
        elif tag in PARTS and not self._open:
            self.end_block()
        if tag == self._open:
            self._depth += 1
        facts = dict(attrs)
        keys = () if tag in ABOUT_PAGE else ("id", "name") if tag == "a" else ("id",)
        self._names += [name for key in keys if (name := facts.get(key))]
        if tag == "a" and facts.get("href"):
            self._links.append(facts["href"] or "")
        self._verbatim += tag == "pre"
        if tag in LINES:
            self._text.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self._text.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = ""
            return
        if tag == self._open:
            self._depth -= 1
            if not self._depth:
                self.end_block()
        elif not self._open and tag in PARTS:
            self.end_block()
        if tag == "pre":
            self._verbatim = max(self._verbatim - 1, 0)

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if not self._line and data.strip():
            self._line = self.getpos()[0] + self._before + data[: len(data) - len(data.lstrip())].count("\n")
        # Spaces mean nothing outside of <pre>, and everything in it.
        self._text.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def end_block(self) -> None:
        """Yields the current block if it has a text; its anchors wait for the next block if it has none."""
        level = HEADINGS.get(self._open, 0)
        whole = "".join(self._text)
        if self._open != "pre":  # a list item or a table cell may begin with a paragraph
            whole = re.sub(r"(\n- | \| )\s*\n(?! *-)", r"\1", whole)
        lines = whole.split("\n")
        if self._open != "pre":
            lines = [re.sub(r" +", " ", line).strip(" ").removeprefix("| ") for line in lines]
            lines = [line for line in lines if line and line != "-"]
        text = "\n".join(lines).strip("\n")
        if level:
            text = PERMALINK.sub("", " ".join(text.split()))
        if text.strip():
            self.blocks.append(Block(level, text, self._line, self._names, self._links))
            self._names = []
        self._open = ""
        self._start()
