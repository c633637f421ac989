"""The blocks and anchors of one page of Markdown or HTML."""

import time

import pytest

from gnn_encoder.data.blocks import Anchors, anchor
from gnn_encoder.data.html import html_blocks
from gnn_encoder.data.markdown import markdown_blocks


def test_anchors_are_those_of_github() -> None:
    assert anchor("Hello, World! `code_x` -- Ünïcode & more") == "hello-world-code_x----ünïcode--more"
    page = Anchors()
    assert [page.unique(name) for name in ("a", "a", "a-1", "a", "b")] == ["a", "a-1", "a-1-1", "a-2", "b"]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("Setext\n===\ntext", [(1, "Setext", 1), (0, "text", 3)]),
        ("> # quoted\n> text\n\n1. one\n2. two", [(0, "quoted\ntext", 1), (0, "1. one\n2. two", 4)]),
        ('<h1 align="center">Logo</h1>\n\ntext', [(1, "Logo", 1), (0, "text", 3)]),
        ("![alt](x.png)\n\n***\n\n    code", [(0, "alt", 1), (0, "code", 5)]),
        ("- a\n\n  # b\n\n  c", [(0, "- a\n  b\n  c", 1)]),
        ("one<br>two<BR />\nthree <!-- four -->", [(0, "one\ntwo\nthree ", 1)]),
        ("a | b\n--|--\none<br/>two | x", [(0, "a | b\none two | x", 1)]),
        ("# one<br>two", [(1, "one two", 1)]),
        ("", []),
        ("---\n\nBefore.\n\n---\nAfter.", [(0, "Before.", 3), (0, "After.", 6)]),
        ("---\nSome prose.\n\n---\nAfter.", [(0, "Some prose.", 2), (0, "After.", 5)]),
        ("---\n# no title\n\nog:title: x\nof:\n- y\n\n  z\n...\nText.", [(0, "Text.", 10)]),
        ("---\n---\nText.", [(0, "Text.", 3)]),
        ("# ![Logo](x.png)\ntext", [(1, "Logo", 1), (0, "text", 2)]),
        ("# ![badge](x.png) Name", [(1, "Name", 1)]),
        ("## a\n#\ntext", [(2, "a", 1), (1, "", 2), (0, "text", 3)]),
        ("".join(f"{'  ' * i}- {i}\n" for i in range(30)), [(0, "\n".join(f"{'  ' * i}- {i}" for i in range(30)), 1)]),
    ],
)
def test_blocks_of_markdown(text: str, blocks: list[tuple[int, str, int]]) -> None:
    assert [(b.level, b.text, b.line) for b in markdown_blocks(text)] == blocks


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("a<div>b<p>c<h2>d</h2>e", [(0, "a"), (0, "b"), (0, "c"), (2, "d"), (0, "e")]),
        ("<ul><li>x<ul><li>y</ul></ul>z", [(0, "- x\n- y"), (0, "z")]),
        ("<script>if (a<b) {}</script><p>t &amp; u</p>", [(0, "t & u")]),
        ("<table><tr><td><p>x</p><p>y</p></table>", [(0, "x\ny")]),
        ("<h1></h1><p></p></div></h3>", [(1, "")]),
        ("<div><ul><li>a</div><h2>b</h2><ul><li>c</ul>d", [(0, "- a"), (2, "b"), (0, "- c"), (0, "d")]),
        ("<nav>menu<h1>a</h1>b<nav>c</nav>", [(0, "menu"), (1, "a"), (0, "b")]),
        ("<table><tr><td>x<h2>a</h2><blockquote>b", [(0, "x"), (2, "a"), (0, "b")]),
        ("<h1><img alt='Logo of x'></h1>b", [(1, "Logo of x"), (0, "b")]),
        ("<h1><img alt=badge>a</h1><p><img alt=b>c", [(1, "a"), (0, "c")]),
        ("<div>a<footer>b</footer></div>", [(0, "a"), (0, "b")]),
        ("<!doctype html><head><title>t</title><meta charset=utf-8><body><h1>a</h1>b", [(1, "a"), (0, "b")]),
        ("<html><head><title>t</title><h1>a</h1><nav>c<nav>d</nav>e</nav>b", [(1, "a"), (0, "b")]),
        ("<ul><li><h3>in a list</h3></ul>", [(0, "- in a list")]),
        ("<head><title>t<body><h1>a</h1>b", [(0, "t"), (1, "a"), (0, "b")]),
        ("<title>t</title><p>a<p><select><option>x<p>b", [(0, "a"), (0, "x"), (0, "b")]),
        ("<svg><title>t</title></svg>a<select><option>x</select>b", [(0, "ab")]),
    ],
)
def test_blocks_of_html(text: str, blocks: list[tuple[int, str]]) -> None:
    levels_and_texts = [(b.level, b.text) for b in html_blocks(text)]
    assert [(level, " ".join(text.split())) for level, text in levels_and_texts] == [
        (k, " ".join(t.split())) for k, t in blocks
    ]


def test_ids_in_the_head_of_a_page_are_no_anchors() -> None:
    (block,) = html_blocks("<html id=a><head><link id=b rel=stylesheet><meta id=c></head><div id=d><h1>x</h1></div>")
    assert block.anchors == ["d"]


def test_many_open_elements_in_a_hidden_one_are_fast() -> None:
    start = time.process_time()
    (block,) = html_blocks("<nav>" + "<li><a>x</a>" * 30_000 + "</nav><p>text")
    assert block.text == "text" and time.process_time() - start < 5  # 13 s with a search in a list of open elements
