"""``bayesrnn reproduce``: published figures beside ours; what is missing is run, what is there is not run again."""

import dataclasses
import json
import shutil

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.runs.folder import MARKER
from bayesrnn.lab.runs.record import Record, read_folder
from bayesrnn.lab.tasks.language import paper_tables, reproduction
from bayesrnn.lab.tasks.language.paper_tables import compared

TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=1", "samples=2"]
SETS = [part for setting in TINY for part in ("--set", setting)]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def row_of(folder, name="brnn-medium", data="some/ptb"):
    return reproduction.Row(name, recipes.load(name), 1, data, folder / "run", folder / "records")


def test_reproduce_runs_what_is_missing(text_folder, tmp_path):
    where = ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    shown = invoke("reproduce", "fortunato2017", *where)
    assert shown.exit_code == 0
    assert "70.70" in shown.stdout
    assert f"{tmp_path / 'results'} is missing, so there is nothing to compare" in shown.stderr
    result = invoke("reproduce", "fortunato2017", *where, "--data", text_folder, "--device", "cpu", *SETS)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "results" / "brnn-medium" / "1.json").exists()
    again = invoke("reproduce", "fortunato2017", *where, "--markdown")
    assert again.stderr == ""
    assert again.stdout.count("\n| brnn") == 12
    assert again.stdout.count("\n| ") == 12 + 2 + 3 + 4  # plain, variational, Zaremba
    assert again.stdout.count(f" (on {text_folder.name}, data.batch_size=4, ") == 21  # not as if it were the paper's
    without = [line for line in again.stdout.splitlines() if "–" in line]
    assert len(without) == 2  # sharpened: dynamic evaluation of the mean, where the published figures are bounds
    assert all("| – |" in line and "sharpened" in line for line in without)
    done = invoke("reproduce", "fortunato2017", *where, "--data", text_folder, "--device", "cpu", *SETS)
    assert done.exit_code == 0, done.output
    assert "epoch 1/1" not in done.stdout
    assert len(list((tmp_path / "results").glob("*/*.json"))) == 5
    refused = invoke("reproduce", "fortunato2017", *where, "--data", text_folder, *SETS, "--set", "train.lr=0.5")
    assert refused.exit_code == 2
    assert "brnn-medium/1 holds a run with other settings or on another text; move it" in refused.stderr
    other = shutil.copytree(text_folder, tmp_path / text_folder.name)  # of the same name, with other words to test on
    (other / "test.txt").write_text(" ".join((other / "test.txt").read_text().split()[::-1]) + "\n")
    kept = (tmp_path / "runs" / "brnn-medium" / "1" / "record.json").read_text()
    elsewhere = ["--results", tmp_path / "others", "--runs", tmp_path / "runs"]
    refused = invoke("reproduce", "fortunato2017", *elsewhere, "--data", other, "--device", "cpu", *SETS)
    assert refused.exit_code == 2
    assert "another digest. Move the run" in refused.stderr
    assert (tmp_path / "runs" / "brnn-medium" / "1" / "record.json").read_text() == kept
    (tmp_path / "results" / "brnn-medium" / "2.json").write_text("[]")
    assert "is not a record" in invoke("reproduce", "fortunato2017", *where).stderr
    (tmp_path / "file").write_text("{}")
    refused = invoke("reproduce", "fortunato2017", "--results", tmp_path / "file")
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"bayesrnn: {tmp_path / 'file'} is a file; name the folder of records with --results.\n",
    )
    refused = invoke("reproduce", "sentiment").stderr
    assert "There is no table sentiment; choose gal2016 (dropout in recurrent networks, arXiv 1512.05287) or" in refused
    assert "fortunato2017 (Bayes by Backprop" in refused
    for table in ("gal2016", "fortunato2017"):
        assert table in invoke("reproduce", "--help").stdout


def test_which_records_make_a_row_done(tmp_path, monkeypatch):
    """One of the seed, with the recipe's settings as they are now, on a text of that name, and all figures."""
    folder = tmp_path / "results" / "brnn-medium"
    folder.mkdir(parents=True)
    recipe = recipes.load("brnn-medium")
    settings = recipe.model_dump()
    metrics = {key: 1.0 for _, key, _ in paper_tables.published_metrics(recipe)}
    assert set(metrics) == {
        "valid_perplexity", "test_perplexity", "valid_perplexity_dynamic", "test_perplexity_dynamic", "entropy_gap",
        "entropy_gap_mean",
    }  # fmt: skip
    own = {"recipe": "brnn-medium", "seed": 1, "data": "ptb", "settings": settings, "metrics": metrics}
    old = {**own, "settings": {**settings, "model": {**settings["model"], "one_bias": False}}}
    ran = []
    monkeypatch.setattr(reproduction, "_run", lambda console, row, *rest: ran.append((row.name, row.seed)))
    words = ["reproduce", "fortunato2017", "--data", "some/ptb", "--results", tmp_path / "results"]
    cases = {
        "own": own,
        "old": old,
        "seed": {**own, "seed": 2},
        "text": {**own, "data": "docs"},
        "": {"seed": 1, "metrics": metrics},
        "no figure": {**own, "metrics": {k: v for k, v in metrics.items() if k != "entropy_gap"}},
        "null": {**own, "metrics": {**metrics, "test_perplexity_dynamic": None}},
        "other rule": {**own, "metrics": {**metrics, "dynamic_rule": "rms"}},
        "no number": {**own, "metrics": {**metrics, "test_perplexity": "low"}},
    }
    for case, record in cases.items():
        ran.clear()
        (folder / "1.json").write_text(json.dumps(record))
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        others = ["brnn-sharpened-medium", "unregularised-small", "variational-tied-medium", "zaremba-medium"]
        assert ran == [(name, 1) for name in ["brnn-medium"] * (case != "own") + others]
    (folder / "ptb-1.json").write_text(json.dumps(own))  # of two that fit the one that has all
    ran.clear()
    assert invoke(*words).exit_code == 0
    assert ran == [(name, 1) for name in others]


def test_the_rule_of_dynamic_evaluation_is_named_where_it_is_not_the_papers():
    """Figures of two rules are never averaged; records of an earlier version have one rule."""
    recipe = recipes.load("brnn-medium")
    settings = recipe.model_dump()

    def lines_of(*metrics):
        own = {"recipe": "brnn-medium", "data": "ptb", "settings": settings}
        made = [Record(**own, seed=seed, metrics=each) for seed, each in enumerate(metrics)]
        found = paper_tables.compared("brnn-medium", recipe, made)
        return [(x["measure"], x["paper"], x["ours"], x["seeds"]) for x in found if "dynamic" in x["measure"]]

    old = {"valid_perplexity_dynamic": 74.0, "test_perplexity_dynamic": 71.0}
    rms = {"dynamic_rule": "rms", "valid_perplexity_dynamic": 72.0, "test_perplexity_dynamic": 70.0}
    rules = {"rms": {"valid_perplexity": 72.5, "test_perplexity": 70.5}, "sgd": {"valid_perplexity": 73.0}}
    both = {**rms, "dynamic_by_rule": rules}
    assert lines_of({}) == [("valid, dynamic", 73.4, None, None), ("test, dynamic", 70.7, None, None)]
    assert lines_of(old) == lines_of({**old, "dynamic_rule": "sgd"})
    assert lines_of(old) == [("valid, dynamic", 73.4, "74.00", 1), ("test, dynamic", 70.7, "71.00", 1)]
    assert lines_of(rms) == [
        ("valid, dynamic", 73.4, None, None), ("valid, dynamic (rms)", None, "72.00", 1),
        ("test, dynamic", 70.7, None, None), ("test, dynamic (rms)", None, "70.00", 1),
    ]  # fmt: skip
    assert lines_of(old, both, {}) == [
        ("valid, dynamic", 73.4, "73.50 ± 0.71", 2), ("valid, dynamic (rms)", None, "72.50", 1),
        ("test, dynamic", 70.7, "71.00", 1), ("test, dynamic (rms)", None, "70.50", 1),
    ]  # fmt: skip
    bounds = {"sgd": {"test_perplexity": 71.0, "test_perplexity_bound": 70.8}, "rms": {"test_perplexity_bound": 69.9}}
    assert lines_of({"dynamic_by_rule": bounds})[-3:] == [
        ("test, dynamic", 70.7, "71.00", 1), ("test, dynamic (bound)", None, "70.80", 1),
        ("test, dynamic (rms, bound)", None, "69.90", 1),
    ]  # fmt: skip
    recipe = recipes.load("brnn-sharpened-medium")  # its published figures are bounds
    settings = recipe.model_dump()
    assert lines_of({"dynamic_by_rule": bounds})[-3:] == [
        ("test, dynamic (bound)", 69.8, "70.80", 1), ("test, dynamic", None, "71.00", 1),
        ("test, dynamic (rms, bound)", None, "69.90", 1),
    ]  # fmt: skip
    assert lines_of({}) == [("valid, dynamic (bound)", 72.6, None, None), ("test, dynamic (bound)", 69.8, None, None)]


def test_a_sharpened_row_lacks_its_bound_of_dynamic_evaluation(tmp_path):
    row = reproduction.Row("brnn-sharpened-medium", recipes.load("brnn-sharpened-medium"), 1, "ptb", tmp_path, tmp_path)
    static = {"valid_perplexity_bound": 78.0, "test_perplexity_bound": 75.0}
    plain = {"valid_perplexity": 74.0, "test_perplexity": 71.0}
    bounds = {"valid_perplexity_bound": 73.5, "test_perplexity_bound": 70.5}
    assert row.lacking({**static, "dynamic_by_rule": {"sgd": plain}}) == ["valid_dynamic", "test_dynamic"]
    assert row.lacking({**static, "dynamic_by_rule": {"sgd": plain | bounds}}) == []


def test_copies_of_a_record_are_one_seed(reproduced, tmp_path):
    """A record of a run folder beside that of results/, and a copied file."""
    folder = shutil.copytree(reproduced / "results" / "brnn-medium", tmp_path / "brnn-medium")
    shutil.copy(reproduced / "runs" / "brnn-medium" / "1" / "record.json", folder / "record.json")
    shutil.copy(folder / "1.json", folder / "1 (copy).json")
    lines = compared("brnn-medium", recipes.load("brnn-medium"), read_folder(folder))
    assert [line["seeds"] for line in lines] == [1] * 6
    assert not any("±" in line["ours"] for line in lines)
    two = json.loads((folder / "1.json").read_text())
    (folder / "2.json").write_text(json.dumps({**two, "seed": 2}))
    lines = compared("brnn-medium", recipes.load("brnn-medium"), read_folder(folder))
    assert [line["seeds"] for line in lines] == [2] * 6


def test_where_a_record_goes(tmp_path):
    row = row_of(tmp_path)
    row.folder.mkdir()
    for name in ("1.json", "ptb-1.json", "ptb-1-2.json"):
        assert row.free() == row.folder / name
        row.free().write_text("{}")
    assert dataclasses.replace(row, seed=2).free().name == "2.json"
    for name in ("1.json.before", "1.json.before-2", "1.json.before-3"):
        assert reproduction._before(row.folder / "1.json") == row.folder / name
        (row.folder / name).write_text("{}")


def test_a_folder_of_records_that_cannot_be_is_known_before_training(text_folder, tmp_path):
    (tmp_path / "results").write_text("")
    where = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--data", text_folder]
    result = invoke("reproduce", "fortunato2017", *where, *SETS)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"bayesrnn: {tmp_path / 'results' / 'brnn-medium'} cannot be made (Not a directory)"
    )
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_published_table_in_a_narrow_terminal(tmp_path, monkeypatch):
    """Long names are folded; no figure is lost."""
    folder = tmp_path / "brnn-medium"
    folder.mkdir()
    changed = recipes.override(recipes.load("brnn-medium"), ["hidden=8", "epochs=1", "lr=0.125", "clip=1", "pi=0.5"])
    record = {"recipe": "brnn-medium", "seed": 1, "data": "a-text", "settings": changed.model_dump()}
    (folder / "1.json").write_text(json.dumps({**record, "metrics": {"test_perplexity": 1234.56}}))
    for width in (66, 140):
        monkeypatch.setattr("bayesrnn.lab.console.output.plain_console", lambda width=width: Console(width=width))
        shown = invoke("reproduce", "fortunato2017", "--results", tmp_path).stdout
        assert max(map(len, shown.splitlines())) <= width
        for word in ("measure", "paper", "ours", "seeds", "1234.56", "70.70", "entropy gap, mean", "a-text"):
            assert word in shown
        assert shown.count("brnn-medium") == 1


@pytest.fixture(scope="module")
def reproduced(text_folder, tmp_path_factory):
    """Both rows of a table, run with tiny settings."""
    folder = tmp_path_factory.mktemp("reproduced")
    where = ["--results", folder / "results", "--runs", folder / "runs", "--data", text_folder, "--device", "cpu"]
    assert invoke("reproduce", "fortunato2017", *where, *SETS).exit_code == 0
    return folder


@pytest.fixture
def here(reproduced, text_folder, tmp_path):
    folder = shutil.copytree(reproduced, tmp_path / "here")
    where = ["--results", folder / "results", "--runs", folder / "runs", "--data", text_folder, "--device", "cpu"]
    return folder, ["reproduce", "fortunato2017", *where, *SETS]


def change(path, **metrics):
    """Put figures into a record; None takes one away."""
    record = json.loads(path.read_text())
    record["metrics"] = {k: v for k, v in {**record["metrics"], **metrics}.items() if v is not None}
    path.write_text(json.dumps(record))
    return record


def floats(record):
    return {key: value for key, value in record["metrics"].items() if isinstance(value, float)}


LACKING = dict.fromkeys(("valid_perplexity_dynamic", "test_perplexity_dynamic", "dynamic_lr", "dynamic_by_rule"))


@pytest.mark.parametrize("since", [False, True])
def test_a_bound_is_measured_at_the_rate_that_was_chosen(here, since):
    """Records from before there was one have a rate of their own; where the run was evaluated since, that counts."""
    folder, words = here
    file = folder / "results/brnn-sharpened-medium/1.json"
    run = folder / "runs/brnn-sharpened-medium/1"
    rates = ["--samples", "0", "--dynamic", "--dynamic-lr", "0.2,0.25", "--dynamic-decay", "0.01"]
    assert invoke("evaluate", run, *rates, "--device", "cpu").exit_code == 0
    whole = json.loads((run / "record.json").read_text())["metrics"]
    old = {key: value for key, value in whole["dynamic_by_rule"]["sgd"].items() if "bound" not in key}
    assert old["lr"] == 0.2
    bounds = dict.fromkeys(f"{split}_perplexity_dynamic_bound" for split in ("valid", "test"))
    change(file, **{**whole, **bounds, "dynamic_by_rule": {"sgd": {**old, "lr": 0.2 if not since else 0.3}}})
    if not since:
        change(run / "record.json", **bounds, dynamic_by_rule={"sgd": old})
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert f"{file} lacks valid_dynamic, test_dynamic" in result.stdout
    assert ("dynamic evaluation on valid" in result.stdout) is not since
    for path in (file, run / "record.json"):
        assert json.loads(path.read_text())["metrics"]["dynamic_by_rule"] == {
            "sgd": {key: pytest.approx(value) for key, value in whole["dynamic_by_rule"]["sgd"].items()}
        }


def test_a_figure_of_any_size_is_shown(tmp_path):
    record = {"recipe": "brnn-medium", "seed": 1, "data": "ptb", "metrics": {"test_perplexity": 2.4e94}}
    (tmp_path / "brnn-medium").mkdir()
    (tmp_path / "brnn-medium" / "1.json").write_text(json.dumps(record))
    shown = invoke("reproduce", "fortunato2017", "--results", tmp_path).stdout
    assert "2.40e+94" in shown
    assert "75.50" in shown


def test_wrong_data_leave_no_folder(tmp_path):
    (tmp_path / "there").mkdir()
    for results in ("there", "new", "there/a/b"):
        result = invoke("reproduce", "gal2016", "--data", tmp_path / "none", "--results", tmp_path / results)
        assert result.exit_code == 2
        assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_rate_that_is_asked_for_counts(here):
    folder, words = here
    file = folder / "results/brnn-medium/1.json"
    old = {"sgd": {"lr": 0.3, "decay": 0.0, "valid_perplexity": 12.0}}
    change(file, **{**LACKING, "dynamic_by_rule": old})
    change(folder / "runs/brnn-medium/1/record.json", **{**LACKING, "dynamic_by_rule": old})
    result = invoke(*words, "--set", "evaluate.dynamic_lr=0.05")
    assert result.exit_code == 0, result.output
    assert json.loads(file.read_text())["metrics"]["dynamic_lr"] == 0.05


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_record_without_a_published_figure_is_evaluated_and_not_trained(here, evaluated):
    """Of its own run alone what is missing is measured; where the run has it, it is taken from there."""
    folder, words = here
    file, own = folder / "results/brnn-medium/1.json", folder / "runs/brnn-medium/1/record.json"
    whole = json.loads(file.read_text())
    change(file, **LACKING, entropy_gap=0.123)  # a figure of another evaluation of the same run
    if not evaluated:
        change(own, **LACKING)
    kept, weights = own.read_text(), (own.parent / "best.safetensors").stat().st_mtime_ns
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert f"brnn-medium, seed 1: {file} lacks valid_dynamic, test_dynamic\n" in result.stdout
    assert "epoch 1/1" not in result.stdout
    assert "brnn-sharpened-medium, seed 1" not in result.stdout
    record = json.loads(file.read_text())
    assert floats(record) == pytest.approx({**floats(whole), "entropy_gap": 0.123}, rel=1e-6)
    assert {**record, "metrics": 0} == {**whole, "metrics": 0}
    assert (own.read_text() == kept) is evaluated
    assert (own.parent / "best.safetensors").stat().st_mtime_ns == weights
    assert sorted(p.name for p in file.parent.iterdir()) == ["1.json"]
    assert "lacks" not in invoke(*words).stdout


def test_rules_of_the_run_and_of_the_record_are_both_kept(here):
    """The run was evaluated by the other rule since; the record lacks another figure, and gets all."""
    folder, words = here
    file, own = folder / "results/brnn-medium/1.json", folder / "runs/brnn-medium/1/record.json"
    rule = ["--dynamic", "--dynamic-rule", "rms", "--dynamic-lr", "1e-4"]
    assert invoke("evaluate", own.parent, "--samples", 0, *rule).exit_code == 0
    for path in (file, own):
        change(path, entropy_gap=None)
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    found, rules = (json.loads(path.read_text())["metrics"] for path in (file, own))
    assert found["dynamic_by_rule"] == rules["dynamic_by_rule"]
    assert set(found["dynamic_by_rule"]) == {"sgd", "rms"}
    assert found["valid_perplexity_dynamic"] == min(r["valid_perplexity"] for r in found["dynamic_by_rule"].values())
    assert "test, dynamic (rms)" in invoke(*words, "--markdown").stdout


def test_a_record_that_lacks_figures_and_whose_run_is_gone_is_trained_again(here):
    """The earlier record is kept under a name that no table reads."""
    folder, words = here
    shutil.rmtree(folder / "runs")
    file = folder / "results/brnn-medium/1.json"
    before = change(file, entropy_gap=None, valid_perplexity=1.5)
    before["started"] = "2020-01-01T00:00:00Z"
    file.write_text(json.dumps(before))
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert f"Its run is not in {folder / 'runs/brnn-medium/1'}: it is trained." in result.stdout
    assert f"{file} belonged to another run, and is now {file}.before." in result.stdout
    assert json.loads((file.parent / "1.json.before").read_text()) == before
    record = json.loads(file.read_text())
    assert record["metrics"]["entropy_gap"] is not None
    assert record["metrics"]["valid_perplexity"] > 1.5
    assert sorted(p.name for p in file.parent.iterdir()) == ["1.json", "1.json.before"]
    assert "lacks" not in invoke(*words).stdout


def test_settings_of_the_evaluation_are_those_given(here):
    folder, words = here
    file = folder / "results/brnn-medium/1.json"
    for path in (file, folder / "runs/brnn-medium/1/record.json"):
        change(path, **LACKING)
    before = file.read_text()
    result = invoke(*words, "--set", "evaluate.dynamic_lr=1e30")
    assert result.exit_code == 2
    assert "diverged on valid with rate 1e+30" in result.stderr
    assert "(Here the rate is --set evaluate.dynamic_lr=RATE.)\n" in result.stderr
    assert result.stderr.count("\n") == 1
    assert file.read_text() == before
    assert invoke(*words, "--set", "evaluate.dynamic_lr=0.01").exit_code == 0
    assert json.loads(file.read_text())["metrics"]["dynamic_lr"] == 0.01


def test_figures_made_with_other_settings_than_those_asked_for_are_kept_and_it_is_said(here):
    folder, words = here
    files = sorted((folder / "results").glob("*/*.json"))
    before = [file.read_bytes() for file in files]
    result = invoke(*words, "--set", "evaluate.dynamic_lr=0.05", "--set", "evaluate.samples=3")
    assert result.exit_code == 0, result.output
    for name, made in (("brnn-medium", "evaluate.dynamic_lr=0.1"), ("variational-tied-medium", "evaluate.samples=2")):
        file = folder / "results" / name / "1.json"
        assert f"{file} has values measured with {made}, and keeps them; move it to measure others.\n" in result.stdout
    assert [file.read_bytes() for file in files] == before
    assert "has its values" not in invoke(*words).stdout


def test_stopped_it_goes_on(text_folder, tmp_path, monkeypatch):
    where = ["--results", tmp_path / "results", "--runs", tmp_path / "runs", "--data", text_folder, "--device", "cpu"]
    words = ["reproduce", "fortunato2017", *where, *SETS]

    def stop(run):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(engine.Run, "train", stop)
        result = invoke(*words)
    assert result.exit_code == 130
    assert result.stderr == "bayesrnn: interrupted.\n"
    assert "Stopped; the same command continues." in result.stdout
    run = tmp_path / "runs" / "brnn-medium" / "1"
    other = invoke(*words, "--set", "train.lr=0.5")
    assert other.exit_code == 2
    assert "holds an unfinished run with other settings or another text; continue with the same, move" in other.stderr
    assert "--force" not in other.stderr
    assert (run / MARKER).exists()
    (run / "metrics.jsonl").write_text("{}\n")
    lost = invoke(*words)  # an error of training, which names that command's options
    assert lost.exit_code == 2
    assert f"start over with --force. (Those are options of bayesrnn train; here move {run}, or" in lost.stderr
    assert lost.stderr.count("\n") == 1
    (run / "metrics.jsonl").unlink()
    again = invoke(*words)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "results" / "brnn-medium" / "1.json").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"notes.txt": "mine"}, "holds files and no run; move it, or choose another --runs."),
        ({"record.json": "[]"}, "holds a run with other settings or on another text; move it"),
        ({MARKER: "", "config.json": '{"seed": 2}'}, "holds an unfinished run with other settings"),
    ],
)
def test_a_folder_of_runs_with_something_else_in_it(tmp_path, files, message):
    row = row_of(tmp_path)
    reproduction._check_folder(row)  # nothing there
    row.out.mkdir()
    reproduction._check_folder(row)
    for name, text in files.items():
        (row.out / name).write_text(text)
    with pytest.raises(UserError, match=message):
        reproduction._check_folder(row)
