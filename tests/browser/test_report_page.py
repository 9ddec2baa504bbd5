"""The report in a browser: at two widths, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lastkey.jobs.command.config import load_config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.reporting import size
from lastkey.jobs.report import job as archive_report
from lastkey.jobs.report.page import render_page
from tests.browser.chromium import chromium, look
from tests.builders.logs import START_MS, write_partition
from tests.builders.profiles import HOSTILE, large, many

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SCREENS = [(width, dark) for width in (1280, 400) for dark in (False, True)]

LUMINANCE = """
const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255"""
PLOTS = """
return [...document.querySelectorAll('[role=img]')].map(plot => { const box = plot.getBoundingClientRect();
  return [plot.ariaLabel, plot.closest('details:not([open])') !== null, box.width, box.height] })"""
OUTSIDE = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > edge + 1
  && !e.closest('.scroll')).map(e => e.outerHTML.slice(0, 120))"""
# contrast of text with its background, WCAG 2: the lowest of the page
CONTRAST = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = parse(c).map(v => v / 255).map(v => v <= .03928 ? v / 12.92
  : Math.pow((v + .055) / 1.055, 2.4)); return .2126 * r + .7152 * g + .0722 * b };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (parse(c)[3] !== 0) return c } return 'rgb(255, 255, 255)' };
return Math.min(...[...document.querySelectorAll('p, h1, h2, h3, span, b, td, th, figcaption, summary, li, dt')]
  .filter(e => e.textContent.trim() && e.getBoundingClientRect().width).map(e => {
    const style = getComputedStyle(e), a = light(style.color), b = light(behind(e));
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) }))"""


@pytest.fixture(scope="module")
def chrome():
    with chromium() as chrome:
        yield chrome


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Make pages of the example archive, of one with hostile keys, of a large one with damage, and of 100 topics."""
    folder = tmp_path_factory.mktemp("pages")
    settings = load_config(str(ROOT / "examples/topics.toml"))
    out = {name: folder / f"{name}.html" for name in ("example", "hostile", "large", "many")}
    archive_report.run(
        ReportOptions(str(ROOT / "examples/archive"), str(out["example"]), now_ms=START_MS, config=settings), Silent()
    )
    write_partition(folder / "hostile/t-0", f"{HOSTILE}=1 {HOSTILE}=2 || {'long-key' * 7}=1 {'long-key' * 7}=2")
    archive_report.run(ReportOptions(str(folder / "hostile"), str(out["hostile"]), now_ms=START_MS), Silent())
    report = large(40, 30)
    report.notes = ["a-note-without-a-space-" * 20]
    out["large"].write_text(render_page(report))
    out["many"].write_text(render_page(many()))
    return out


@pytest.mark.parametrize("name", ["example", "hostile", "large", "many"])
@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_page_fits_the_screen_and_loads_nothing_else(chrome, pages, name, width, dark):
    page = pages[name]
    seen = look(chrome, page, width=width, dark=dark)
    assert seen == {"requests": [page.as_uri()], "console": []}
    chrome.execute_script("document.querySelectorAll('details').forEach((d, i) => d.open = i < 60)")
    chrome.execute_script("document.querySelectorAll('details:not([open])').forEach(d => d.remove())")  # for speed
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    assert chrome.execute_script(OUTSIDE) == []
    plots = chrome.execute_script(PLOTS)
    assert len(plots) >= 5
    for plot, shut, w, h in plots:
        assert not shut
        assert w > 200 and h >= 15, plot
    assert (chrome.execute_script(LUMINANCE) < 0.2) == dark
    assert chrome.execute_script(CONTRAST) >= 4.5


def test_every_plot_has_a_description_and_a_table(chrome, pages):
    look(chrome, pages["example"], width=1280)
    figures = chrome.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => [f.querySelector('[role=img]').ariaLabel,"
        " f.querySelector('figcaption').textContent, f.querySelectorAll('tbody tr').length])"
    )
    assert figures and all(label and caption and rows for label, caption, rows in figures)


def test_print_has_light_colours_and_unfolded_topics(chrome, pages):
    look(chrome, pages["example"], width=1280, dark=True)
    inside = """return [...document.querySelectorAll('details.box')].map(
        e => getComputedStyle(e, '::details-content').contentVisibility)"""
    assert set(chrome.execute_script(inside)) == {"visible", "hidden"}
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        assert set(chrome.execute_script(inside)) == {"visible"}
        assert chrome.execute_script(LUMINANCE) > 0.99
        assert chrome.execute_script(CONTRAST) >= 4.5
    finally:
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


NAMES = """
const name = e => e.firstElementChild.firstChild.textContent.trim();
return [[...document.querySelectorAll('#all-partitions tbody tr:not([hidden])')].map(row => row.cells[0].textContent),
  [...document.querySelectorAll('details.topic:not([hidden]) details.box:not([hidden])')].map(name)]"""
COLUMN = """
const table = document.getElementById('all-partitions');
return [[...table.tBodies[0].rows].map(row => row.cells[arguments[0]].textContent),
  [...table.tHead.rows[0].cells].map(cell => cell.ariaSort)]"""
OPEN = """
return [...document.querySelectorAll('details.box[open]')].map(
  e => e.firstElementChild.firstChild.textContent.trim())"""
FOCUS = "return document.activeElement.textContent"


def press(chrome: Chrome, *keys: str) -> None:
    """Press keys, wherever the focus is."""
    from selenium.webdriver import ActionChains

    ActionChains(chrome).send_keys(*keys).perform()


def test_click_sorts_by_value_and_second_click_reverses(chrome, pages):
    """The test sorts the values from which the cells were rendered."""
    look(chrome, pages["many"], width=1280)
    profiles = many().profiles
    after = {p.name(): p.size_bytes - p.total("bytes_after") for p in profiles if p.compacted}
    shares = sorted(100 * after[p.name()] / p.size_bytes for p in profiles if p.compacted)
    expected = {
        2: [f"{n:,}" for n in sorted(p.total("records") for p in profiles)],
        7: [size(n) for n in sorted(p.size_bytes for p in profiles)],
        9: [f"{share:.1f} %" for share in shares],
    }
    for column, filled in expected.items():
        header = chrome.find_elements("css selector", "#all-partitions th button")[column]
        empty = [""] * (300 - len(filled))
        for direction, values in (("descending", filled[::-1]), ("ascending", filled)):
            header.click()
            shown, sorts = chrome.execute_script(COLUMN, column)
            assert [text.removeprefix("~") for text in shown] == values + empty
            assert sorts == [direction if i == column else None for i in range(12)]


def test_names_are_sorted_in_natural_order(chrome, pages):
    look(chrome, pages["many"], width=1280)
    chrome.find_element("css selector", "#all-partitions th button").click()
    shown, sorts = chrome.execute_script(COLUMN, 0)
    assert sorts[0] == "ascending" and sorted(shown) == sorted(p.name() for p in many().profiles)
    assert [name for name in shown if name.startswith("t-")] == [f"t-{t}-{n}" for t in (9, 10) for n in range(3)]


def test_search_shows_rows_with_every_word(chrome, pages):
    look(chrome, pages["many"], width=1280)
    names = [p.name() for p in many().profiles]
    box = chrome.find_element("id", "search")
    for typed in ("dlq -1", "T-10-2", "<script>", "no such topic"):
        box.clear()
        box.send_keys(typed)
        expected = {name for name in names if all(word in name.lower() for word in typed.lower().split())}
        rows, details = chrome.execute_script(NAMES)
        assert set(rows) == set(details) == expected and len(rows) == len(details) == len(expected)
        assert chrome.find_element("id", "found").text == f"{len(expected)} of 300 partitions"
    box.send_keys("\ue00c")  # Escape
    assert len(chrome.execute_script(NAMES)[0]) == 300


def test_keyboard_can_search_sort_and_unfold(chrome, pages):
    from selenium.webdriver.support.wait import WebDriverWait

    look(chrome, pages["many"], width=1280)
    chrome.execute_script("document.getElementById('search').focus()")
    press(chrome, "t-10")
    press(chrome, *["\ue004"] * 4)  # Tab: open all, close all, the table, its first header
    assert chrome.execute_script(FOCUS) == "partition"
    outline = "const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth"
    assert chrome.execute_script(outline) == "solid2px"
    press(chrome, " ")
    press(chrome, "\ue007")  # space sorts, enter sorts back
    assert chrome.execute_script(COLUMN, 0)[1][0] == "descending"
    press(chrome, *["\ue004"] * 12)
    assert chrome.execute_script(FOCUS) == "t-10-2"
    before = chrome.execute_script(OPEN)
    press(chrome, "\ue007")  # the link opens its topic and its partition, and goes there
    at_target = lambda _: chrome.execute_script(FOCUS).startswith("t-10-2 ")  # noqa: E731 - once the hash has changed
    WebDriverWait(chrome, 30, poll_frequency=0.02).until(at_target)
    assert set(chrome.execute_script(OPEN)) == {*before, "t-10", "t-10-2"}
    press(chrome, "\ue007")
    assert set(chrome.execute_script(OPEN)) == {*before, "t-10"}
    chrome.find_element("link text", "t-10-2").click()  # a second time
    WebDriverWait(chrome, 30, poll_frequency=0.02).until(at_target)
    assert set(chrome.execute_script(OPEN)) == {*before, "t-10", "t-10-2"}
    fold = {name: chrome.find_element("id", name) for name in ("open", "close")}
    chrome.find_element("id", "search").send_keys("\ue00c")
    n_open = "return document.querySelectorAll('.topic[open]').length"
    fold["close"].click()
    assert chrome.execute_script(n_open) == 0
    fold["open"].click()
    assert chrome.execute_script(n_open) == 100


def test_page_without_scripts_is_complete(chrome, pages):
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        look(chrome, pages["many"], width=400)
        assert not chrome.find_element("id", "controls").is_displayed()
        assert chrome.find_elements("css selector", "th button") == []
        rows = chrome.find_elements("css selector", "#all-partitions tbody tr")
        assert len(rows) == 300 and rows[0].is_displayed()
        topic = chrome.find_elements("css selector", "details.topic")[50]
        summary = topic.find_element("css selector", "summary")
        summary.click()
        assert topic.get_attribute("open") and topic.find_element("css selector", "details summary").is_displayed()
        rows[2].find_element("css selector", "a").click()
        assert chrome.find_element("id", "p2").is_displayed()
    finally:
        chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_content_policy_blocks_other_scripts(chrome, pages):
    page = pages["many"].with_name("injected.html")
    script = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"></main>"
    page.write_text(pages["hostile"].read_text().replace("</main>", script))
    seen = look(chrome, page, width=1280)
    assert chrome.title.startswith("Archive report: ")
    assert len([line for line in seen["console"] if "script" in line and "violates" in line]) == 2


def test_print_of_many_partitions_keeps_folded_sections(chrome, pages):
    look(chrome, pages["many"], width=794)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        seen = chrome.execute_script("""
            const of = (selector, pseudo) => getComputedStyle(document.querySelector(selector), pseudo);
            return [of('#controls').display, of('nav').display, of('#all-partitions th button').display,
              of('#all-partitions th', '::before').content, of('.names').maxHeight,
              of('details.topic:not([open])', '::details-content').contentVisibility,
              document.documentElement.scrollWidth]""")
        assert seen == ["none", "none", "none", '"partition"', "none", "hidden", 794]
    finally:
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
