"""The page on which people judge, in a browser: by keyboard, on a phone, after a restart, with markup in texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_page import Page
from bundles import fill_bundle
from http_server import serving
from judged_folder import MARKUP, write_folder

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.judging.people import People
from gnn_encoder.models.dual_encoder import TextEncoder

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

TOKEN = "a-secret-of-this-test"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), pooling="mean", max_length=32)
    path = tmp_path_factory.mktemp("judged") / "bundle"
    with drafting(path, "bundle") as draft:
        fill_bundle(draft, np.ones((len(tiny_dataset.passages), encoder.width), np.float32), tiny_dataset, encoder.save)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "folder")


def opened(browser: Any, port: int, **options: Any) -> Page:
    page = Page(browser, **options)
    page.page.goto(f"http://127.0.0.1:{port}/judge")
    return page


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "people.jsonl").read_text("utf-8").splitlines()]


def until(page: Any, words: str) -> None:
    page.locator("#status", has_text=words).wait_for()


def test_people_judge_by_keyboard_alone_and_go_on_after_a_restart(browser: Any, bundle: Path, folder: Path) -> None:
    with serving(bundle, judge=folder) as server:
        shown = opened(browser, server.port)
        page = shown.page
        page.locator("#pair").wait_for()
        assert page.evaluate("document.activeElement.id") == "pair", "a screen reader begins with the query"
        assert "reason of" not in page.content(), "the model's grade is not told before a person's"
        first = page.locator("#number").inner_text()
        assert first.startswith("passage 1 of 3")
        page.keyboard.press("2")
        until(page, "you gave 2, the model")
        assert f"reason of {first.split()[-1]}" in page.locator("#status").inner_text()
        page.keyboard.press("u")
        until(page, "taken back")
        assert page.locator("#number").inner_text() == first and page.locator("#undo").is_disabled()
        page.keyboard.press("s")
        until(page, "The query is skipped")
        assert page.locator("#progress").inner_text().endswith("1 skipped")
        page.keyboard.press("u")
        page.get_by_text(first, exact=True).wait_for()
        for key in ("4", "x", "Control+1", "3", "0"):
            page.keyboard.press(key)
            if key in "30":
                until(page, f"you gave {key}")
        assert [line["grade"] for line in lines(folder)] == [2, None, None, 0, 3, 0]
        number = page.locator("#number").inner_text()
        assert number.startswith("passage 3 of 3") and shown.errors == []
    with serving(bundle, judge=folder) as server:
        shown = opened(browser, server.port, color_scheme="dark")
        page = shown.page
        page.get_by_text(number, exact=True).wait_for()
        page.locator("#progress", has_text="0 of 12 queries judged, 2 passages").wait_for()
        for passages in range(3, 37):
            page.keyboard.press("3" if passages % 2 else "0")
            page.locator("#progress", has_text=f" {passages} passages").wait_for()
        until(page, "you gave")
        assert page.locator("#pair").is_hidden() and page.locator("#bar").evaluate("bar => bar.value") == 12
        assert "95 %" in page.locator("#gains li").inner_text() and "κ" in page.locator("#agreement").inner_text()
        page.keyboard.press("1")  # nothing is left
        page.keyboard.press("u")
        page.locator("#pair").wait_for()
        assert shown.errors == []
    assert len(People.read(folder / "people.jsonl").grades) == 35


def test_the_buttons_are_in_reach_on_a_phone(browser: Any, bundle: Path, folder: Path) -> None:
    with serving(bundle, judge=folder) as server:
        options = {"viewport": {"width": 360, "height": 640}, "color_scheme": "dark", "has_touch": True}
        shown = opened(browser, server.port, **options)
        page = shown.page
        page.locator("#pair").wait_for()
        page.evaluate("document.getElementById('text').textContent = 'x'.repeat(3000)")
        page.get_by_role("button", name="2 answers in part").tap()
        until(page, "you gave 2")
        assert page.evaluate("scrollY") == 0
        width, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= window == 360
        boxes = [button.bounding_box() for button in page.locator("#grades button").all()]
        assert len(boxes) == 6 and all(box["height"] >= 44 and box["width"] >= 44 for box in boxes)
        assert all(box["y"] > 640 / 2 and box["y"] + box["height"] <= 640 for box in boxes), "where a thumb is"
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        last = page.locator("main section > p").last.bounding_box()
        assert last["y"] + last["height"] <= min(box["y"] for box in boxes), "the bar hides nothing"
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) < 200 and shown.errors == []


def test_markup_in_texts_and_reasons_is_text(browser: Any, bundle: Path, folder: Path) -> None:
    with serving(bundle, judge=folder) as server:
        shown = opened(browser, server.port)
        page = shown.page
        page.locator("#pair").wait_for()
        assert page.locator("#query").inner_text().endswith(MARKUP)
        assert page.locator("#text").inner_text().endswith(MARKUP)
        assert page.locator("#title").inner_text().endswith("<b>bold</b>")
        page.keyboard.press("0")
        until(page, MARKUP)
        assert "<i>DPR</i> over BM25" in page.locator("#gains").inner_text()
        assert page.locator("img, main script, #pair b, #gains i").count() == 0 and shown.errors == []


def test_the_token_is_asked_for_and_a_refusal_is_shown(browser: Any, bundle: Path, folder: Path) -> None:
    with serving(bundle, judge=folder, token=TOKEN) as server:
        page = opened(browser, server.port).page
        page.get_by_label("This server asks for its token").fill("123")  # no grades
        page.get_by_label("This server asks for its token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator("#pair").wait_for()
        page.route("**/judging", lambda route: route.fulfill(status=507, json={"detail": "the disk is full"}))
        page.keyboard.press("1")
        until(page, "the disk is full")
        assert page.locator("#undo").is_disabled()
        page.unroute("**/judging")
        page.keyboard.press("1")
        until(page, "you gave 1")
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.get_by_role("link", name="judge").click()
        page.locator("#number", has_text="passage 2 of 3").wait_for()
    assert not (folder / "people.jsonl").read_text("utf-8").count("\n") > 1
