"""``bayesrnn report`` from run folders and records to a page that a browser shows."""

import json
import os
import re
import shutil
import subprocess
from functools import cache

import pytest
from report_examples import ROOT, Reader, invoke, page_of, record

from bayesrnn.errors import UserError
from bayesrnn.lab.report.page import build
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.collection import groups, metrics_lines, read
from bayesrnn.lab.runs.folder import identity


def test_bad_inputs_are_said(tmp_path):
    with pytest.raises(UserError, match="There is no run or record"):
        read(tmp_path / "none")
    with pytest.raises(UserError, match="holds neither a run nor records"):
        read(tmp_path)
    for content, said in (
        ("[]", "is not the record of a run"),
        ('{"metrics": {}}', "it has no settings or no curves"),
        ("{", "is not JSON"),
        ('{"table": [], "findings": []}', "of a quickstart"),
        ("[" * 5000, "nested more than 100 deep"),
    ):
        (tmp_path / "1.json").write_text(content)
        with pytest.raises(UserError, match=said):
            read(tmp_path / "1.json")
        result = invoke("report", tmp_path / "1.json", "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_of_folders(tmp_path):
    """Records and run folders at any place in it; what else it holds is left out, and said in one line."""
    results = tmp_path / "results"
    for place in ("brnn-medium/1.json", "brnn-medium/10.json", "brnn-medium/2.json", "runs/other/3/record.json"):
        (results / place).parent.mkdir(parents=True, exist_ok=True)
        seed = int(re.findall(r"\d+", place)[0])
        (results / place).write_text(json.dumps(record(recipe=place.split("/")[-2], seed=seed)))
    (results / "cpu.json").write_text('{"training": []}')
    (results / "quickstart").mkdir()
    (results / "quickstart" / "record.json").write_text('{"table": [], "findings": []}')
    (results / "brnn-medium" / "4.json").write_text("{")
    (results / ".hidden").mkdir()
    (results / ".hidden" / "1.json").write_text(json.dumps(record(recipe="hidden")))
    left_out = {}
    found = read(results, left_out)
    assert [(run.recipe, run.seed) for run in found] == [("brnn-medium", s) for s in (1, 2, 10)] + [("3", 3)]
    assert left_out.pop("no records of runs") == [results / "cpu.json", results / "quickstart"]
    ((why, files),) = left_out.items()
    assert "is not JSON" in why
    assert files == [results / "brnn-medium" / "4.json"]
    result = invoke("report", results, "--out", tmp_path / "out", "--fast")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("Left out: ")]
    assert f"{results / 'cpu.json'}, {results / 'quickstart'} (no records of runs)" in line
    assert read(results / "runs")[0].seed == 3
    with pytest.raises(UserError, match="of a quickstart"):
        read(results / "quickstart")
    (tmp_path / "deep/1/2/3/4").mkdir(parents=True)
    (tmp_path / "deep/1/2/3/4/1.json").write_text(json.dumps(record()))
    with pytest.raises(UserError, match="holds neither a run nor records"):
        read(tmp_path / "deep")


def test_metrics_of_a_run_that_was_killed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "valid_perplexity": 9.5}\n{"epoch": 2, "valid_per')
    assert metrics_lines(tmp_path / "metrics.jsonl") == [{"epoch": 1, "valid_perplexity": 9.5}]
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "mine", "seed": 1, "settings": {}, "data": "x"}))
    text, _ = build(groups(read(tmp_path)), {}, title="t")
    assert "not finished, 1 epoch so far" in text


@pytest.fixture(scope="module")
def report(text_folder, tmp_path_factory):
    """The page of two tiny runs, made by the command."""
    out = tmp_path_factory.mktemp("runs")
    tiny = ["hidden=8", "batch_size=4", "window=6", "epochs=2"]
    for name in ("brnn-medium", "variational-tied-medium"):
        result = invoke("train", name, "--data", text_folder, "--out", out / name, "--device", "cpu", *tiny)
        assert result.exit_code == 0, result.output
    assert invoke("prune", out / "brnn-medium", "--fraction", 0.5).exit_code == 0
    result = invoke("report", out / "brnn-medium", out / "variational-tied-medium", "--out", out / "report")
    assert result.exit_code == 0, result.output
    return out


def test_the_command_measures_what_is_not_recorded(report):
    text = (report / "report" / "index.html").read_text()
    ids = Reader(text).ids
    assert {"signal-to-noise", "pruning", "patterns", "words"} <= set(ids)
    for picture in (report / "report").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_fast_takes_what_is_recorded(report):
    result = invoke("report", report / "brnn-medium", "--out", report / "fast", "--fast", "--title", "Mine & yours")
    assert result.exit_code == 0, result.output
    text = (report / "fast" / "index.html").read_text()
    assert "<title>Mine &amp; yours</title>" in text
    assert "words" not in Reader(text).ids
    assert "pruning" in Reader(text).ids
    assert invoke("report", report / "brnn-medium", "--out", report / "fast", "--fast").exit_code == 0  # its own again


def test_a_run_that_is_named_twice_is_one(report, tmp_path):
    """Its folder, a copy of its record with one more figure, the folder again: one run, its weights, all figures."""
    folder = report / "brnn-medium"
    kept = json.loads((folder / "record.json").read_text())
    kept["metrics"]["entropy_gap"] = 0.25
    (tmp_path / "1.json").write_text(json.dumps(kept))
    for paths in ((folder, tmp_path, folder), (tmp_path, folder)):
        ((label, runs),) = [(group.label, group.runs) for group in groups(r for path in paths for r in read(path))]
        assert (label, len(runs)) == ("brnn-medium", 1)
        assert runs[0].folder == folder
        assert runs[0].metrics["entropy_gap"] == 0.25
        assert runs[0].pruning
    (tmp_path / "2.json").write_text(json.dumps({**kept, "seed": 2}))
    assert [len(group.runs) for group in groups([*read(folder), *read(tmp_path)])] == [2]


def test_data_that_is_gone_is_said(report, tmp_path):
    run = shutil.copytree(report / "brnn-medium", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data": str(tmp_path / "gone")}))
    tensors, about = checkpoint.load(run / "best.safetensors")
    checkpoint.save_file(run / "best.safetensors", tensors, {**about, "run": identity(run)})
    result = invoke("report", run, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "index.html").read_text()
    note = f"Words are not shown: {run / 'config.json'} has {tmp_path / 'gone'} as the text of this run, and it is not "
    assert f"{note}there; make the report where it is." in text
    assert "signal-to-noise" in Reader(text).ids


def test_nothing_of_others_is_replaced(report, tmp_path):
    (tmp_path / "index.html").write_text("<p>my page</p>")
    result = invoke("report", report / "brnn-medium", "--out", tmp_path, "--fast")
    assert result.exit_code == 2
    assert "will not be replaced" in result.stderr
    assert (tmp_path / "index.html").read_text() == "<p>my page</p>"
    result = invoke("report", report / "brnn-medium", "--out", tmp_path / "index.html", "--fast")
    assert "is a file" in result.stderr
    (tmp_path / "index.html").unlink()
    os.mkfifo(tmp_path / "index.html")  # to open it would be to wait for ever
    result = invoke("report", report / "brnn-medium", "--out", tmp_path, "--fast")
    assert "index.html is not a regular file; choose another --out." in result.stderr.replace("\n", " ")


def test_the_records_of_this_repository(tmp_path):
    result = invoke("report", ROOT / "results" / "brnn-medium", ROOT / "results" / "variational-tied-medium" / "1.json",
                    "--out", tmp_path)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "paper 75.50" in (tmp_path / "index.html").read_text()


BROWSER = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")) if b), None)
PROBE = """<script>
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') &&
    e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className);
parent.postMessage(JSON.stringify({inner: innerWidth, page: document.documentElement.scrollWidth, wide,
    images: [...document.images].filter(i => i.complete && i.naturalWidth > 500).length,
    small: [...document.querySelectorAll('main *')].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    headings: document.querySelectorAll('h2').length}), '*');
</script>"""


NARROW = """<script>
parent.postMessage(JSON.stringify([...document.querySelectorAll('#measures > .wide, #configuration > .wide')].map(
    e => [e.clientWidth, e.scrollWidth, getComputedStyle(e).backgroundImage.includes('gradient')])), '*');
</script>"""


def in_a_frame(folder, text, width):
    """What the page, in a frame of this width, tells the window around it."""
    (folder / "inner.html").write_text(text)
    # A window is at least 500 wide, a frame in it is not.
    listen = "<script>addEventListener('message', e => { document.title = e.data; });</script>"
    (folder / "page.html").write_text(f'{listen}<iframe src="inner.html" width="{width}" height="900"></iframe>')
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         "--window-size=1400,1000", "--virtual-time-budget=3000", "--dump-dom", str(folder / "page.html")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return json.loads(re.search(r"<title>(.*?)</title>", done.stdout).group(1).replace("&quot;", '"'))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome to open the page with")
@pytest.mark.parametrize(("runs", "fits"), [(3, True), (12, False)])
def test_tables_on_a_phone(tmp_path, runs, fits):
    """Three runs of one recipe stand side by side; of more, a shade at the edge says that there are."""
    settings = record()["settings"]
    many = [record(settings={**settings, "train": {"epochs": k}}) for k in range(3, 3 + runs)]
    text, _ = page_of(tmp_path, *many)
    found = in_a_frame(tmp_path, text.replace("</body>", NARROW + "</body>"), 400)
    assert len(found) == 2
    for inner, whole, shaded in found:
        assert (whole <= inner) == fits
        assert shaded


@cache
def records_page():
    """A page of this repository's records: two of each task that has some, with a chapter for each task."""
    kinds = ("*-medium", "forecast*", "sentiment-lstm-*", "digits-*", "caption-[bv]*")
    found = [sorted((ROOT / "results").glob(f"{kind}/**/*.json"))[::3][:2] for kind in kinds]
    assert all(found)
    return build(groups(run for files in found for file in files for run in read(file)), {}, title="All")[0]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome to open the page with")
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("of", ["runs", "records"])
def test_in_a_browser(report, tmp_path, width, of):
    """Nothing is wider than the screen, pictures are shown, text is of readable size; without scripts in the page."""
    text = (report / "report" / "index.html").read_text() if of == "runs" else records_page()
    found = in_a_frame(tmp_path, text.replace("</body>", PROBE + "</body>"), width)
    assert width - 20 <= found["inner"] <= width
    assert found["wide"] == []
    assert found["page"] <= found["inner"]
    assert found["images"] == text.count("<img")
    assert found["small"] == 0
    assert found["headings"] >= (9 if of == "runs" else 5)  # sections; chapters
