"""The report in a real browser: what a reader sees and does there, against `metrics.json` and the files beside it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_page import Page
from evaluation_inputs import reported, write_inputs
from table_cells import cells

from gnn_encoder import Comparison
from gnn_encoder.artifacts import Dataset, Report
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report.systems import best_first, distinct
from gnn_encoder.settings.outcome import Evaluate

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Report:
    inputs = write_inputs(tmp_path_factory.mktemp("report"), tiny_dataset, tiny_backbone)
    settings = Evaluate(untrained_backbone=str(tiny_backbone), permutations=200, precision="fp32")
    return Report.read(reported(inputs, settings, inputs["bundle"].with_name("evaluated")))


@pytest.fixture(scope="module")
def metrics(report: Report) -> dict[str, Any]:
    return report.metrics


@pytest.fixture(scope="module")
def report_page(report: Report, browser: Any) -> Page:
    opened = Page(browser, viewport={"width": 390, "height": 800}, color_scheme="dark")
    opened.page.goto(report.page.resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    return opened


@pytest.fixture
def wide(report: Report, browser: Any) -> Iterator[Page]:
    opened = Page(browser, viewport={"width": 1440, "height": 900}, color_scheme="light")
    opened.page.goto(report.page.resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    yield opened
    assert opened.errors == []
    opened.page.close()


def test_a_label_below_the_measure_s_level_is_not_relevant(report: Report, browser: Any, tmp_path: Path) -> None:
    copy = tmp_path / "report"
    shutil.copytree(report.path, copy)
    index = copy / "queries" / "index.js"
    text = index.read_text("utf-8")
    assert '"relevant":1' in text
    index.write_text(text.replace('"relevant":1', '"relevant":2'), encoding="utf-8")
    opened = Page(browser, viewport={"width": 1440, "height": 900}, color_scheme="light")
    opened.page.goto((copy / report.page.name).as_uri())
    opened.page.locator("#hits li").first.wait_for()
    shown = opened.page.locator("#hits").inner_text()
    assert opened.page.locator("#hits li.relevant").count() == 0 and "label 1" in shown and "Relevant, and" not in shown
    opened.page.close()


def test_the_first_screen_has_the_verdict_and_every_distinct_system(wide: Page, metrics: dict[str, Any]) -> None:
    page, split, system = wide.page, metrics["headline_split"], metrics["recommendation"]["system"]
    title = page.locator("h1").inner_text()
    assert title.startswith(f"Use {system}: MRR@10 {metrics['results'][split][system]['RR@10']:.3f} on ")
    picture = page.locator(".first figure.chart svg").first
    picture.wait_for()
    box = picture.bounding_box()
    assert box["y"] + min(box["height"], 17 * 12) < 900
    drawn = " ".join(picture.locator("text").all_text_contents())
    assert all(name in drawn for name in distinct(metrics)) and f"★ {system}" in drawn
    assert page.locator("dl.facts").inner_text().count("\n") >= 6


def test_a_notebook_draws_the_same_picture_in_its_frame(browser: Any, report: Report, wide: Page) -> None:
    drawn = wide.page.locator(".first figure.chart svg").first.locator("text").all_text_contents()
    notebook = Page(browser, viewport={"width": 1000, "height": 900})
    notebook.page.set_content(Comparison.of(report)._repr_html_())
    picture = notebook.page.frame_locator("iframe").locator("figure.chart svg")
    picture.wait_for()
    assert set(distinct(report.metrics)) - {report.metrics["recommendation"]["system"]} <= set(drawn)
    assert sorted(picture.locator("text").all_text_contents()) == sorted(drawn) and notebook.errors == []
    notebook.page.close()


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
    strata = [name for name, stratum in metrics["strata"].items() if split in stratum["results"]]
    page.get_by_label("Queries of the table").select_option(strata[0].replace("_", " "))
    other = cells(page.locator(f"[data-block='{strata[0].replace('_', ' ')}'] table"))
    stratum = metrics["strata"][strata[0]]["results"][split]
    assert not table.is_visible()
    assert {name: float(row[0]) for name, row in other.items()} == pytest.approx(
        {name: stratum[name]["RR@10"] for name in other}, abs=1e-5
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


def test_a_hit_is_in_no_other_system_only_if_none_has_it(wide: Page, report: Report) -> None:
    page, index = wide.page, part(report, "index")
    page.get_by_label("System", exact=True).select_option("GNN-encoder")
    page.get_by_label("Order").select_option("data")
    hits, passages, at = part(report, "hits-0"), part(report, "passages-0"), index["systems"].index("GNN-encoder")
    for row in range(10):
        page.locator("#found button").nth(row).click()
        shows = "text => document.querySelector('#hits > h3').textContent === text"
        page.wait_for_function(shows, arg=index["texts"][row])
        items = page.locator("#hits .rankings").first.locator("div").first.locator("li").all_inner_texts()
        for text, hit in zip(items, hits[row][0][at], strict=True):
            assert passages[hit][0] in text
            alone = sum(hit in of for of in hits[row][0]) == 1
            assert ("in no other system's first hits" in text) == alone


def test_one_click_shows_the_lost_queries_and_where_their_relevant_hits_are(
    report: Report, browser: Any, tmp_path: Path
) -> None:
    folder, index = shutil.copytree(report.path, tmp_path / "report"), part(report, "index")
    index["one"], index["other"] = index["other"], index["one"]  # which has lost queries
    (folder / "queries" / "index.js").write_text(f"part({json.dumps('index')},{json.dumps(index)})", "utf-8")
    opened = Page(browser, viewport={"width": 1440, "height": 900})
    page = opened.page
    page.goto((folder / "report.html").as_uri())
    page.locator("#browse").wait_for()
    page.get_by_label("Words or id").fill("no query has these words")
    page.locator("a[data-outcome]").click()
    one, other = (np.array(index["figures"][index["systems"].index(index[side])]) for side in ("one", "other"))
    lost, listed = np.flatnonzero(one < other), page.locator("#found button")
    assert listed.count() == len(lost) > 0
    row = int(listed.first.get_attribute("data-row"))
    assert one[row] - other[row] == (one - other).min()
    page.wait_for_function(
        "text => document.querySelector('#hits > h3')?.textContent === text", arg=index["texts"][row]
    )
    hits, labels = part(report, "hits-0")[row]
    relevant = {passage for passage, grade in labels if grade >= index["relevant"]}
    shown = page.locator("#hits > p").nth(1).inner_text().partition(": ")[2].split("; ")
    assert {index["one"], index["other"], *index["simple"]} == {entry.rpartition(" ")[0] for entry in shown}
    for system, _, rank in (entry.rpartition(" ") for entry in shown):
        of = hits[index["systems"].index(system)]
        assert rank == next((str(1 + at) for at, passage in enumerate(of) if passage in relevant), "none")
    assert opened.errors == []
    page.close()


def part(report: Report, name: str) -> Any:
    return json.loads(f"[{(report.path / 'queries' / f'{name}.js').read_text('utf-8')[len('part(') : -2]}]")[1]


def test_a_difference_as_large_as_the_least_is_listed(report: Report, browser: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(report.path, tmp_path / "report")
    file = folder / "queries" / "index.js"
    name, index = json.loads(f"[{file.read_text('utf-8')[len('part(') : -2]}]")
    one, other = (index["figures"][index["systems"].index(index[side])] for side in ("one", "other"))
    one[:], other[:] = [0.25, 0.24, *one[2:]], [0.2, 0.2, *one[2:]]  # 0.25 - 0.2 is a little below 0.05
    file.write_text(f"part({json.dumps(name)},{json.dumps(index)})", "utf-8")
    opened = Page(browser, viewport={"width": 1440, "height": 900})
    opened.page.goto((folder / "report.html").as_uri())
    opened.page.locator("#browse").wait_for()
    opened.page.get_by_label("Least difference").fill("0.05")
    assert opened.page.locator("#found button").count() == 1


def test_a_page_without_its_files_says_so(report: Report, browser: Any, tmp_path: Path) -> None:
    shutil.copy(report.page, tmp_path)
    opened = Page(browser, viewport={"width": 1440, "height": 900})
    opened.page.goto((tmp_path / "report.html").as_uri())
    opened.page.locator(".first figure.chart svg").first.wait_for()
    assert opened.page.locator("#unavailable").is_visible() and not opened.page.locator("#browse").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(report: Report, browser: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="make test-browser installs it")
    opened = Page(browser, viewport={"width": 1440, "height": 900}, color_scheme=scheme)
    opened.page.goto(report.page.resolve().as_uri())
    opened.page.locator("#browse").wait_for()
    opened.page.locator("#hits li").first.wait_for()
    opened.page.locator(".first svg[aria-hidden]").first.wait_for()

    def serious() -> dict[str, str]:
        violations = axe.Axe().run(opened.page).response["violations"]
        return {
            violation["id"]: violation["nodes"][0]["html"]
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        }

    assert serious() == {}
    opened.page.locator("[name=find]").evaluate(
        "field => { field.placeholder = ''; field.ariaLabel = null; field.closest('label').replaceWith(field); }"
    )
    assert "label" in serious(), "the control: a field without its label"


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
