"""The documentation as `make docs` builds it, opened from its files: pages, menu, links, and a search."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from documentation import PROJECT
from loopback import served
from required import missing

pytestmark = pytest.mark.browser
PAGES = {
    "index.html": "The graph helps only queries",
    "tutorials/quickstart.html": "Linear fusion",
    "reference/settings.html": "gnn_learning_rate",
    "reference/commands.html": "--fail-on-keep",
    "reference/http.html": "POST /search",
    "reference/python.html": "Searches a bundle",
    "reference/systems.html": "Query memory",
    "models.html": "Qwen3-Embedding",
    "evidence.html": "+0.029",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if "No module named mkdocs" in ran.stderr:
        missing("no mkdocs: make test-browser installs it")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


@pytest.fixture
def page(browser: Any) -> Any:
    opened = browser.new_page(viewport={"width": 1440, "height": 900})
    opened.set_default_timeout(60_000)
    opened.route("https://**", lambda route: pytest.fail(f"fetched from the network: {route.request.url}"))
    yield opened
    opened.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Prints nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with served(partial(Quiet, directory=str(site))) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def test_each_kind_of_page_opens_and_says_what_it_should(site: Path, page: Any) -> None:
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name, words in PAGES.items():
        page.goto((site / name).as_uri())
        assert words in page.inner_text("article"), name
    assert not wrong


def test_graphs_are_pictures(site: Path, page: Any) -> None:
    page.goto((site / "concepts" / "graph.html").as_uri())
    assert page.locator("article svg[role=img]").count() == 1
    assert "train_gnn" in page.locator("article svg[role=img]").text_content()


def test_each_link_of_the_menu_leads_to_a_page_and_code_can_be_copied(site: Path, page: Any) -> None:
    page.goto((site / "index.html").as_uri())
    links = page.eval_on_selector_all("nav.md-nav a[href]", "found => found.map(link => link.href)")
    files = {link.partition("#")[0] for link in links}
    assert len(files) > 30 and all(Path(link.removeprefix("file://")).is_file() for link in files)
    assert page.locator("button.md-clipboard, button.md-code__button").count()


def test_a_search_finds_a_command(address: str, page: Any) -> None:
    page.goto(f"{address}/index.html")
    page.fill("input.md-search__input", "rollback")
    first = page.locator(".md-search-result__link").first
    first.wait_for()
    assert "rollback" in page.locator(".md-search-result__list").inner_text()


def test_a_phone_shows_a_page_without_scrolling_sideways(site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for name in PAGES:
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
