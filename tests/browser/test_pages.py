"""The report and the dashboard in a real browser: what a reader sees there are the figures of `metrics.json`.

`make test-browser` runs it, with Debian's Chromium or the one that GNN_ENCODER_CHROMIUM names.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import Page
from trained_root import Trained

from gnn_encoder.artifacts import Report
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.tracking.mlflow_runs import metric_name

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def metrics(trained: Trained) -> dict[str, Any]:
    assert trained.run().status == "FINISHED"
    return Report.read(trained.root / "latest" / "report").metrics


def cells(table: Any) -> dict[str, list[str]]:
    """A table's rows: the first cell, and the others' first lines."""
    rows = table.locator("tbody tr").evaluate_all("rows => rows.map(row => [...row.cells].map(c => c.innerText))")
    return {row[0]: [cell.split("\n")[0] for cell in row[1:]] for row in rows}


@pytest.fixture(scope="module")
def report_page(trained: Trained, metrics: dict[str, Any], browser: Any) -> Page:
    opened = Page(browser, viewport={"width": 390, "height": 800}, color_scheme="dark")
    opened.page.goto((trained.root / "latest" / "report" / "report.html").resolve().as_uri())
    return opened


def test_the_reports_figures_are_those_of_its_metrics(
    report_page: Page, metrics: dict[str, Any], trained: Trained
) -> None:
    tables = report_page.page.locator("section:has(h2:text-is('Results')) table")
    for place, split in enumerate(metrics["results"]):
        check_figures(tables.nth(place), metrics, split)
    header = tables.first.locator("thead th").all_inner_texts()
    assert header == ["System", *map(mean_name, metrics["measures"])]
    steps = cells(report_page.page.locator("section:has(h2:text-is('How it was made')) table"))
    assert list(steps)[:3] == ["ingest", "index_bm25", "bm25_retrieve"]
    after = {"bundle_dual_encoder: DPR", "choose_bundle", "report", "promote"}  # the page, or the recommendation
    assert set(steps) == set(trained.titles()) - after, "the page is not made from the chosen bundle"
    assert all(float(seconds) > 0 for seconds, *_ in steps.values())


def captioned(page: Any, caption: str) -> Any:
    """The table whose caption has a text."""
    return page.locator("table").filter(has=page.locator(f"caption:has-text('{caption}')"))


def check_figures(table: Any, found: dict[str, Any], split: str) -> None:
    """Fails if a table of systems does not show the figures of `metrics.json`, or of a part of it."""
    shown = cells(table)
    assert list(shown) == list(found["results"][split])
    for system, figures in found["results"][split].items():
        expected = [f"{figures[measure]:.3f}" for measure in found["measures"]]
        assert [cell.split()[0] for cell in shown[system]] == expected


def test_strata_power_and_the_recommendation_are_those_of_the_metrics(
    report_page: Page, metrics: dict[str, Any]
) -> None:
    page, split = report_page.page, metrics["headline_split"]
    strata, recurrence = (
        {name: found for name, found in metrics[part].items() if split in found["results"]}
        for part in ("strata", "recurrence")
    )
    assert strata
    for name, found in strata.items():
        caption = f"{split}, {name.replace('_', ' ')}: means over {found['queries'][split]:,}"
        check_figures(captioned(page, caption), found, split)
    for name, found in recurrence.items() if "recurring" in recurrence else ():
        check_figures(captioned(page, f"{name}: {found['queries'][split]:,} {split} queries"), found, split)
    power = cells(page.locator("h3:text-is('Power') + div table"))
    of = metrics["results"][split]
    (measure,) = {name for least in metrics["detectable"][split].values() for name in least}
    assert power == {
        system: [f"{of[system][measure] - of[metrics['baseline']][measure]:+.3f}", f"{least[measure]:.3f}"]
        for system, least in metrics["detectable"][split].items()
    }
    advice = metrics["recommendation"]
    assert page.locator("header p").first.inner_text() == f"{advice['sentence']}."
    why = page.locator("details").filter(has=page.get_by_text("Why this system"))
    why.locator("summary").click()
    shown = cells(why.locator("table"))
    assert list(shown) == [each["system"] for each in advice["standings"]]
    for each in advice["standings"]:
        mean, _, *objections = shown[each["system"]]
        assert (mean, objections) == (f"{each['mean']:.3f}", ["; ".join(each["objections"])])


def test_the_report_needs_no_network_and_complains_of_nothing(report_page: Page) -> None:
    why = report_page.page.locator("details.why").first
    assert not why.get_by_text("the passage itself").is_visible()
    why.locator("summary").first.click()
    assert why.get_by_text("the passage itself").is_visible()
    assert report_page.errors == []
    assert [url.split(":")[0] for url in report_page.requests] == ["file"]
    assert all(report_page.page.evaluate("[...document.images].map(image => image.naturalWidth > 0)"))


def test_the_report_fits_a_phone_and_the_dark(report_page: Page) -> None:
    width, window = report_page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window == 390
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    paper, ink = (
        sum(map(int, c.removeprefix("rgb(").removesuffix(")").split(","))) for c in report_page.page.evaluate(colours)
    )
    assert paper < 150 < 600 < ink
    report_page.page.emulate_media(color_scheme="light")
    lit, _ = report_page.page.evaluate(colours)
    assert lit == "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def dashboard(trained: Trained, metrics: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that `gnn-encoder dashboard` prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("gnn-encoder")
    command = [str(program), "dashboard", "--root", str(trained.root), "--port", str(port)]
    log = tmp_path_factory.mktemp("dashboard") / "log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        until = time.monotonic() + 120
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        yield next(word for word in log.read_text().split() if word.startswith("http"))
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=5).status == 200)
    except OSError:
        return False


def test_the_dashboard_opens_on_the_runs_and_shows_their_figures(
    browser: Any, dashboard: str, trained: Trained, metrics: dict[str, Any]
) -> None:
    opened = Page(browser, viewport={"width": 1400, "height": 4000})
    page, (parent, *_) = opened.page, trained.runs()
    page.goto(dashboard)
    page.get_by_role("link", name=parent.info.run_name).click()
    page.get_by_text("test/GNN-encoder/RR_at_10").wait_for()
    for system, figures in metrics["results"]["test"].items():
        for measure in ("RR@10", "R@20"):
            name = metric_name(f"test/{system}/{measure}")
            row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))
            assert float(row.inner_text().split()[-1]) == pytest.approx(figures[measure], abs=1e-9), name
    assert page.get_by_text("What it reaches").count() == 1  # the model card describes the run
    assert opened.errors == []


def test_the_dashboard_renders_the_report_and_the_model_card(
    browser: Any, dashboard: str, trained: Trained, metrics: dict[str, Any]
) -> None:
    opened = Page(browser, viewport={"width": 1400, "height": 1000})
    page, address = opened.page, dashboard.split("#")[0]
    (run,) = [run for run in trained.runs() if run.info.run_name == "report"]
    page.goto(f"{address}#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts")
    page.get_by_test_id("artifact-tree-node").get_by_text("report", exact=True).click()
    page.get_by_text("report.html").click()
    tables = page.frame_locator("iframe").locator("section:has(h2:text-is('Results')) table")
    table = tables.nth(list(metrics["results"]).index("test"))
    table.wait_for()
    assert cells(table)["GNN-encoder"][0].startswith(f"{metrics['results']['test']['GNN-encoder']['RR@10']:.3f}")
    page.goto(f"{address}#/models/gnn-encoder/versions/1")
    page.get_by_text("What it is for, and what not").wait_for()
    assert opened.errors == []
