"""The page in a real headless Chromium: strangers' text stays text, tables sort, the viewer shows what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.report import page
from tests.support.browser import Browser, Page, launched
from tests.support.page import ATTACK, measure, poison

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with launched(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def results(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(tiny_model_folder, tmp_path_factory.mktemp("results"), trace=2)


@pytest.fixture(scope="module")
def traces(results: Path) -> list[dict[str, Any]]:
    return poison(results)


@pytest.fixture(scope="module")
def report(results: Path, traces: list[dict[str, Any]]) -> Path:
    return page.write(results)


def opened(browser: Browser, path: Path, **looks: Any) -> Page:
    tab = Page(browser, **looks)
    tab.open(path)
    return tab


def test_text_of_strangers_stays_text_and_nothing_is_fetched(browser: Browser, report: Path) -> None:
    tab = opened(browser, report)
    for run in range(tab.evaluate("document.getElementById('pick-run').options.length")):
        choose(tab, "pick-run", run)
        for turn in range(tab.evaluate("document.getElementById('pick-turn').options.length")):
            choose(tab, "pick-turn", turn)
    assert ATTACK in tab.evaluate("document.getElementById('question').textContent")
    assert ATTACK in tab.evaluate("document.getElementById('answer').textContent")
    assert ATTACK in tab.evaluate("document.getElementById('tables').textContent")
    assert tab.evaluate("document.querySelectorAll('img').length") == 1, "the figure, and no image of a stranger"
    assert tab.evaluate("document.querySelectorAll('script').length") == 4
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data"}
    assert [url for url in tab.requests if url.startswith("file:")] == [report.as_uri()]
    assert tab.troubles == []


def test_the_policy_stops_what_escaping_would_have_let_through(browser: Browser, report: Path, tmp_path: Path) -> None:
    text = report.read_text(encoding="utf-8")
    evil = (
        f"{ATTACK}<img src='http://127.0.0.1:9/x.png'><p style='display:none' onclick='window.hacked = 1'></p></body>"
    )
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("</body>", evil), encoding="utf-8")
    tab = opened(browser, broken)
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in trouble for trouble in tab.troubles)
    assert tab.requests["http://127.0.0.1:9/x.png"] == "csp"

    start = text.index("<meta http-equiv")
    bare = text[:start] + text[text.index(">", start) + 1 :]
    broken.write_text(bare.replace("</body>", evil), encoding="utf-8")
    assert opened(browser, broken).evaluate("window.hacked") == 1, "without the policy this attack works"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_and_can_be_read_by_day_and_night(
    width: int, scheme: str, browser: Browser, report: Path, tmp_path: Path
) -> None:
    tab = opened(browser, report, width=width, scheme=scheme)
    choose(tab, "pick-run", 1)
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    colours = tab.evaluate(
        """(() => { const style = getComputedStyle(document.documentElement);
        const names = ["page", "panel", "node", "ink", "soft", "good", "bad", "focus", "accepted", "target", "mark"];
        return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()])); })()"""
    )
    assert (luminance(colours["page"]) > 0.5) == (scheme == "light")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(colours["page"])
    for ground in ("page", "panel", "node"):
        for name in ("ink", "soft", "good", "bad", "focus"):
            assert contrast(colours[name], colours[ground]) >= 4.5, f"{name} on {ground}"
        for name in ("accepted", "target"):  # lines, not text
            assert contrast(colours[name], colours[ground]) >= 3, f"{name} on {ground}"
    assert contrast(colours["ink"], colours["mark"]) >= 4.5
    small = tab.evaluate(
        """Array.from(document.querySelectorAll("th button, .buttons button, select, summary"))
        .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 24).length"""
    )
    assert small == 0, "targets are at least 24 pixels high"
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_sorts_by_number_with_the_keyboard_alone(browser: Browser, report: Path) -> None:
    tab = opened(browser, report)
    table = "document.querySelector('#tables table')"
    assert tab.evaluate(f"{table}.textContent.includes('eagle2')")
    column = 2  # tau_paper of the first task
    values = f"Array.from({table}.tBodies[0].rows, (row) => Number(row.cells[{column}].dataset.sort))"
    before = tab.evaluate(values)
    assert len(set(before)) > 1
    tab.evaluate(f"{table}.querySelector('[data-column=\"{column - 1}\"] button').focus()")
    tab.press("Tab", "Enter")
    assert tab.evaluate("document.activeElement.parentElement.dataset.column") == str(column)
    assert tab.evaluate(values) == sorted(before)
    assert tab.evaluate("document.activeElement.parentElement.ariaSort") == "ascending"
    tab.press("Enter")
    assert tab.evaluate(values) == sorted(before, reverse=True)
    # What has no number stays at the end either way, and 10 comes after 9.
    tab.evaluate(f"""{table}.tBodies[0].rows[0].cells[{column}].dataset.sort = ''""")
    tab.evaluate(f"""{table}.tBodies[0].rows[1].cells[{column}].dataset.sort = '10'""")
    tab.evaluate(f"""{table}.tBodies[0].rows[2].cells[{column}].dataset.sort = '9'""")
    last = f"{table}.tBodies[0].rows[2].cells[{column}].dataset.sort"
    tab.press("Enter")
    assert tab.evaluate(values) == [9, 10, 0]
    assert tab.evaluate(last) == ""
    tab.press("Enter")
    assert tab.evaluate(values) == [10, 9, 0]
    assert tab.evaluate(last) == ""


def test_the_viewer_shows_each_recorded_cycle(browser: Browser, report: Path, traces: list[dict[str, Any]]) -> None:
    tab = opened(browser, report)
    (eagle2,) = [number for number, trace in enumerate(traces[:2]) if trace["method"] == "eagle2"]
    choose(tab, "pick-run", eagle2)
    trace = traces[eagle2]
    for turn, facts in enumerate(trace["turns"]):
        tab.evaluate("document.getElementById('pick-turn').focus()")
        tab.press(*["ArrowDown"] * turn)
        assert tab.evaluate("document.getElementById('question').textContent") == facts["question"]
        tab.evaluate("document.getElementById('pick-cycle').focus()")
        cycles = len(facts["steps"]) - 1
        assert cycles > 3
        for number in range(1, cycles + 1):
            check_cycle(tab, facts, number)
            tab.press("ArrowRight")
        assert tab.evaluate("document.getElementById('cycle-of').textContent") == f"{cycles} of {cycles}"
        assert tab.evaluate("document.getElementById('next').disabled")
    assert tab.troubles == []


def test_a_trace_that_is_not_of_the_timed_text_says_so(browser: Browser, report: Path, tmp_path: Path) -> None:
    hidden = "document.getElementById('differs').hidden"
    assert opened(browser, report).evaluate(hidden)
    other = tmp_path / "other.html"
    text = report.read_text(encoding="utf-8")
    assert text.count('"repeats": true') == 4
    other.write_text(text.replace('"repeats": true', '"repeats": false'), encoding="utf-8")
    assert not opened(browser, other).evaluate(hidden)


def check_cycle(tab: Page, turn: dict[str, Any], number: int) -> None:
    step = turn["steps"][number]
    shown = tab.evaluate(
        """({answer: document.getElementById("answer").textContent,
        added: document.querySelector("#answer mark").textContent,
        summary: document.getElementById("summary").textContent,
        cycle: document.getElementById("cycle-of").textContent,
        bars: document.querySelectorAll("#strip rect").length,
        nodes: Array.from(document.querySelectorAll("#tree [role=treeitem]"), (node) =>
          [node.className.baseVal, Number(node.getAttribute("aria-level")), node.getAttribute("aria-label")])})"""
    )
    cycles = len(turn["steps"]) - 1
    assert (shown["cycle"], shown["bars"]) == (f"{number} of {cycles}", cycles)
    assert shown["answer"] == "".join(each["text"] for each in turn["steps"][: number + 1])
    assert shown["added"] == step["text"]
    drafted, accepted = len(step["draft"]) - 1, len(step["path"]) - 1
    assert shown["summary"].startswith(f"{drafted} drafted, {accepted} accepted, {len(step['tokens'])} added")
    own = len(step["tokens"]) == len(step["path"])
    assert len(shown["nodes"]) == drafted + 1 + own
    levels = [0]
    for node, parent in enumerate(step["parents"]):
        levels[node:] = [levels[parent] + 1 if node else 1]
        fate, level, label = shown["nodes"][node]
        expected = "accepted" if node in step["path"] else "tried" if parent in step["path"] else "unreached"
        assert (fate, level) == (expected, levels[node])
        assert f"(token {step['draft'][node]})" in label
        if node:
            above = step["scores"][parent - 1] if parent else 0.0
            confidence = 2.718281828459045 ** (step["scores"][node - 1] - above)
            assert abs(float(label.split("confidence ")[1].split(",")[0]) - confidence) < 0.002
    if own:
        assert shown["nodes"][-1][0] == "target"
        assert f"(token {step['tokens'][-1]})" in shown["nodes"][-1][2]


def test_the_tree_is_walked_with_arrow_keys(browser: Browser, report: Path, traces: list[dict[str, Any]]) -> None:
    tab = opened(browser, report)
    choose(tab, "pick-run", [trace["method"] for trace in traces].index("eagle2"))
    focused = "document.activeElement.getAttribute('aria-label')"
    level = "Number(document.activeElement.getAttribute('aria-level'))"
    tab.evaluate("document.querySelector('.trees').focus()")
    tab.evaluate("document.querySelector('#tree [tabindex=\"0\"]').focus()")
    root = tab.evaluate(focused)
    assert tab.evaluate(level) == 1
    tab.press("ArrowRight")
    assert tab.evaluate(level) == 2
    first = tab.evaluate(focused)
    assert tab.evaluate("document.getElementById('node').textContent") == first
    tab.press("ArrowDown")
    assert tab.evaluate(level) == 2
    assert tab.evaluate(focused) != first
    tab.press("ArrowUp")
    assert tab.evaluate(focused) == first
    tab.press("ArrowLeft", "ArrowLeft")
    assert tab.evaluate(focused) == root
    tab.press("ArrowRight", "ArrowDown", "Home")
    assert tab.evaluate(focused) == root
    assert tab.evaluate("document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1, "one tab stop"


def test_the_text_grows_by_itself_and_stops_at_its_end(browser: Browser, report: Path) -> None:
    tab = opened(browser, report)
    choose(tab, "pick-run", 1)
    slider = "document.getElementById('pick-cycle')"
    tab.evaluate(f"{slider}.value = {slider}.max - 1; {slider}.dispatchEvent(new Event('input'))")
    # Noted in the page itself: on a busy machine it may be over before anybody asks.
    tab.evaluate(
        """(() => { const play = document.getElementById("play"); window.seen = [];
        const note = () => window.seen.push([play.textContent, play.ariaPressed]);
        new MutationObserver(note).observe(play, { childList: true }); play.focus(); })()"""
    )
    tab.press("Enter")
    tab.wait_for("window.seen.length === 2")
    assert tab.evaluate("window.seen") == [["Pause", "true"], ["Play", "false"]]
    assert tab.evaluate(f"{slider}.value === {slider}.max")


def test_an_empty_folder_gives_a_page_that_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    tab = opened(browser, page.write(tmp_path / "nothing"))
    text = tab.evaluate("document.body.innerText")
    for expected in ("No table under", "No SVG under", "No draft tree was recorded", "Nothing was measured"):
        assert expected in text
    assert tab.troubles == []


def choose(tab: Page, select: str, index: int) -> None:
    """Pick an option, as a click or the keys do; which of both is the browser's own affair."""
    tab.evaluate(
        f"(() => {{ const select = document.getElementById({json.dumps(select)}); select.selectedIndex = {index};"
        "select.dispatchEvent(new Event('change')); })()"
    )


def rgb(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
