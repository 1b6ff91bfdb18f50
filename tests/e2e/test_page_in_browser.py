"""HTML reports in a browser: no network access, charts, sorting, filters, colours, narrow screens."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from holdfast.report.page import write_audit, write_report
from holdfast.report.terminal import matrix
from holdfast.stats.summary import summarise
from tests.unit.report.fake_records import COST, record, stream

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
LONG = "a-method-with-a-very-long-name-that-no-phone-could-show-in-one-line"
SCHEMES = [("compared", "light"), ("compared", "dark"), ("streamed", "light"), ("audited", "dark")]
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="the package playwright is missing"),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]


def many():
    """Return twelve methods with costs, some with several seeds, in-domain runs, and two streams."""
    more = {"batch": 8, "lr": 0.01, "every": 5, "plan_args": {}}
    runs = []
    for place, name in enumerate(["erm", "mil", *(f"m{i}" for i in range(9)), LONG]):
        cost, scores = {**COST, "seconds": 1.0 + place}, {"films": 0.5 + place / 40, "books": 0.6 + place / 40}
        for seed in (0, 1) if name in ("erm", "mil") else (0,):
            runs += [record(name, seed, {d: v + seed / 50}, cost=cost, **more) for d, v in scores.items()]
    for domain in ("films", "books"):
        runs += [record("erm", 0, {domain: 0.95}, plan="in-domain", episode=f"in-{domain}", **more)]
    matrix = [{"a": 0.9, "b": 0.4}, {"a": 0.6, "b": 0.8}]
    return runs, [stream("erm", 0, matrix, ["a", "b"]), stream("ewc", 0, matrix, ["a", "b"])]


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    compared, streamed = many()
    cells = {("a", "b"): ("1.2", 1.2), ("b", "a"): ("1.2", 1.2)}
    grids = [matrix("Inputs apart", "A-distance.", ["a", "b"], cells, top=2.0)]
    texts = {"title": "An audit", "headline": "There is a shift.", "advice": ["Look."], "notes": []}
    named = {"title": "A report", "source": ["my file.csv"]}
    return {
        "compared": write_report(summarise(compared, "accuracy"), folder / "c.html", **named),
        "streamed": write_report(summarise(streamed, "accuracy"), folder / "s.html", title="Streams"),
        "audited": write_audit(folder / "a.html", grids=grids, **texts),
    }


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def opened(browser, pages):
    """Open each report once at desktop width, with its console messages and requests."""
    opened_pages = {}
    for name, path in pages.items():
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        page.set_default_timeout(120_000)  # for busy machines
        page.messages, page.requests = [], []
        page.on("console", lambda message, page=page: page.messages.append(message.text))
        page.on("pageerror", lambda error, page=page: page.messages.append(str(error)))
        page.on("request", lambda request, page=page: page.requests.append(request.url))
        page.goto(path.as_uri())
        opened_pages[name] = page
    return opened_pages


@pytest.fixture
def page(opened):
    yield opened["compared"]
    opened["compared"].reload()


def column(page, place: int) -> list[str]:
    """Return the visible cells of a column of the table of scores."""
    return page.eval_on_selector_all(
        "#score-table tbody tr:not([hidden])", f"rows => rows.map(row => row.cells[{place}].textContent.trim())"
    )


def seen(page, chart: str) -> list[str]:
    """Return the methods that a chart shows."""
    shown = "all => all.filter(g => g.style.display !== 'none').map(g => g.dataset.label)"
    return page.eval_on_selector_all(f"#{chart} [data-label]", shown)


@pytest.mark.parametrize("name", ["compared", "streamed", "audited"])
def test_reports_open_without_messages_and_network_access(opened, pages, name):
    assert opened[name].messages == []
    assert opened[name].requests == [pages[name].as_uri()]


def test_all_charts_are_drawn(opened):
    counts = {}
    for name, page in opened.items():
        charts = page.query_selector_all("[role=img] .chart")
        assert all(chart.query_selector("svg path, svg rect, svg circle") for chart in charts), name
        assert len(charts) == page.eval_on_selector_all("[role=img]", "all => all.length"), name
        counts[name] = len(charts)
    assert counts == {"compared": 3, "streamed": 7, "audited": 1}
    dots = opened["compared"].eval_on_selector_all("#scores title", "all => all.length")
    assert dots == 39  # 13 rows, two targets and their average


def test_reports_are_small_and_open_fast(browser, tmp_path):
    more = {"batch": 8, "lr": 0.01, "every": 5, "plan_args": {}}
    runs = [
        record(f"m{i}" if i else "erm", seed, {domain: 0.5 + i / 100 + seed / 500}, **more)
        for i in range(20) for seed in range(3) for domain in ("films", "books", "news", "tweets")
    ]  # fmt: skip
    path = write_report(summarise(runs, "accuracy"), tmp_path / "report.html", title="Twenty methods")
    assert path.stat().st_size < 1_500_000
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(path.as_uri())
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    page.close()
    assert timing < 1000  # milliseconds


@pytest.mark.skipif(
    importlib.util.find_spec("axe_playwright_python") is None, reason="axe-playwright-python is missing"
)
@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_axe_reports_no_violations(browser, pages, name, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page.set_default_timeout(120_000)
    page.goto(pages[name].as_uri())
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    response = Axe().run(page).response
    page.close()
    assert len(response["passes"]) > 15
    violations = response["violations"]
    nodes = [(rule["id"], node["html"][:120], node["failureSummary"]) for rule in violations for node in rule["nodes"]]
    assert nodes == []


def test_all_controls_are_reached_by_the_keyboard(page):
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert {"SELECT.", "INPUT.", "BUTTON.", "BUTTON.key", "DIV.wide", "SUMMARY."} <= reached
    page.locator("summary", has_text="Costs").focus()
    page.keyboard.press("Enter")
    assert page.locator("details", has_text="Costs per method").first.get_attribute("open") is not None


def test_charts_have_text_alternatives_with_their_values(opened):
    for name, page in opened.items():
        texts = page.eval_on_selector_all("[role=img]", "all => all.map(each => each.getAttribute('aria-label'))")
        assert all(any(character.isdigit() for character in text) for text in texts), name


def test_printed_reports_show_collapsed_sections(page, tmp_path):
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 3
    assert len(page.pdf(path=tmp_path / "report.pdf")) > 10_000


def test_table_sorts_in_both_directions(page):
    head = page.locator("#score-table thead button").nth(3)
    head.click()
    down = [float(text[:4]) for text in column(page, 3)]
    assert down == sorted(down, reverse=True)
    assert column(page, 0)[0] == "erm (in-domain)"
    head.click()
    assert [float(text[:4]) for text in column(page, 3)] == sorted(down)
    page.locator("#score-table thead button").nth(0).click()
    names = column(page, 0)
    assert names == sorted(names)


def test_filters_apply_to_tables_and_charts(page):
    every = len(column(page, 0))
    page.get_by_label("Filter").fill("M1")
    assert column(page, 0) == ["m1"]
    assert seen(page, "scores") == ["m1"]
    assert page.locator(".filter output").text_content() == f"1 of {every} rows"
    page.get_by_label("Filter").fill("")
    page.locator("select[name=method]").select_option("erm")
    assert column(page, 0) == seen(page, "scores") == ["erm (in-domain)", "erm (leave-one-out)"]
    page.locator("select[name=method]").select_option("")
    assert len(column(page, 0)) == len(seen(page, "scores")) == every


def test_legend_entries_hide_a_method_in_all_charts(page):
    page.locator(".key", has_text="mil").first.click()
    assert "mil" not in seen(page, "scores") + seen(page, "curves")
    assert "mil" in column(page, 0)
    page.locator(".key", has_text="mil").first.click()
    assert "mil" in seen(page, "scores")


def test_colours_follow_the_system_and_the_menu(page):
    def colours() -> list[str]:
        looks = "e => getComputedStyle(e)"
        return [
            page.eval_on_selector("body", f"e => ({looks})(e).backgroundColor"),
            page.eval_on_selector("body", f"e => ({looks})(e).color"),
            page.eval_on_selector("#scores .x-cells span", f"e => ({looks})(e).color"),
        ]

    light = colours()
    assert light[0] == "rgb(255, 255, 255)"
    assert light[1] == light[2]
    page.emulate_media(color_scheme="dark")
    dark = colours()
    assert dark[1] == dark[2]
    assert not set(light) & set(dark)
    page.get_by_label("Colours of the report").select_option("light")
    assert colours() == light
    page.get_by_label("Colours of the report").select_option("dark")
    page.emulate_media(color_scheme="light")
    assert colours() == dark
    page.emulate_media(media="print")
    assert colours() == light
    page.emulate_media(media="screen")


@pytest.mark.parametrize("name", ["compared", "streamed", "audited"])
def test_narrow_screens_do_not_scroll_horizontally(opened, name):
    page = opened[name]
    page.set_viewport_size({"width": 360, "height": 740})
    page.reload()
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    wide = page.eval_on_selector_all(".chart", "all => all.map(each => each.getBoundingClientRect().right)")
    assert max(wide) <= 360
    page.set_viewport_size({"width": 1200, "height": 900})
    page.reload()


def test_commands_can_be_copied(page):
    page.locator("summary", has_text="Runs and commands").click()
    run = page.locator("details.run", has_text="mil")
    run.locator("summary").click()
    assert run.locator("code").text_content().startswith("holdfast compare 'my file.csv' --methods mil --seeds 2 ")
    run.locator(".copy").click()
    run.locator(".copy", has_text="Copied").wait_for()


def test_server_form_requests_predictions(browser, tmp_path):
    from holdfast import DomainClassifier
    from holdfast.serve.server import serving
    from holdfast.serve.service import Service

    classifier = DomainClassifier(encoder="mlp", steps=2, batch=2, device="cpu", settings={"encoder.hidden": [4]})
    rows = [[float(i), -float(i), 0.5] for i in range(12)]
    classifier.fit(rows, ["low", "high"] * 6, domains=["a", "a", "b", "b"] * 3).save_pretrained(tmp_path / "model")
    page, messages, requests = browser.new_page(), [], []
    page.set_default_timeout(120_000)
    page.on("console", lambda message: messages.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    with serving(Service(tmp_path / "model", device="cpu")) as address:
        page.goto(f"{address}/docs")
        page.click("button")
        page.locator("#answer", has_text=re.compile(r"^200\s.*predictions", re.DOTALL)).wait_for()
        page.fill("textarea", '{"example": "no vector"}')
        page.click("button")
        page.locator("#answer", has_text=re.compile(r"^422\s.*error", re.DOTALL)).wait_for()
    page.close()
    assert requests == [f"{address}/docs", f"{address}/predict", f"{address}/predict"]
    assert all("422" in each for each in messages)  # only the browser's message on the rejected request
