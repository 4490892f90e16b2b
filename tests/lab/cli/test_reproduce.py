"""``bayesrnn reproduce``: published values beside ours."""

import json

from rich.console import Console
from typer.testing import CliRunner

from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.runs.record import Record, read_folder
from bayesrnn.lab.tasks.language import paper_tables
from bayesrnn.lab.tasks.language.paper_tables import compared

TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=1"]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_runs_beside_the_papers_values(text_folder, tmp_path):
    runs = tmp_path / "runs"
    shown = invoke("reproduce", "fortunato2017", "--results", runs)
    assert shown.exit_code == 0
    assert "70.70" in shown.stdout
    assert f"{runs} is missing, so there is nothing to compare" in shown.stderr
    run = runs / "brnn-medium" / "1"
    trained = invoke("train", "brnn-medium", *TINY, "--data", text_folder, "--out", run, "--device", "cpu")
    assert trained.exit_code == 0, trained.output
    assert invoke("evaluate", run, "--dynamic", "--device", "cpu").exit_code == 0
    shown = invoke("reproduce", "fortunato2017", "--results", runs, "--markdown")
    assert shown.stderr == ""
    ours = [line for line in shown.stdout.splitlines() if f" (on {text_folder.name}, data.batch_size=4, " in line]
    assert len(ours) == 6  # not as if it were the paper's
    assert sum("| – | – |" in line for line in ours) == 2  # entropy gaps were not measured
    records = tmp_path / "results" / "brnn-medium"
    records.mkdir(parents=True)
    (records / "1.json").write_bytes((run / "record.json").read_bytes())
    again = invoke("reproduce", "fortunato2017", "--results", tmp_path / "results", "--markdown")
    assert again.stdout == shown.stdout
    (records / "2.json").write_text("[]")
    assert "is not a record" in invoke("reproduce", "fortunato2017", "--results", tmp_path / "results").stderr


def test_bad_input_is_one_line(tmp_path):
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


def test_copies_of_a_record_are_one_seed(tmp_path):
    """A record of a run folder beside that of results/, and a copied file."""
    recipe = recipes.load("brnn-medium")
    metrics = {key: 2.0 for _, key, _ in paper_tables.published_metrics(recipe)}
    record = {"recipe": "brnn-medium", "seed": 1, "data": "ptb", "started": "2026", "settings": recipe.model_dump()}
    (tmp_path / "1").mkdir()
    for name in ("1.json", "1 (copy).json", "1/record.json"):
        (tmp_path / name).write_text(json.dumps({**record, "metrics": metrics}))
    lines = compared("brnn-medium", recipe, read_folder(tmp_path))
    assert [line["seeds"] for line in lines] == [1] * 6
    assert not any("±" in line["ours"] for line in lines)
    (tmp_path / "2.json").write_text(json.dumps({**record, "seed": 2, "metrics": metrics}))
    lines = compared("brnn-medium", recipe, read_folder(tmp_path))
    assert [line["seeds"] for line in lines] == [2] * 6


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


def test_a_figure_of_any_size_is_shown(tmp_path):
    record = {"recipe": "brnn-medium", "seed": 1, "data": "ptb", "metrics": {"test_perplexity": 2.4e94}}
    (tmp_path / "brnn-medium").mkdir()
    (tmp_path / "brnn-medium" / "1.json").write_text(json.dumps(record))
    shown = invoke("reproduce", "fortunato2017", "--results", tmp_path).stdout
    assert "2.40e+94" in shown
    assert "75.50" in shown
