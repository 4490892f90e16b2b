import io
import re

from rich.console import Console

from bayesrnn.lab.report import html
from bayesrnn.lab.report.tables import Column, markdown_table, rich_table

RECORDS = [{"name": "<plain>", "ppl": 123.456}, {"name": "a|b", "ppl": None}]
COLUMNS = [Column("name", "model"), Column("ppl", "perplexity", "{:.1f}")]


TABLE = html.table([c.heading for c in COLUMNS], [[c.text(row) for c in COLUMNS] for row in RECORDS])


def test_the_three_tables_say_the_same():
    console = Console(file=io.StringIO(), width=80)
    console.print(rich_table(RECORDS, COLUMNS, title="Results"))
    terminal = console.file.getvalue()
    page = TABLE
    markdown = markdown_table(RECORDS, COLUMNS)
    for text in (terminal, page, markdown):
        assert "123.5" in text
        assert "perplexity" in text
        assert "–" in text
    assert "&lt;plain&gt;" in page
    assert "<plain>" not in page
    assert markdown.splitlines()[1] == "|---|---:|"
    assert "a\\|b" in markdown


PNG = b"\x89PNG, or so"


def test_the_page_is_self_contained():
    page = html.render(
        "page.html",
        title="A & B",
        generator="",
        sections=[
            html.heading("<h>"),
            html.paragraphs("1 < 2"),
            html.bullets(["3 > 2"]),
            html.wide(TABLE),
            html.image(PNG, alt='the "curves"', caption="caption"),
            html.image(PNG, alt="no caption"),
            html.definitions([("term", "text")]),
        ],
        footer="f",
    )
    assert "<title>A &amp; B</title>" in page
    assert "1 &lt; 2" in page
    assert 'name="viewport"' in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count("data:image/png;base64,") == 2
