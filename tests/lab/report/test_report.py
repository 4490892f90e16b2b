import io
import re

import pytest
from rich.console import Console

from bayesrnn.lab.report import html
from bayesrnn.lab.report.plots import Curve, learning_curves
from bayesrnn.lab.report.tables import Column, html_table, markdown_table, rich_table

RECORDS = [{"name": "<plain>", "ppl": 123.456}, {"name": "a|b", "ppl": None}]
COLUMNS = [Column("name", "model"), Column("ppl", "perplexity", "{:.1f}")]


def test_the_three_tables_say_the_same():
    console = Console(file=io.StringIO(), width=80)
    console.print(rich_table(RECORDS, COLUMNS, title="Results"))
    terminal = console.file.getvalue()
    page = html_table(RECORDS, COLUMNS)
    markdown = markdown_table(RECORDS, COLUMNS)
    for text in (terminal, page, markdown):
        assert "123.5" in text
        assert "perplexity" in text
        assert "–" in text
    assert "&lt;plain&gt;" in page
    assert "<plain>" not in page
    assert markdown.splitlines()[1] == "|---|---:|"
    assert "a\\|b" in markdown


@pytest.fixture(scope="module")
def png():
    return learning_curves({"plain": Curve([300, 50, 10], [250, 120, 160]), "bayes": Curve([400.0], [350.0])})


def test_curves_are_a_png_of_readable_size(png):
    assert png.startswith(b"\x89PNG")
    width = int.from_bytes(png[16:20], "big")
    height = int.from_bytes(png[20:24], "big")
    assert width >= 1000
    assert height >= 600


def test_the_page_is_self_contained(png):
    page = html.page(
        "A & B",
        [
            html.heading("<h>"),
            html.paragraphs("1 < 2"),
            html.bullets(["3 > 2"]),
            html.wide(html_table(RECORDS, COLUMNS)),
            html.image(png, alt='the "curves"', caption="caption"),
            html.image(png, alt="no caption"),
            html.definitions([("term", "text")]),
            html.preformatted("x <- y"),
        ],
        footer="f",
    )
    assert "<title>A &amp; B</title>" in page
    assert "1 &lt; 2" in page
    assert 'name="viewport"' in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count("data:image/png;base64,") == 2
