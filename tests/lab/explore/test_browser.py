"""The page in a real browser: typing, clicking, keys, two runs, a phone, the dark, and accessibility.

AXE=axe.min.js            axe-core, for the accessibility checks (npm pack axe-core)
SCREENSHOTS=docs/figures  write explore-*.png there
EXPLORE_RUNS=folder       runs for the screenshots, by task: language, language2, forecast, ...
"""

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
import uvicorn

from bayesrnn.lab.explore.application import application
from bayesrnn.lab.explore.panel import Options
from bayesrnn.lab.explore.server import SETTINGS, listen
from bayesrnn.lab.registry import open_saved
from bayesrnn.lab.runs.opening import open_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ROOT = Path(__file__).resolve().parents[3]
AXE = Path(os.environ.get("AXE", ROOT / "node_modules/axe-core/axe.min.js"))
SCREENSHOTS = Path(os.environ["SCREENSHOTS"]).resolve() if "SCREENSHOTS" in os.environ else None
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
TOKEN = "t" * 43
LARGEST = 150_000  # bytes of a picture
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Serves runs, and opens their page at a width in a colour scheme; the console must stay empty."""
    ends, told = [], []

    def opened(folders, *, width=1200, scheme="light", token=TOKEN):
        listening = listen(0)
        port = listening.getsockname()[1]
        runs = [open_saved(folder) or open_run(folder, torch.device("cpu")) for folder in folders]
        server = uvicorn.Server(uvicorn.Config(application(runs, Options(), token=TOKEN, port=port), **SETTINGS))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: "status of 401" in message.text or told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: _own(request.url, port) or told.append(request.url))
        ends.append((context, server, thread, listening))
        page.goto(f"http://127.0.0.1:{port}/#{token}")
        return page

    yield opened
    for context, server, thread, listening in ends:
        context.close()
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert told == []


def _own(url, port):
    return url.startswith((f"http://127.0.0.1:{port}/", f"blob:http://127.0.0.1:{port}/"))


def settled(page):
    """Wait until the page has no question open, also after a pause in which it may ask the next one; it fits."""
    page.wait_for_selector("#weights canvas, #weights svg", timeout=60_000)
    for _ in range(2):
        page.wait_for_timeout(450)
        page.wait_for_selector("main[aria-busy=false]", timeout=60_000)
    assert page.locator(".error:not(:empty)").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def until(page, expression, value=None):
    """Wait for an expression; the page's own policy forbids Playwright's way of doing so."""
    for _ in range(200):
        if page.evaluate(expression, value):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def check_accessible(page):
    if not AXE.is_file():
        pytest.skip(f"axe-core is not at {AXE}; set AXE to its axe.min.js")
    page.evaluate(AXE.read_text("utf-8"))
    nodes = "v.nodes.map(node => node.html).slice(0, 3)"
    found = page.evaluate(f"axe.run().then(found => found.violations.map(v => [v.id, {nodes}]))")
    assert found == []


def test_typing_clicking_and_comparing(open_page, language_runs):
    page = open_page(language_runs[:2])
    settled(page)
    assert "#" not in page.url  # the token is gone from the address
    assert page.get_by_role("toolbar").count() == 2
    page.get_by_label("Text", exact=True).fill("w1 w2 strange\nw3")
    until(page, "document.querySelectorAll('[role=toolbar]')[1]?.children[3]?.textContent === '¶'")
    settled(page)
    first, second = page.get_by_role("toolbar").all()
    assert first.get_by_role("button").all_text_contents() == ["w1", "w2", "strange", "¶", "w3", "…"]
    first.get_by_role("button", name="strange").click()
    page.get_by_role("heading", name="Expected in the place of “strange”").wait_for()
    settled(page)
    for bar in (first, second):  # the same place in both runs
        assert bar.locator("[aria-pressed=true]").inner_text() == "strange"
    assert page.locator("#task .side table.bars").count() >= 2
    page.keyboard.press("ArrowRight")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Expected next").wait_for()
    slider = page.get_by_label("Draws of the weights")
    slider.focus()
    slider.press("Home")
    slider.press("ArrowRight")
    until(page, "document.querySelectorAll('#task .cards li').length === 4")  # two draws of two runs
    page.reload()
    settled(page)


def test_a_wrong_token_is_told(open_page, language_runs):
    page = open_page(language_runs[:1], token="x" * 43)
    page.get_by_text("The token is missing or wrong").wait_for()


def test_pruning_moves_the_pictures(open_page, language_runs):
    page = open_page(language_runs[:1])
    settled(page)
    page.get_by_label("Shows").select_option("left")
    slider = page.get_by_label("Prune", exact=True)
    slider.focus()
    slider.press("Home")
    page.get_by_text("Pruning 0% removes 0 weights.").wait_for()
    slider.press("End")
    page.get_by_text("Pruning 99% removes").wait_for()
    page.get_by_text("validation perplexity on a sample").wait_for()


def draw_seven(page):
    page.get_by_role("button", name="Clear").click()
    box = page.locator("canvas.pad").bounding_box()
    places = [(0.3, 0.3), (0.68, 0.28), (0.45, 0.8)]
    for k, (x, y) in enumerate(places):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=8)
        if k == 0:
            page.mouse.down()
    page.mouse.up()
    settled(page)


def test_a_digit_is_drawn(open_page, digits):
    page = open_page([digits])
    settled(page)
    draw_seven(page)
    ink = "(c => c.getContext('2d').getImageData(0, 0, 28, 28).data.filter((v, i) => i % 4 === 0 && v < 128).length)"
    assert page.evaluate(f"{ink}(document.querySelector('canvas.pad'))") > 40
    page.get_by_text("with probability").wait_for()
    page.get_by_text("at this risk").wait_for()


def test_the_origin_is_dragged(open_page, forecast):
    page = open_page([forecast])
    settled(page)
    before = page.locator(".slider output").first.inner_text()
    grip = page.locator(".grip").bounding_box()
    page.mouse.move(grip["x"] + 12, grip["y"] + 100)
    page.mouse.down()
    page.mouse.move(grip["x"] - 100, grip["y"] + 100, steps=5)
    page.mouse.up()
    settled(page)
    after = page.locator(".slider output").first.inner_text()
    assert after < before
    assert f"forecast made at {after}" in page.locator(".fan svg").first.get_attribute("aria-label")
    mean = page.locator(".fan path.main").get_attribute("d")
    page.get_by_label(f"heat at {after}").fill("9")
    until(page, "mean => document.querySelector('.fan path.main').getAttribute('d') !== mean", mean)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_a_saved_forecaster(open_page, forecaster, width, scheme):
    """Another series, a price after the origin, walking forward; by keyboard as by mouse."""
    page = open_page([forecaster], width=width, scheme=scheme)
    page.locator(".fan svg").first.wait_for(timeout=60_000)
    page.get_by_label("Series").select_option("south")
    page.locator(".fan figcaption", has_text="south.").wait_for()
    page.get_by_role("slider", name="Forecast made at").press("End")
    page.locator('.fan svg[aria-label*="made at 2024-05-29"]').wait_for()
    mean = page.locator(".fan path.main").get_attribute("d")
    page.get_by_label("price at 2024-05-31").fill("9")
    until(page, "mean => document.querySelector('.fan path.main').getAttribute('d') !== mean", mean)
    page.get_by_role("button", name="Undo changes").click()
    until(page, "mean => document.querySelector('.fan path.main').getAttribute('d') === mean", mean)
    page.get_by_role("button", name="Backtest").press("Enter")
    page.locator("figcaption", has_text="Where 60 values fell").wait_for(timeout=60_000)
    assert page.locator("figure", has_text="Among the largest errors").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    check_accessible(page)


TASKS = ("language", "language2", "forecast", "digits", "sentiment", "captioning")


@pytest.fixture
def folders_of(request, monkeypatch):
    """The run, or two runs, that a page is shown of: those of EXPLORE_RUNS, or tiny ones."""

    def found(task):
        given = Path(os.environ.get("EXPLORE_RUNS", "/nowhere"))
        if (given / task).is_dir():
            monkeypatch.chdir(given)  # the page shows paths as they are given
            return [Path(name) for name in (task, f"{task}2") if Path(name).is_dir()]
        return request.getfixturevalue("language_runs")[:2] if task == "language" else [request.getfixturevalue(task)]

    return found


def looks():
    """On a phone in the dark, and on a wide page; tests above open three of these: only axe and pictures need them."""
    for task in TASKS:
        if task != "language2":
            yield task, 400, "dark"
            if task in ("sentiment", "captioning") or AXE.is_file() or SCREENSHOTS:
                yield task, 1200, "light"


@pytest.mark.parametrize(("task", "width", "scheme"), list(looks()))
def test_every_panel_is_readable(open_page, folders_of, task, scheme, width):
    page = open_page(folders_of(task), width=width, scheme=scheme)
    settled(page)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(22, 22, 22)")
    if task == "digits":
        draw_seven(page)
    if SCREENSHOTS and width == 1200:
        for name, panel in ((task, "task"), *([("weights", "weights")] if task == "digits" else [])):
            shot(page.locator(f"#{panel}"), SCREENSHOTS / f"explore-{name}.png")
    if SCREENSHOTS and (task, width) == ("language", 400):
        shot(page, SCREENSHOTS / "explore-phone.png")
    check_accessible(page)


def shot(place, file):
    """A picture with few colours, small enough for the docs."""
    from PIL import Image

    place.screenshot(path=file)
    with Image.open(file) as image:
        small = image.convert("RGB").quantize(128)
    small.save(file, optimize=True)
    assert file.stat().st_size < LARGEST
