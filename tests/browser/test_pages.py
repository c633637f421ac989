"""The report and the dashboard in a real browser: what a reader sees there are the figures of `metrics.json`.

`make test-browser` runs it, with Debian's Chromium or the one that GNN_ENCODER_CHROMIUM names.
"""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import Page
from loopback import free_port
from table_cells import cells
from trained_root import Trained

from gnn_encoder.artifacts import Report
from gnn_encoder.tracking.mlflow_runs import metric_name

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def metrics(trained: Trained) -> dict[str, Any]:
    assert trained.run().status == "FINISHED"
    return Report.read(trained.root / "latest" / "report").metrics


def test_the_page_tells_of_steps_power_and_the_recommendation(
    browser: Any, metrics: dict[str, Any], trained: Trained
) -> None:
    opened = Page(browser, viewport={"width": 1440, "height": 900})
    page, split = opened.page, metrics["headline_split"]
    page.goto((trained.root / "latest" / "report" / "report.html").resolve().as_uri())
    page.locator("#browse").wait_for()
    for summary in page.locator("summary").all():
        summary.evaluate("summary => { summary.parentNode.open = true; }")
    steps = cells(page.locator("table:has(caption:has-text('Every step that led'))"))
    assert list(steps)[:3] == ["ingest", "index_bm25", "bm25_retrieve"]
    after = {"bundle_dual_encoder: DPR", "choose_bundle", "report", "promote"}  # the page, or the recommendation
    assert set(steps) == set(trained.titles()) - after, "the page is not made from the chosen bundle"
    assert all(float(seconds) > 0 for seconds, *_ in steps.values())
    power = cells(page.locator("table:has(caption:has-text('smallest true difference'))"))
    of = metrics["results"][split]
    (measure,) = {name for least in metrics["detectable"][split].values() for name in least}
    assert power == {
        system: [f"{of[system][measure] - of[metrics['baseline']][measure]:+.3f}", f"{least[measure]:.3f}"]
        for system, least in metrics["detectable"][split].items()
    }
    advice = metrics["recommendation"]
    assert page.locator("header p").first.inner_text() == f"{advice['sentence']}."
    shown = cells(page.locator("table:has(caption:has-text('From the simplest system'))"))
    assert list(shown) == [standing["system"] for standing in advice["standings"]]
    for standing in advice["standings"]:
        mean, _, *objections = shown[standing["system"]]
        assert (mean, objections) == (f"{standing['mean']:.3f}", ["; ".join(standing["objections"])])
    assert opened.errors == []


@pytest.fixture(scope="module")
def dashboard(trained: Trained, metrics: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that `gnn-encoder dashboard` prints."""
    port = free_port()
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
    picture = page.locator("img[src*='get-artifact']").first
    assert picture.evaluate("image => image.naturalWidth") > 0, "the picture of all systems is first"
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
    table = page.frame_locator("iframe").locator("[data-block='all queries'] table")
    table.wait_for()
    shown = float(cells(table)["GNN-encoder"][0])
    assert shown == pytest.approx(metrics["results"]["test"]["GNN-encoder"]["RR@10"], abs=1e-5)
    page.goto(f"{address}#/models/gnn-encoder/versions/1")
    page.get_by_text("What it is for, and what not").wait_for()
    assert opened.errors == []
