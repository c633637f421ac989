"""The page of a server in a real browser: hits, reasons, labels; keyboard, phone, dark mode, token."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import Page
from http_server import Server, serving
from rights_world import Corpus, write_words
from trained_root import Trained

from gnn_encoder import Retriever
from gnn_encoder.artifacts.added_labels import read_labels
from gnn_encoder.artifacts.finished_run import place_of
from gnn_encoder.settings.systems import GNN_ENCODER

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

QUESTION, TOKEN = "what is the old river", "a-secret-of-this-test"


@pytest.fixture(scope="module")
def bundle(trained: Trained) -> Path:
    assert trained.run().status == "FINISHED"
    return trained.root / "latest" / place_of(GNN_ENCODER)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def server(bundle: Path, labels: Path) -> Iterator[Server]:
    with serving(bundle, labels=labels) as running:
        yield running


def opened(browser: Any, server: Server, **options: Any) -> Page:
    page = Page(browser, **options)
    page.page.goto(f"http://127.0.0.1:{server.port}/")
    return page


def test_a_search_by_keyboard_alone(browser: Any, server: Server, bundle: Path, labels: Path) -> None:
    shown = opened(browser, server, viewport={"width": 1000, "height": 900})
    page = shown.page
    page.wait_for_function(
        "document.activeElement.id === 'question'"
    )  # browsers give an autofocus after the first picture
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.locator("#hits > li").first.wait_for()
    expected = Retriever.load(bundle).search(QUESTION)
    assert page.locator("#hits .text").all_inner_texts() == [hit.text for hit in expected]
    page.keyboard.press("Escape")
    for key in "jjk":
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement === document.querySelector('#hits > li')")
    page.keyboard.press("w")
    why = page.locator("#hits > li").first.locator("table")
    why.wait_for()
    explained = Retriever.load(bundle).explain(QUESTION, 10)[0].graph
    assert (
        explained and why.locator("tbody tr").count() == len(explained.why.influences) + bool(explained.why.others) + 1
    )
    shown_why = why.inner_text()
    assert "the passage itself" in shown_why and all(
        influence.query in shown_why for influence in explained.why.influences
    )
    page.keyboard.press("y")
    page.get_by_text("1 label for the next training").wait_for()
    (label,) = read_labels(labels)
    assert (label.query, label.passage_id) == (QUESTION, expected[0].passage_id)
    page.locator("[aria-pressed=true]").click()
    page.get_by_text("0 labels for the next training").wait_for()
    assert read_labels(labels) == [] and shown.errors == []
    page.reload()  # the address holds the question
    page.locator("#hits > li").first.wait_for()


def test_the_page_fits_a_phone_and_the_dark(browser: Any, server: Server) -> None:
    shown = opened(browser, server, viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = shown.page
    page.locator("#question").fill(QUESTION)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("button", name="why?").first.click()
    page.locator("#hits table").first.wait_for()
    width, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window == 360
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) < 200 and shown.errors == []
    heights = page.locator("button").evaluate_all("all => all.filter(b => b.offsetParent).map(b => b.offsetHeight)")
    assert min(heights) >= 24  # large enough for a finger (WCAG 2.2, 2.5.8)


def test_the_page_asks_for_the_token_and_shows_refusals(browser: Any, bundle: Path) -> None:
    with serving(bundle, token=TOKEN, characters=100) as server:
        page = opened(browser, server).page
        for token in ("wrong", TOKEN):
            page.get_by_label("This server asks for its token").fill(token)
            page.get_by_role("button", name="Log in").click()
        page.locator("#passages", has_text="passages").wait_for()
        page.locator("#question").fill("river " * 40)
        page.keyboard.press("Enter")
        page.get_by_text("give at most 100").wait_for()
        page.locator("#question").fill(QUESTION)
        page.keyboard.press("Enter")
        page.locator("#hits > li").first.wait_for()
        assert page.get_by_role("button", name="answers it").count() == 0  # no file of labels


def test_markup_in_a_question_or_a_passage_is_text(browser: Any, server: Server) -> None:
    shown = opened(browser, server)
    page = shown.page
    page.route("**/search", lambda route: route.fulfill(json=marked_up()))
    page.locator("#question").fill("<img src=x onerror=alert(1)>")
    page.keyboard.press("Enter")
    page.locator("#hits > li").first.wait_for()
    assert page.locator("#hits img, #hits script").count() == 0 and shown.errors == []
    assert page.locator("#hits .text").inner_text() == "<script>alert(2)</script>"


def marked_up() -> dict[str, Any]:
    hit = {"rank": 1, "score": 1.0, "passage_id": "<b>1</b>", "title": "<i>t</i>", "text": "<script>alert(2)</script>"}
    return {"version": "1", "system": "s", "results": [{"question": "q", "hits": [hit]}]}


def test_lists_of_values_narrow_the_hits(browser: Any, tmp_path: Path) -> None:
    corpus = Corpus.random()
    bundle = write_words(corpus.write(tmp_path / "dataset"), tmp_path)
    with serving(bundle) as server:
        shown = opened(browser, server)
        page = shown.page
        page.locator("#question").fill("any title")
        page.keyboard.press("Enter")
        page.locator("#hits > li").first.wait_for()
        product = corpus.records[2]["product"]
        count = sum(record["product"] == product for record in corpus.records)
        page.get_by_label("product").select_option(label=f"{product} ({count})")
        page.locator("#hits > li").nth(9).wait_for(state="detached")
        names = page.locator("#hits h2").all_inner_texts()
        rows = [int(name.split("mark")[1]) for name in names]
        assert rows and all(corpus.records[row]["product"] == product for row in rows)
        assert page.get_by_label("product").input_value() != "" and shown.errors == []
        page.get_by_label("product").select_option(label="any")
        page.locator("#hits > li").nth(9).wait_for()
