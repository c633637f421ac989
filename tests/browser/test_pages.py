"""The report and the dashboard in a real browser: what a reader sees there are the figures of `metrics.json`.

`make test-browser` runs it, with Debian's Chromium or the one that GNN_ENCODER_CHROMIUM names.
"""

import os
import shutil
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
from gnn_encoder.report.systems import best_first, distinct
from gnn_encoder.tracking.mlflow_runs import metric_name

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def metrics(trained: Trained) -> dict[str, Any]:
    assert trained.run().status == "FINISHED"
    return Report.read(trained.root / "latest" / "report").metrics


def cells(table: Any) -> dict[str, list[str]]:
    """A table's rows: the first cell, and the others' first lines, of the cells that are shown."""
    rows = table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].filter(c => !c.hidden).map(c => c.dataset.v ?? c.innerText))"
    )
    return {row[0]: [cell.split("\n")[0] for cell in row[1:]] for row in rows}


@pytest.fixture(scope="module")
def report_page(trained: Trained, metrics: dict[str, Any], browser: Any) -> Page:
    opened = Page(browser, viewport={"width": 390, "height": 800}, color_scheme="dark")
    opened.page.goto((trained.root / "latest" / "report" / "report.html").resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    return opened


@pytest.fixture
def wide(trained: Trained, metrics: dict[str, Any], browser: Any) -> Iterator[Page]:
    opened = Page(browser, viewport={"width": 1440, "height": 900}, color_scheme="light")
    opened.page.goto((trained.root / "latest" / "report" / "report.html").resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    yield opened
    assert opened.errors == []
    opened.page.close()


def test_the_first_screen_has_the_verdict_and_every_distinct_system(wide: Page, metrics: dict[str, Any]) -> None:
    page, split, system = wide.page, metrics["headline_split"], metrics["recommendation"]["system"]
    title = page.locator("h1").inner_text()
    assert title.startswith(f"Use {system}: MRR@10 {metrics['results'][split][system]['RR@10']:.3f} on ")
    picture = page.locator(".first figure.chart svg").first
    picture.wait_for()
    box = picture.bounding_box()
    assert box["y"] + min(box["height"], 17 * 12) < 900
    drawn = " ".join(picture.locator("text").all_inner_texts())
    assert all(name in drawn for name in distinct(metrics)) and f"★ {system}" in drawn
    assert page.locator("dl.facts").inner_text().count("\n") >= 6


def test_the_table_has_the_figures_of_the_metrics_and_sorts(wide: Page, metrics: dict[str, Any]) -> None:
    page, split = wide.page, metrics["headline_split"]
    table = page.locator("[data-block='all queries'] table")
    first = [mean_name(measure) for measure in metrics["measures"]][:4]
    assert table.locator("thead th:visible").all_inner_texts()[:5] == ["System", *first]
    shown = cells(table)
    assert list(shown) == best_first(metrics)
    for system, row in shown.items():
        of = metrics["results"][split][system]
        assert [float(cell) for cell in row[:4]] == pytest.approx([of[m] for m in metrics["measures"][:4]], abs=1e-5)
    page.get_by_label("R@1000", exact=True).check()
    head = table.get_by_role("button", name="R@1000")
    head.focus()
    page.keyboard.press("Enter")
    assert head.locator("..").get_attribute("aria-sort") == "descending"
    values = [metrics["results"][split][system]["R@1000"] for system in cells(table)]
    assert values == sorted(values, reverse=True)
    page.keyboard.press("Enter")
    assert [metrics["results"][split][system]["R@1000"] for system in cells(table)] == sorted(values)
    small = table.locator("small.ci").first
    assert not small.is_visible()
    page.get_by_label("95 % intervals").check()
    assert small.is_visible()
    page.get_by_role("button", name="CSV").click()
    lines = page.locator("#copied").input_value().split("\n")
    assert lines[0].startswith(f"System,{','.join(first)},R@1000") and len(lines) == 1 + len(shown)
    page.get_by_role("button", name="LaTeX").click()
    assert page.locator("#copied").input_value().startswith("\\begin{tabular}{lrrrrr")
    strata = [name for name, found in metrics["strata"].items() if split in found["results"]]
    page.get_by_label("Queries of the table").select_option(strata[0].replace("_", " "))
    other = cells(page.locator(f"[data-block='{strata[0].replace('_', ' ')}'] table"))
    found = metrics["strata"][strata[0]]["results"][split]
    assert not table.is_visible()
    assert {name: float(row[0]) for name, row in other.items()} == pytest.approx(
        {name: found[name]["RR@10"] for name in other}, abs=1e-5
    )


def test_any_query_can_be_found_and_shows_both_systems_hits(wide: Page, metrics: dict[str, Any]) -> None:
    page, split = wide.page, metrics["headline_split"]
    for name, system in (("System", "GNN-encoder"), ("Compared system", "BM25")):
        page.get_by_label(name, exact=True).select_option(system)
    counts = page.locator("#counts").inner_text()
    better = metrics["better"][split] if metrics["baseline"] == "BM25" else None
    assert counts.startswith(f"Of {metrics['queries'][split]} queries, GNN-encoder won ")
    assert better is None or f"won {round(better['GNN-encoder']['RR@10'] * metrics['queries'][split])}," in counts
    listed = page.locator("#found button")
    assert listed.count() == metrics["queries"][split]
    page.get_by_label("Outcome").select_option("lost")
    lost = listed.count()
    assert f"lost {lost}," in page.locator("#counts").inner_text()
    page.get_by_label("Outcome").select_option("all")
    query_id = page.locator("#hits > p").first.inner_text().split(" ")[0]
    page.get_by_label("Words or id").fill(query_id)
    assert 0 < listed.count() <= metrics["queries"][split]
    page.get_by_label("Words or id").fill("")
    listed.nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert listed.nth(1).get_attribute("aria-pressed") == "true"
    heading = page.locator("#hits > h3")
    expected = listed.nth(1).inner_text().split("\n")[0]
    page.wait_for_function("text => document.querySelector('#hits > h3').textContent === text", arg=expected)
    assert heading.inner_text() == expected
    columns = page.locator("#hits .rankings").first.locator("div")
    assert [text.split(":")[0] for text in columns.locator("h3").all_inner_texts()] == ["GNN-encoder", "BM25"]
    assert columns.nth(0).locator("li").count() == 10
    assert page.locator("#hits li.relevant").count() > 0


def test_a_page_without_its_files_says_so(
    trained: Trained, metrics: dict[str, Any], browser: Any, tmp_path: Path
) -> None:
    shutil.copy(trained.root / "latest" / "report" / "report.html", tmp_path)
    opened = Page(browser, viewport={"width": 1440, "height": 900})
    opened.page.goto((tmp_path / "report.html").as_uri())
    opened.page.locator(".first figure.chart svg").first.wait_for()
    assert opened.page.locator("#unavailable").is_visible() and not opened.page.locator("#browse").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(trained: Trained, metrics: dict[str, Any], browser: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser installs it")
    opened = Page(browser, viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    opened.page.goto((trained.root / "latest" / "report" / "report.html").resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    opened.page.locator("#hits li").first.wait_for()

    def serious() -> dict[str, str]:
        found = axe.Axe().run(opened.page).response["violations"]
        return {each["id"]: each["nodes"][0]["html"] for each in found if each["impact"] in ("serious", "critical")}

    assert serious() == {}
    opened.page.locator("[name=find]").evaluate(
        "field => { field.placeholder = ''; field.ariaLabel = null; field.closest('label').replaceWith(field); }"
    )
    assert "label" in serious(), "the control: a field without its label"


def test_the_rest_of_the_page_tells_of_steps_power_and_the_recommendation(
    report_page: Page, metrics: dict[str, Any], trained: Trained
) -> None:
    page, split = report_page.page, metrics["headline_split"]
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
    assert list(shown) == [each["system"] for each in advice["standings"]]
    for each in advice["standings"]:
        mean, _, *objections = shown[each["system"]]
        assert (mean, objections) == (f"{each['mean']:.3f}", ["; ".join(each["objections"])])


def test_the_report_needs_no_network_and_complains_of_nothing(report_page: Page) -> None:
    why = report_page.page.locator("details.why").first
    why.evaluate("details => { details.closest('details:not(.why)').open = true; details.open = false; }")
    assert not why.get_by_text("the passage itself").is_visible()
    why.locator("summary").first.click()
    assert why.get_by_text("the passage itself").is_visible()
    assert report_page.errors == []
    assert {url.split(":")[0] for url in report_page.requests} == {"file"}
    size = report_page.page.evaluate("document.documentElement.outerHTML.length")
    assert size < 3_000_000


def test_the_report_fits_a_phone_and_the_dark(report_page: Page) -> None:
    width, window = report_page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= window == 390
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    paper, ink = (
        sum(map(int, c.removeprefix("rgb(").removesuffix(")").split(","))) for c in report_page.page.evaluate(colours)
    )
    assert paper < 150 < 600 < ink
    label = report_page.page.locator(".first figure.chart svg text").first
    assert label.evaluate("text => getComputedStyle(text).fill") == report_page.page.evaluate(colours)[1]
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
    table = page.frame_locator("iframe").locator("[data-block='all queries'] table")
    table.wait_for()
    shown = float(cells(table)["GNN-encoder"][0])
    assert shown == pytest.approx(metrics["results"]["test"]["GNN-encoder"]["RR@10"], abs=1e-5)
    page.goto(f"{address}#/models/gnn-encoder/versions/1")
    page.get_by_text("What it is for, and what not").wait_for()
    assert opened.errors == []
