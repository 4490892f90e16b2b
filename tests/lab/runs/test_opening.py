import json
import shutil

import pytest
import torch
from torch import nn

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.runs import checkpoint, sizes
from bayesrnn.lab.runs.opening import OpenedRun, check_task, open_run
from bayesrnn.lab.tasks.base import task_class
from bayesrnn.lab.text import vocabulary_of

CPU = torch.device("cpu")
TINY = ["hidden=8", "batch_size=4", "window=6", "epochs=1"]


class Quiet:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def forget_the_run(folder):
    """As checkpoints were before the best one said whose it is."""
    tensors, about = checkpoint.load(folder / checkpoint.BEST)
    del about["run"]
    checkpoint.save_file(folder / checkpoint.BEST, tensors, about)


def test_weights_of_another_run_and_a_changed_config(line_recipe, tmp_path):
    for seed in (1, 2):
        launch(line_recipe, out=tmp_path / str(seed), reporter=Quiet(), device="cpu", seed=seed)
    own = (tmp_path / "1" / checkpoint.BEST).read_bytes()
    shutil.copy(tmp_path / "2" / checkpoint.BEST, tmp_path / "1" / checkpoint.BEST)
    with pytest.raises(UserError, match=r"best.safetensors does not belong to .*config.json: it is another run's") as e:
        open_run(tmp_path / "1", CPU)
    assert "\n" not in str(e.value)
    (tmp_path / "1" / checkpoint.BEST).write_bytes(own)
    open_run(tmp_path / "1", CPU)
    config = config_of(tmp_path / "1")
    config["settings"]["train"]["lr"] = 0.5
    (tmp_path / "1" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"or config\.json was changed afterwards"):
        open_run(tmp_path / "1", CPU)
    forget_the_run(tmp_path / "1")  # an earlier version's: nothing says that it is not
    open_run(tmp_path / "1", CPU)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("small-plain", "text"),
        ("sentiment-gru-plain", "reviews"),
        ("digits-mlp-plain", "images"),
        ("caption-dropout", "images"),
    ],
)
def test_data_that_is_not_where_the_run_found_it(name, source, tmp_path, monkeypatch):
    """Of every task: it is said that the run's config.json names it, and what to do."""
    monkeypatch.chdir(tmp_path)

    def refused(named, data=None):
        run = OpenedRun(tmp_path / "run", {"data": named}, recipes.load(name), {}, nn.Linear(1, 1))
        with pytest.raises(UserError) as error:
            run.task(data, CPU)
        return str(error.value)

    said = f"{tmp_path / 'run' / 'config.json'} has NAMED as the {source} of this run"
    seen = "(a path from where it was trained), and it is not there; name it with --data."
    assert refused("old/data") == f"{said.replace('NAMED', 'old/data')} {seen}"
    gone = str(tmp_path / "gone")
    assert refused(gone) == f"{said.replace('NAMED', gone)}, and it is not there; name it with --data."
    (tmp_path / "here").mkdir()  # something else has the name
    found = refused("here")
    assert found.startswith(f"{said.replace('NAMED', 'here')}: ")
    assert found.endswith(". If it is elsewhere now, name it with --data.")
    assert "config.json" not in refused("old/data", data="given")  # the command's, not the run's


def test_a_language_run_of_before_there_were_tasks(text_folder, tmp_path):
    record = launch(
        "small-plain", out=tmp_path / "r", reporter=Quiet(), data=str(text_folder), overrides=TINY, device="cpu"
    )
    config = config_of(tmp_path / "r")
    del config["files"], config["file_digests"], config["settings"]["task"]
    for key in ("momentum", "l2", "inverse_gamma", "average_from"):
        del config["settings"]["train"][key]
    (tmp_path / "r" / "config.json").write_text(json.dumps(config))
    forget_the_run(tmp_path / "r")
    trained = open_run(tmp_path / "r", CPU)
    assert not trained.model.training
    assert trained.recipe.task == "language"
    task = trained.task(None, CPU)
    assert task.final()["test_perplexity"] == record.metrics["test_perplexity"]
    assert vocabulary_of(trained.files).words == task.streams.vocabulary.words
    assert torch.equal(trained.task(str(text_folder), CPU).streams.test, task.streams.test)


def test_a_run_of_another_task_is_opened_without_its_data(line_recipe, tmp_path):
    record = launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    trained = open_run(tmp_path / "r", CPU)
    assert dict(trained.files) == {"scale.txt": b"1\n"}
    assert trained.task(None, CPU).validate()["valid_rmse"] == record.metrics["valid_rmse"]
    said = "is a line run; this command is for language models. For this run: bayesrnn evaluate "
    with pytest.raises(UserError, match=said):
        check_task(tmp_path / "r", "language")


def test_files_are_taken_from_the_run_alone(line_recipe, tmp_path):
    launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    (tmp_path / "secret").write_text("x")
    config = config_of(tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text(json.dumps({**config, "files": ["../secret"]}))
    with pytest.raises(UserError, match="r/secret cannot be read"):
        open_run(tmp_path / "r", CPU)
    for broken in ({**config, "files": 3}, {**config, "settings": None}, []):
        (tmp_path / "r" / "config.json").write_text(json.dumps(broken))
        with pytest.raises(UserError):
            open_run(tmp_path / "r", CPU)


def test_files_that_are_not_the_run_s(line_recipe, tmp_path):
    launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    (tmp_path / "r" / "scale.txt").write_bytes(b"2\n")
    with pytest.raises(
        UserError, match=r"r/scale\.txt is not the file that the run was trained with: config\.json has"
    ):
        open_run(tmp_path / "r", CPU)
    (tmp_path / "r" / ".unfinished").write_text("")
    with pytest.raises(UserError, match=r"scale\.txt is not the file that the run was trained with"):
        launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu", resume=True)
    config = config_of(tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text(json.dumps({**config, "file_digests": 3}))
    with pytest.raises(UserError, match="is not the file"):
        open_run(tmp_path / "r", CPU)
    del config["file_digests"]  # an earlier version's: nothing to compare with
    (tmp_path / "r" / "config.json").write_text(json.dumps(config))
    forget_the_run(tmp_path / "r")
    assert dict(open_run(tmp_path / "r", CPU).files) == {"scale.txt": b"2\n"}


def test_best_weights_that_are_not_there(line_recipe, tmp_path):
    """What is said is true of the run, and what mends it is named."""
    launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    best, marker = tmp_path / "r" / checkpoint.BEST, tmp_path / "r" / ".unfinished"

    def refused():
        with pytest.raises(UserError) as error:
            open_run(tmp_path / "r", CPU)
        return str(error.value).removeprefix(f"There is no checkpoint {best}; ")

    best.unlink()
    assert refused() == "the run had finished: put its file back, or start it over with --force."
    marker.write_text("")
    stopped = "was the run stopped before its first epoch ended?"
    go_on = "The same bayesrnn train with --resume continues the run, and writes the file."
    assert refused() == f"{stopped} {go_on}"
    best.mkdir()
    assert refused() == f"that path is not a regular file; move it. {go_on}"
    best.rmdir()
    config = config_of(tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text(json.dumps({**config, "pruned": {}}))
    steps = "If weights are removed in steps, that is the first epoch after the last step."
    again = go_on.replace("train with --resume", "prune --retrain")
    assert refused() == f"{stopped} {steps} {again}"


def test_a_disk_that_was_full_as_the_best_weights_were_written(line_recipe, tmp_path, monkeypatch):
    def full(folder, tensors, about):
        raise UserError("full")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_best", full)
        with pytest.raises(UserError, match="full"):
            launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    with pytest.raises(UserError, match=r"train with --resume continues") as error:
        open_run(tmp_path / "r", CPU)
    assert "in steps" not in str(error.value)
    launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu", resume=True)
    open_run(tmp_path / "r", CPU)


def test_a_configuration_has_no_keys_of_its_own(line_recipe, tmp_path):
    launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu")
    (tmp_path / "r" / "config.json").write_text(json.dumps({**config_of(tmp_path / "r"), "sede": 3}))
    with pytest.raises(UserError, match=r"config\.json has an unknown key 'sede'; known are program, format, recipe"):
        open_run(tmp_path / "r", CPU)
    (tmp_path / "r" / ".unfinished").write_text("")
    with pytest.raises(UserError, match=r"config\.json has an unknown key 'sede'"):
        launch(line_recipe, out=tmp_path / "r", reporter=Quiet(), device="cpu", resume=True)


@pytest.mark.slow
def test_the_size_of_a_model_is_found_without_the_compiler():
    """Every command that opens a run does this: it must not take the seconds that torch's compiler takes to load."""
    import subprocess
    import sys

    code = """
import sys
from bayesrnn.lab import recipes
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.tasks.base import task_class
words = b'{"words": ["a", "b"], "mean": 0.5, "sd": 0.2}'
files = {"vocabulary.txt": b"<unk>\\n<eos>\\na\\n", "words.json": words}
for name in ("brnn-medium", "moon-medium", "digits-bbb-400", "sentiment-lstm-variational"):
    recipe = recipes.load(name)
    model = sizes.outline(task_class(recipe.task), recipe, files, where=name)
    assert {p.device.type for p in model.parameters()} == {"meta"}
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_a_model_of_more_weights_than_can_be_counted():
    recipe = recipes.override(recipes.load("forecast"), ["model.hidden=1000000000"])
    files = task_class("forecast")(recipe, None, torch.device("cpu")).files()
    with pytest.raises(UserError, match=r"^forecast describes a model of more weights than any memory holds.*hidden"):
        sizes.outline(task_class("forecast"), recipe, files, where="forecast")
