"""Reads a Markdown page as a sequence of blocks: CommonMark with GitHub's tables, parsed by markdown-it-py."""

import re
from collections.abc import Iterator
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.data.blocks import Block
from gnn_encoder.data.html import html_blocks

KEY = r"[^\s#:>-][^\n]*?:(?:[ \t][^\n]*)?\n"
FRONT_MATTER = re.compile(
    rf"\A---[ \t]*\n(?:(?:[ \t]*\n|#[^\n]*\n)*+{KEY}(?>(?!---|\.\.\.)(?:{KEY}|[ \t#\]}}-][^\n]*\n|\n))*+)?"
    r"(?:---|\.\.\.)[ \t]*(?:\n|\Z)"
)
"""YAML at the top of a page: its first line is `key:`, and so are others that are no comment or item and not indented.
Markdown itself would take its last line for a heading. Before other text, `---` is a break."""
ANCHOR = re.compile(r"""<[^>]*?\s(?:id|name)\s*=\s*["']([^"']+)["']""")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""")


@cache
def _parser() -> MarkdownIt:
    # The preset leaves out what is nested more than 20 deep: text in the eleventh level of a list.
    return MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])


def markdown_blocks(text: str) -> Iterator[Block]:
    """The blocks of a page. A list or a quotation is one block with all that is in it; headings in it are text."""
    if match := FRONT_MATTER.match(text):
        text = "\n" * match[0].count("\n") + text[match.end() :]
    names: list[str] = []
    tokens = _parser().parse(text)
    start = 0
    for i, token in enumerate(tokens):
        if token.level or token.nesting > 0:
            continue
        part = tokens[start : i + 1]
        start = i + 1
        line = (part[0].map or [0])[0] + 1
        blocks = list(html_blocks(token.content, line)) if token.type == "html_block" else [_block(part, line)]
        if token.type == "html_block" and not any(block.text for block in blocks):
            names += ANCHOR.findall(token.content)
        for block in blocks:
            block.anchors[:0] = names
            blank = is_blank(block.text)
            names = block.anchors if blank else []
            if block.level or not blank:
                yield block


def _block(tokens: list[Token], line: int) -> Block:
    """The block of the tokens from its opening to its end."""
    first = tokens[0]
    block = Block(int(first.tag[1]) if first.type == "heading_open" else 0, "", line)
    lines: list[str] = []
    cells: list[str] | None = None
    lead, depth = "", 0
    for token in tokens:
        depth += token.nesting if token.type.partition("_")[0] in ("bullet", "ordered") else 0
        if token.type == "list_item_open":
            sign = f"{token.info}." if token.info else "-"
            lead = f"{'  ' * (depth - 1)}{sign} "
        elif token.type == "tr_open":
            cells = []
        elif token.type == "tr_close":
            lines.append(" | ".join(cells or []))
            cells = None
        elif token.type == "inline":
            text = _inline(token, block)
            if cells is not None:
                cells.append(" ".join(text.split("\n")))
            else:
                lines.append(lead + text)
                lead = " " * len(lead)
        elif token.type in ("fence", "code_block"):
            lines.append(token.content.rstrip("\n"))
        elif token.type == "html_block":
            for inner in html_blocks(token.content, line):
                lines.append(inner.text)
                block.links += inner.links
                block.anchors += inner.anchors
    block.text = "\n".join(lines)
    return block


def _inline(token: Token, block: Block) -> str:
    """The text of a line without marks; adds its links and anchors to the block. An image is its description,
    but a heading with a text of its own leaves out images: as a rule, badges."""
    parts: list[str] = []
    images: list[str] = []
    for child in token.children or ():
        if child.type in ("softbreak", "hardbreak") or BREAK.fullmatch(child.content):
            if parts[-1:] != ["\n"]:  # a line often ends after <br>
                parts.append("\n")
        elif child.type == "link_open":
            block.links.append(str(child.attrs.get("href", "")))
        elif child.type == "html_inline":
            block.links += LINK.findall(child.content)
            block.anchors += ANCHOR.findall(child.content)
        elif child.type == "image":
            (images if block.level else parts).append(child.content)
        else:
            parts.append(child.content)
    text = "".join(parts)
    return (" ".join(text.split()) or " ".join(images)) if block.level else text
