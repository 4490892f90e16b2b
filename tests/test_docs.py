"""What the documentation shows is true: examples run, commands work, tables come from records, links lead somewhere."""

import functools
import importlib.util
import json
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
import yaml
from typer.main import get_command
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn import forecasting
from bayesrnn.lab.cli import app
from bayesrnn.posteriors import base

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
GUIDE = sorted((ROOT / "docs/guide").glob("*.md"))
SHORT = [*GUIDE, ROOT / "docs/start.md", ROOT / "docs/troubleshooting.md", *sorted((ROOT / "docs/cookbook").iterdir())]
KERNELS = sorted((ROOT / "src/bayesrnn/kernels").glob("*/README.md"))
ALL = [*PAGES, *NOTEBOOKS, *KERNELS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


def read(page):
    """The text of a page; cells of code are fenced blocks."""
    if page.suffix != ".ipynb":
        return page.read_text("utf-8")
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(page.read_text("utf-8"))["cells"]]
    return "".join(f"{text}\n\n" if kind == "markdown" else f"```python\n{text}\n```\n\n" for kind, text in cells)


def blocks(page, language):
    """(first line, code) of every fenced block of the language."""
    text = read(page)
    return [(text[: m.start(2)].count("\n") + 1, m.group(2)) for m in FENCE.finditer(text) if m.group(1) == language]


@pytest.fixture
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in ALL if p not in NOTEBOOKS and blocks(p, "python")], ids=name)
def test_examples_run(page, seeded, tmp_path, monkeypatch):
    """In order, in one namespace: a page builds on its earlier examples."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("docs_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, code in blocks(page, "python"):
        exec(compile("\n" * (line - 1) + code, name(page), "exec"), module.__dict__)


def test_the_other_route_of_the_readme_runs(seeded):
    """Variational dropout in place of Bayes by Backprop, as the sentence below the example says."""
    text = (ROOT / "README.md").read_text("utf-8")
    (layer,) = re.findall(r"`(br\.LSTM\([^`]*\))`", text)
    code = "\n".join(code for _, code in blocks(ROOT / "README.md", "python"))
    changed = code.replace("nn.LSTM(8, 32)", layer).replace("br.BayesByBackprop(Net())", "Net()")
    assert changed.count("br.LSTM") == 1
    assert "BayesByBackprop" not in changed
    exec(changed, {"__name__": "docs_example"})


@pytest.mark.parametrize("page", [ROOT / "docs/start.md", *GUIDE], ids=name)
def test_a_guide_page_shows_code_on_its_first_screen(page):
    first = page.read_text("utf-8").split("```")[0]
    assert "## " not in first.replace("# ", "", 1) or page.stem == "start"
    assert len(first.split()) < 250
    assert blocks(page, "python") or blocks(page, "bash")


def prose(page):
    """The words that a person wrote: without code and generated tables."""
    text = re.sub(r"<!-- results:.*?<!-- /results -->", "", read(page), flags=re.DOTALL)
    return FENCE.sub("", text).split()


def test_pages_are_short():
    assert len(GUIDE) <= 12
    words = {name(page): len(read(page).split()) for page in SHORT}
    assert max(words.values()) <= 800, words
    assert sum(len(prose(page)) for page in (*PAGES, *NOTEBOOKS)) <= 20_000
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 600


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=name)
def test_code_fits_a_screen_of_1200_pixels(page):
    """All but the tree of the modules, which is wide."""
    text = re.sub(r"<!-- results:tree -->.*?<!-- /results -->", "", read(page), flags=re.DOTALL)
    lines = [line for m in FENCE.finditer(text) if m.group(1) for line in m.group(2).splitlines()]
    assert not [line for line in lines if len(line) > 88]


STILTED = re.compile(
    r"^(?:- )?Of (?:an?|the|several|some|what)\b|leave it away|\bmend(?:ed|s)?\b|of which nothing"
    r"|that the model has not|\bno such \w+ of\b"
)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS, ROOT / "CONTRIBUTING.md"], ids=name)
def test_plain_english(page):
    text = re.sub(r"<!-- results:tree -->.*?<!-- /results -->", "", read(page), flags=re.DOTALL)
    assert not [line for line in text.splitlines() if STILTED.search(line)]


def commands():
    for page in PAGES:
        for line, code in blocks(page, "bash"):
            for text in code.splitlines():
                words = shlex.split(text, comments=True)
                if words:
                    yield pytest.param(words, id=f"{name(page)}:{line}: {text}")


@functools.cache
def outcome(*arguments):
    """Of a command that several pages may show."""
    return CliRunner().invoke(app, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("words", list(commands()))
def test_commands(words):
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "bayesrnn":
        if arguments[0] == "quickstart":  # tests/lab/cli/test_quickstart.py runs it
            get_command(app).commands["quickstart"].make_context("quickstart", arguments[1:])
            return
        result = outcome(*arguments)
        assert result.exit_code == 0, result.output
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    else:
        assert words[:2] in (["pip", "install"], ["git", "clone"], ["cd", "bayesrnn"]), f"no check for {words}"


@functools.cache
def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [*PAGES, *KERNELS], ids=name)
def test_tables_are_what_the_records_say(page):
    try:
        made = generator().generated(page)
    except SystemExit as error:
        pytest.fail(str(error))
    assert made == page.read_text("utf-8"), "run `python docs/generate.py`"


def test_every_block_is_shown_on_one_page_and_every_figure_is_used():
    text = "".join(page.read_text("utf-8") for page in (*PAGES, *KERNELS))
    for block in generator().BLOCKS:
        assert text.count(f"<!-- results:{block} -->") == 1, block
    for picture in (ROOT / "docs/figures").glob("*.png"):
        assert f"figures/{picture.name})" in text, picture.name


def test_readme_shows_the_picture_and_the_numbers():
    text = (ROOT / "README.md").read_text("utf-8")
    assert "(results/quickstart/calibration.png)" in text
    assert re.search(r"<!-- results:headlines -->\n(- \[.*\n){5}<!-- /results -->", text)


def test_the_generator_says_what_is_missing(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("<!-- results:cpu -->\n<!-- /results -->\n")
    with pytest.raises(SystemExit, match=r"cpu.json is missing: make it with `python benchmarks/cpu.py"):
        generator().generated(page, tmp_path)
    page.write_text("<!-- results:quickstart -->\n<!-- /results -->\n")
    with pytest.raises(SystemExit, match=r"record.json is missing: make it with `bayesrnn quickstart"):
        generator().generated(page, tmp_path)
    page.write_text("<!-- results:gpu -->\n<!-- /results -->\n")
    with pytest.raises(SystemExit, match=r"README.md asks for results:gpu"):
        generator().generated(page, tmp_path)


def test_every_page_with_a_block_is_generated():
    pages = generator().pages()
    assert set(pages) == {*PAGES, *KERNELS}
    for page in ROOT.glob("src/**/*.md"):
        assert page in pages or "<!-- results:" not in page.read_text("utf-8")


def test_the_tables_of_a_cpu_have_the_columns_of_their_record(tmp_path):
    """A column that no row has is omitted."""
    (tmp_path / "results").mkdir()
    size = {"model": "layers", "hidden": 200, "plain_words_per_second": 1234.5}
    rows = [
        {"cell": "LSTM", **size, "batch": 20, "tied": 1.08, "untied": 0.84, "bbb": 0.85},
        {"cell": "GRU", **size, "batch": 128, "none": 1.0, "tied": 1.9},
    ]
    record = {"command": "python cpu.py", "versions": {"torch": "2"}, "threads": 2, "memory": {"copies": 3.4021}}
    record |= {"prediction": []}
    made = {}
    for count in (1, 2):
        (tmp_path / "results/cpu.json").write_text(json.dumps({**record, "training": rows[:count]}))
        for block in ("cpu", "cpu-training", "cpu-memory"):
            made[block, count] = generator().BLOCKS[block](tmp_path, tmp_path / "README.md").splitlines()
    assert "no noise" not in made["cpu", 1][0]
    for block in ("cpu", "cpu-training"):
        assert made[block, 2][0].split(" | ")[2:4] == ["ours, no noise", "variational, tied"]
        assert made[block, 2][2] == "| LSTM, layers, 200 units, batch 20 | 1,234 | – | 1.08x | 0.84x | 0.85x |"
        assert made[block, 2][3] == "| GRU, layers, 200 units, batch 128 | 1,234 | 1.00x | 1.90x | – | – |"
        assert made[block, 2][-1] == "Written by `python cpu.py` (torch 2, 2 CPU threads)."
    assert "peaks 3.40 copies of the parameters" in made["cpu-memory", 2][0]
    (verdict,) = generator().BLOCKS["cpu-verdict"](tmp_path, tmp_path / "README.md").splitlines()
    assert "takes at most 19% longer than with plain `torch.nn` layers, and is faster in 2 of 4 cases" in verdict
    assert "variational dropout with tied masks, 1.08x to 1.90x" in verdict


def test_a_table_without_rows_says_so():
    shown = generator()._without_empty_tables
    head, row = "| a | b |\n|---|---:|\n", "| x | 1 |\n"
    assert shown(head) == shown("") == shown(head.strip()) == "No run is recorded yet."
    assert shown(f"{head}{row}") == f"{head}{row}"
    assert shown(f"{head}\n- A sentence.") == "No run is recorded yet.\n\n- A sentence."
    assert shown(f"{head}{row}\n{head}\nEnd.") == f"{head}{row}\nNo run is recorded yet.\n\nEnd."


def anchors(page):
    """The places in a page that a link can name, as GitHub and MyST make them of headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", FENCE.sub("", read(page)))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL, ids=name)
def test_links_lead_somewhere(page):
    text = FENCE.sub("", read(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            assert (page.parent / file).exists(), target
            assert not anchor or anchor in anchors((page.parent / file) if file else page), target


@pytest.mark.parametrize("page", ALL, ids=name)
def test_files_that_are_named_exist(page):
    """`src/…`, `tests/…` and the like in backticks are paths from the root."""
    text = page.read_text("utf-8")
    for path in re.findall(r"`((?:src|tests|docs|benchmarks|results|examples)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or "NAME" in path, path


def test_every_page_is_in_the_index():
    index = (ROOT / "docs/index.md").read_text("utf-8")
    for page in (*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS):
        address = str(page.relative_to(ROOT / "docs").with_suffix(""))
        assert address == "index" or re.search(rf"(?m)^(?:[^<\n]+ <{address}>|{address})$", index), address


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text("utf-8")
    shown = set(re.findall(r"(?m)^\.\. auto\w+:: (\S+)$", text))
    modules = {entry.split(".")[1] for entry in shown if "." in entry}
    assert set(br.__all__) - {"__version__"} <= shown | modules
    for home, names in (("forecasting", forecasting.__all__), ("posteriors.base", base.__all__)):
        assert {f"bayesrnn.{home}.{one}" for one in names} <= shown | {f"bayesrnn.{home}.{one}" for one in br.__all__}


def test_the_citation_is_of_this_version_and_of_the_papers():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert found["cff-version"] == "1.2.0"
    assert found["version"] == br.__version__
    assert all(key in found for key in ("message", "title", "authors"))
    for page in ("README.md", "docs/index.md"):
        assert f"version = {{{br.__version__}}}" in (ROOT / page).read_text("utf-8")
    shown = set(re.findall(r"eprint = \{([\d.]+)\}", (ROOT / "docs/index.md").read_text("utf-8")))
    assert shown == {reference["url"].rsplit("/", 1)[1] for reference in found["references"]}


def test_the_map_names_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text("utf-8").split("## The tree")[0]
    paths = re.findall(r"(?m)^\S.*?  +([\w/]+(?:/|\.py))  |^  .*?  +([\w/]+\.py)", text)
    assert len(paths) > 10
    for path in filter(None, (part for pair in paths for part in pair)):
        assert "NAME" in path or (ROOT / "src/bayesrnn" / path).exists(), path


def test_every_module_of_the_map_has_a_docstring():
    tree = (ROOT / "docs/architecture.md").read_text("utf-8").split("<!-- results:tree -->")[1]
    lines = re.findall(r"(?m)^ +(\S+(?:/|\.py)) *(.*)$", tree)
    assert len(lines) > 100
    assert not [name for name, summary in lines if not summary]


def test_the_extras_of_the_first_page_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "docs/start.md").read_text("utf-8").split("| extra | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`(?=[^|]*\|[^|]*\|$)", text, re.MULTILINE)) == set(extras) - {"test", "dev", "docs"}
