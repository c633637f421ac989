"""Reads an HTML page as a sequence of blocks, with the standard library's parser.

The parser reports tags as they come and never builds a tree, so missing end tags do not matter: a block ends where the
next one begins. An element that is one block or is hidden, such as a list or a menu, and is never closed, counts as a
`div`, or the rest of the page would be in it. lxml or BeautifulSoup would be a new dependency for what this needs:
text, headings, links, anchors.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.data.blocks import Block

HEADINGS = {f"h{level}": level for level in range(1, 7)}
WHOLE = frozenset({"p", "ul", "ol", "dl", "table", "pre", "blockquote", "figure"})
"""Each is one block with everything inside it. Other elements are seen through; text right in them is a block, too."""
LINES = frozenset({"p", "li", "dt", "dd", "tr", "br", "div", "ul", "ol", "dl", "blockquote", "caption", "figcaption"})
"""These begin a line inside a block."""
PARTS = (
    WHOLE
    | LINES
    | HEADINGS.keys()
    | {"section", "article", "main", "body", "html", "hr", "details", "summary", "form"}
    | {"header", "footer", "aside", "address", "fieldset", "center", "hgroup", "dialog"}
)
"""These end a text that stands in no element of its own."""
CLOSED = frozenset(
    {"ul", "ol", "dl", "table", "blockquote", "figure"}
    | {"title", "template", "nav", "svg", "noscript", "select", "button"}
)
"""Elements of these names are balanced on a page; one without an end tag is a mistake. The others end with the next."""
HIDDEN = frozenset({"title", "script", "style", "template", "nav", "svg", "noscript", "select", "button"})
ABOUT_PAGE = frozenset({"html", "head", "link", "meta", "base"})
"""Their ids name no place in the page."""
PERMALINK = re.compile(r"\s*[¶#]$")
"""The sign at the end of a heading that Sphinx and others make a link to the heading itself."""


def html_blocks(text: str, first_line: int = 1) -> Iterator[Block]:
    """The blocks of a page; `first_line` is the line at which the text begins."""
    reader = _read(text, first_line, frozenset())
    if {reader.open, reader.hidden} & CLOSED:
        balance = _Balance()
        balance.feed(text)
        balance.close()
        reader = _read(text, first_line, frozenset(position for places in balance.open.values() for position in places))
    reader.end_block()
    yield from reader.blocks


def _read(text: str, first_line: int, unclosed: frozenset[tuple[int, int]]) -> "_Reader":
    reader = _Reader(first_line, unclosed)
    reader.feed(text)
    reader.close()
    return reader


class _Parser(HTMLParser):
    RCDATA_CONTENT_ELEMENTS = ()  # type: ignore[misc]
    """Newer Pythons take all that follows an unclosed <title> for its text."""


class _Balance(_Parser):
    """Finds the start tags, of names in `CLOSED`, without an end tag: line and column of each."""

    def __init__(self) -> None:
        super().__init__()
        self.open: dict[str, list[tuple[int, int]]] = {name: [] for name in CLOSED}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in self.open:
            self.open[tag].append(self.getpos())

    def handle_endtag(self, tag: str) -> None:
        if self.open.get(tag):
            self.open[tag].pop()


class _Reader(_Parser):
    def __init__(self, first_line: int, unclosed: frozenset[tuple[int, int]]) -> None:
        super().__init__(convert_charrefs=True)
        self._unclosed = unclosed
        """Places of start tags that count as those of a `div`."""
        self.blocks: list[Block] = []
        self._before = first_line - 1
        self._names: list[str] = []
        """Anchors for the next block: those of empty elements, and of elements around it."""
        self.open = ""
        """The element that the current block is, and how many elements of its name are open in it."""
        self._depth = 0
        self.hidden = ""
        """The hidden element that the parser is in, and how many elements of its name are open."""
        self._hidden_depth = 0
        self._start()

    def _start(self) -> None:
        self._text: list[str] = []
        self._links: list[str] = []
        self._images: list[str] = []
        self._line = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self.hidden:
            self._hidden_depth += tag == self.hidden
            return
        if self.getpos() in self._unclosed:
            tag = "div"
        if tag in HIDDEN:
            self.hidden, self._hidden_depth = tag, 1
            return
        if tag in HEADINGS and self.open not in ("", tag, *HEADINGS) and self.open != "p":
            self._text.append("\n")  # a heading in a list or a table is text of it
        elif tag in HEADINGS or (tag in WHOLE and self.open in ("", "p", *HEADINGS)):
            self.end_block()
            self.open, self._depth = tag, 0
        elif tag in PARTS and not self.open:
            self.end_block()
        if tag == self.open:
            self._depth += 1
        facts = dict(attrs)
        keys = () if tag in ABOUT_PAGE else ("id", "name") if tag == "a" else ("id",)
        self._names += [name for key in keys if (name := facts.get(key))]
        if tag == "a" and facts.get("href"):
            self._links.append(facts["href"] or "")
        if tag == "img":
            self._images.append(facts.get("alt") or "")
            self._line = self._line or self.getpos()[0] + self._before
        self._verbatim += tag == "pre"
        if tag in LINES:
            self._text.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self._text.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if self.hidden:
            self._hidden_depth -= tag == self.hidden
            if not self._hidden_depth:
                self.hidden = ""
            return
        if tag == self.open:
            self._depth -= 1
            if not self._depth:
                self.end_block()
        elif not self.open and tag in PARTS:
            self.end_block()
        if tag == "pre":
            self._verbatim = max(self._verbatim - 1, 0)

    def handle_data(self, data: str) -> None:
        if self.hidden:
            return
        if not self._line and data.strip():
            self._line = self.getpos()[0] + self._before + data[: len(data) - len(data.lstrip())].count("\n")
        # Spaces mean nothing outside of <pre>, and everything in it.
        self._text.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def end_block(self) -> None:
        """Yields the current block if it has a text; its anchors wait for the next block if it has none."""
        level = HEADINGS.get(self.open, 0)
        whole = "".join(self._text)
        if self.open != "pre":  # a list item or a table cell may begin with a paragraph
            whole = re.sub(r"(\n- | \| )\s*\n(?! *-)", r"\1", whole)
        lines = whole.split("\n")
        if self.open != "pre":
            lines = [re.sub(r" +", " ", line).strip(" ").removeprefix("| ") for line in lines]
            lines = [line for line in lines if line and line != "-"]
        text = "\n".join(lines).strip("\n")
        if level:
            text = PERMALINK.sub("", " ".join(text.split())) or " ".join(" ".join(self._images).split())
        blank = is_blank(text)
        if level and blank:
            self.blocks.append(Block(level, "", self._line))  # its anchors are those of the next block
        elif not blank:
            self.blocks.append(Block(level, text, self._line, self._names, self._links))
            self._names = []
        self.open = ""
        self._start()
