"""The site: it builds without warnings, its links lead somewhere, and every page is readable in a browser."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.build.site import problems

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_nb")
    pytest.importorskip("furo")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(tmp_path / "trees")]
    command += ["-D", "nb_execution_mode=off"]  # tests/docs/test_cookbook.py runs the notebooks
    done = subprocess.run([*command, str(ROOT / "docs"), str(site)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (site / "api.html").read_text("utf-8")
    for public in ("bayesrnn.LSTM", "bayesrnn.predict", "bayesrnn.uncertainty.calibration_error"):
        assert f'id="{public}"' in page
    assert "<math" in page
    assert 'Type<span class="colon">' not in page
    signatures = [re.sub(r"<[^>]*>", "", found) for found in re.findall(r'(?s)<dt class="sig.*?</dt>', page)]
    assert len(signatures) > 100
    assert not [found for found in signatures if "(*args, **kwargs)" in found or "exp_or_inf" in found]
    guide = (site / "guide/prediction.html").read_text("utf-8")
    assert 'href="../api.html#bayesrnn.predict"' in guide
    assert 'href="https://arxiv.org/abs/1512.05287"' in (site / "index.html").read_text("utf-8")
    assert "abstain" in (site / "searchindex.js").read_text("utf-8")
    assert problems(site) == []
    look(site)


def look(site):
    """Open every page in Chromium, at the width of a phone and of a desk, light and dark."""
    playwright, chromium = pytest.importorskip("playwright.sync_api"), shutil.which("chromium")
    if chromium is None:
        pytest.skip("the site was built and read; looking at it needs Chromium")
    told = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width, scheme in ((400, "light"), (1200, "dark")):
            view = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = view.new_page()
            page.on("console", lambda message: told.append(message.text))
            page.on("pageerror", lambda error: told.append(str(error)))
            for path in sorted(site.rglob("*.html")):
                page.goto(path.as_uri())
                name = f"{path.relative_to(site)} at {width}"
                assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
                assert all(page.evaluate("[...document.querySelectorAll('.content img')].map(i => i.alt)")), name
                if width > 1000 and page.locator(".sidebar-tree p.caption + ul .current-page").count():
                    box = page.locator(".sidebar-tree .current-page").last.bounding_box()
                    assert 0 <= box["y"] < 900, f"the sidebar of {name} hides the page's own entry"
                    assert page.locator(".sidebar-tree [aria-expanded=true]").count() == 1, name
        page.goto((site / "index.html").as_uri())
        assert page.locator("p.caption[role=heading]:not([aria-level])").count() == 0
        assert page.locator("aside:not([aria-label])").count() == 0
        caption = page.get_by_role("button", name="Results")
        caption.click()
        assert page.get_by_role("link", name="Speed on a GPU").first.is_visible()
        caption.click()
        assert not page.locator(".sidebar-tree").get_by_role("link", name="Speed on a GPU").is_visible()
        browser.close()
    assert told == []


def test_a_site_with_dead_links_or_remote_parts_is_refused(tmp_path):
    assert problems(tmp_path) == [f"{tmp_path} has no pages"]
    (tmp_path / "b.html").write_text('<p id="here"></p>')
    links = ["b.html", "b.html#here", "#top", "https://example.org", "c.html", "b.html#there"]
    body = "".join(f'<a href="{link}"></a>' for link in links)
    (tmp_path / "a.html").write_text(f'<p id="top"></p>{body}<script src="https://example.org/x.js"></script>')
    assert problems(tmp_path) == [
        "a.html: c.html does not exist",
        "a.html: b.html#there has no such anchor",
        "a.html: https://example.org/x.js is loaded from the network",
    ]
