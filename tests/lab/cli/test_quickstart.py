import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from bayesrnn.lab.cli import app
from bayesrnn.lab.quickstart import MODELS, Quickstart, train_one

CODE = "from bayesrnn.lab.cli import main; main()"


def quickstart(*arguments):
    return CliRunner().invoke(app, ["quickstart", *map(str, arguments)])


def started(out, **options):
    arguments = [sys.executable, "-c", CODE, "quickstart", "--fast", "--seed", "3", "--out", str(out)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="module")
def trained():
    """Outcomes of the three models by name, filled by the fixture ``run``."""
    return {}


@pytest.fixture(scope="module")
def run(tmp_path_factory, trained):
    """A quickstart whose models train one after the other in this process, which needs no further imports of torch."""
    out = tmp_path_factory.mktemp("quickstart") / "run"

    def in_turn(out, *, seed, fast, told):
        for name in MODELS:
            trained[name] = train_one(
                name, out / name, seed=seed, fast=fast, send=lambda message, name=name: told(name, *message)
            )
        return trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesrnn.lab.quickstart.train", in_turn)
        result = quickstart("--fast", "--seed", 3, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_prints_the_table_and_where_to_look(run):
    out, stdout = run
    for name in MODELS.values():
        assert f"{name}: epoch 2/2, validation perplexity" in stdout
    for heading in ("perplexity", "calibration error", "when sure, says"):
        assert heading in stdout
    assert "a smoke run" in stdout
    assert str(out / "index.html") in stdout


def test_the_record_is_typed_and_the_runs_are_those_of_the_engine(run):
    out, stdout = run
    record = Quickstart.model_validate_json((out / "record.json").read_text())
    assert (record.seed, record.fast) == (3, True)
    assert [row.model for row in record.table[:3]] == list(MODELS.values()) == list(record.curves)
    assert record.table[3].model == "plain LSTM at epoch 2"
    for row in record.table:
        assert f"{row.perplexity:.1f}" in stdout
        assert sum(b.count for b in row.reliability) == sum(b.count for b in record.table[0].reliability) > 1000
    for key, name in MODELS.items():
        own = json.loads((out / key / "record.json").read_text())
        assert own["recipe"] == f"quickstart-{key}"
        assert own["curves"]["valid_perplexity"] == record.curves[name]
        assert own["settings"] == record.settings[name]
    texts = [[word.text for word in words] for words in record.sentence.values()]
    assert texts[0] == texts[1] == texts[2]


def test_the_page_opens_with_the_finding_and_the_picture(run):
    out, _ = run
    record = Quickstart.model_validate_json((out / "record.json").read_text())
    page = (out / "index.html").read_text()
    title, picture = page.index(f"<h1>{record.findings[0]}</h1>"), page.index("<img src=")
    assert title < picture < page.index("<h2>")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    for words in record.sentence.values():
        for word in words:
            assert f"{100 * word.confidence:.0f}%</small>" in page


def test_the_folder_is_whole(run):
    out, _ = run
    assert {p.name for p in out.iterdir()} == {"config.json", "record.json", "calibration.png", "index.html", *MODELS}
    result = CliRunner().invoke(app, ["predict", str(out / "variational")], input="the value of the\n")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[0])["word"] == "the"


def test_an_earlier_run_is_not_overwritten(run):
    out, _ = run
    before = (out / "record.json").read_bytes()
    result = quickstart("--fast", "--out", out)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "--force" in result.stderr
    assert result.stdout == ""
    assert (out / "record.json").read_bytes() == before


def test_a_stopped_run_of_another_kind_is_recognised(tmp_path):
    (tmp_path / ".unfinished").write_text("1\n")
    result = quickstart("--fast", "--out", tmp_path)
    assert result.exit_code == 2
    assert "unfinished run; start it over with --force" in result.stderr


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": '{"program": "bayesrnn", "recipe": "x"}', "record.json": '{"program": "bayesrnn"}'},
        {"config.json": '{"program": "bayesrnn", "recipe": "x"}', ".unfinished": "1", "index.html": "theirs"},
        {"config.json": "not JSON", "record.json": '{"program": "bayesrnn"}'},
        {"plain/record.json": '{"program": "bayesrnn"}'},
    ],
)
def test_force_replaces_no_other_kind_of_run(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    result = quickstart("--fast", "--out", tmp_path, "--force")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "is of another run, which --force does not replace" in result.stderr
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == files


@pytest.mark.usefixtures("run")
def test_force_replaces_a_quickstart_of_which_only_the_record_is_kept(tmp_path, trained, monkeypatch):
    monkeypatch.setattr("bayesrnn.lab.quickstart.train", lambda out, **options: trained)
    earlier = {"record.json": '{"program": "bayesrnn", "table": [], "findings": []}', "notes": "mine"}
    for name, content in earlier.items():
        (tmp_path / name).write_text(content)
    result = quickstart("--fast", "--out", tmp_path, "--force")
    assert result.exit_code == 0, result.output
    own = {"config.json", "record.json", "calibration.png", "index.html"}
    assert {p.name for p in tmp_path.iterdir()} == {*own, "notes"}


@pytest.mark.slow
def test_killed_and_started_again_it_begins_anew_with_the_same_numbers(run, tmp_path):
    """Killed without a chance to clean up, its processes end too; the same command then needs no --force."""
    out, _ = run
    with started(tmp_path / "run") as first:
        while "epoch" not in (line := first.stdout.readline()):
            assert line
        first.kill()
        first.communicate()  # which waits for the end of every process that has the pipes
    assert (tmp_path / "run" / ".unfinished").exists()
    second = quickstart("--fast", "--seed", 3, "--out", tmp_path / "run")  # in three processes
    assert (second.exit_code, second.stderr) == (0, "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", second.stdout)
    records = [Quickstart.model_validate_json((f / "record.json").read_text()) for f in (out, tmp_path / "run")]
    assert records[0].table == records[1].table
    assert records[0].sentence == records[1].sentence


@pytest.mark.slow
def test_ctrl_c_is_one_line(tmp_path):
    """The terminal sends the interrupt to all processes of the group."""
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # jobs of a script may ignore it
    with started(tmp_path / "run", start_new_session=True, **heard) as process:
        assert "Three LSTMs" in process.stdout.readline()
        time.sleep(1)  # its processes are being started
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == "bayesrnn: interrupted.\n"
    assert "Traceback" not in stdout


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--seed", "x"), ("--nonsense",)])
def test_bad_options(arguments, tmp_path):
    result = quickstart(*arguments, "--out", tmp_path)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
