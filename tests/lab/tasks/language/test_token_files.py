import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.tasks.language import token_files
from bayesrnn.lab.tasks.language.task import Language
from bayesrnn.lab.tasks.language.text import read_folder, words_of
from bayesrnn.lab.tasks.language.token_files import TokenFolder, tokenize
from bayesrnn.lab.text import Vocabulary, batchify

TINY = ["hidden=6", "layers=1", "batch_size=4", "window=6", "epochs=2", "save_every=20", "lr=0.2"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text_folder(long_text_folder):
    return long_text_folder


def joined(file, chunk):
    return [word for part in words_of(file, chunk=chunk) for word in part]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab é€😀\n\r\t\v\f\x1c\x1e\x1f\x85\u2028\u2029\u3000\ufeff", max_size=60), st.integers(1, 9))
def test_pieces_of_a_text_are_the_text(tmp_path_factory, text, chunk):
    file = tmp_path_factory.getbasetemp() / "text"
    file.write_bytes(text.encode())
    lines = text.encode().decode("utf-8-sig").splitlines()
    assert joined(file, chunk) == [word for line in lines for word in (*line.split(), "<eos>")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a" * 10 + b"\xff\xfe b", r"is not UTF-8 text \(byte 10\)"),
        (b"ab\n" * 3 + "é".encode()[:1], r"is not UTF-8 text \(byte 9\)"),
        (b"a b\n\0", "is a binary file"),
    ],
)
@pytest.mark.parametrize("chunk", [3, 1000])
def test_what_is_no_text(tmp_path, content, message, chunk):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=message):
        joined(tmp_path / "x", chunk)


def test_a_word_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("bayesrnn.lab.tasks.language.text._LONGEST", 50)
    (tmp_path / "x").write_text("a b " + "c" * 100)
    with pytest.raises(UserError, match="a word of more than 50 characters"):
        joined(tmp_path / "x", 10)
    with pytest.raises(UserError, match="cannot be read"):
        joined(tmp_path / "none", 10)


@pytest.fixture
def tokens(text_folder, tmp_path):
    tokenize(text_folder, tmp_path / "tokens")
    return tmp_path / "tokens"


def test_token_files_hold_what_the_text_holds(text_folder, tmp_path):
    for min_count in (1, 200):
        out = tmp_path / str(min_count)
        about = tokenize(text_folder, out, min_count=min_count)
        corpus, found = read_folder(text_folder), TokenFolder(out)
        expected = Vocabulary(corpus.train, min_count=min_count)
        assert found.vocabulary.words == expected.words
        for split in ("train", "valid", "test"):
            text = getattr(corpus, split)
            assert torch.equal(found.read(split), expected.encode(text))
            assert found.unknown[split] == about["unknown"][split] == expected.unknown(text)
        assert about["type"] == "<u2"
        assert (out / "train.tokens").stat().st_size == 2 * len(corpus.train)
    assert found.unknown["train"] > 0


def test_the_most_frequent_words(text_folder, tmp_path):
    about = tokenize(text_folder, tmp_path / "t", words=5)
    assert about["vocabulary"] == 6
    assert TokenFolder(tmp_path / "t").vocabulary.words == Vocabulary(read_folder(text_folder).train).words[:6]
    assert tokenize(text_folder, tmp_path / "all", words=1000)["vocabulary"] == 14


def test_large_vocabularies_take_four_bytes(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(f"w{i}" for i in range(70_000)))
    about = tokenize(tmp_path, tmp_path / "t")
    assert about["type"] == "<u4"
    found = TokenFolder(tmp_path / "t")
    assert found.vocabulary.decode(found.read("valid")[-3:]) == ["w69998", "w69999", "<eos>"]


def test_streams_on_disk_are_streams(tokens):
    disk, memory = language(tokens).streams, batchify(TokenFolder(tokens).read("train"), 4)
    assert disk.on_disk
    assert torch.equal(disk.train.long(), memory)
    assert torch.equal(disk.part(slice(2, 4)).train.long(), memory[:, 2:4])


def run(data, out, *, overrides=(), **kwargs):
    class Quiet:
        def say(self, text): ...
        def step(self, progress): ...
        def epoch(self, line, epochs): ...

    reporter = kwargs.pop("reporter", Quiet())
    return launch("brnn-medium", out=out, reporter=reporter, data=str(data), overrides=[*TINY, *overrides],
                  device="cpu", **kwargs)  # fmt: skip


def test_training_from_disk_is_training_from_memory(text_folder, tokens, tmp_path):
    memory, disk = run(text_folder, tmp_path / "memory"), run(tokens, tmp_path / "disk")
    assert disk.curves == memory.curves
    assert disk.metrics["test_perplexity"] == memory.metrics["test_perplexity"]
    assert disk.extra["unknown_words"] == memory.extra["unknown_words"]
    ours, theirs = (checkpoint.load(tmp_path / name / "last.safetensors")[0] for name in ("disk", "memory"))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("huge", [False, True])
def test_a_text_has_the_digest_of_its_token_files(text_folder, tokens, monkeypatch, huge):
    if huge:
        monkeypatch.setattr(token_files, "_WHOLE", 100)
        monkeypatch.setattr(token_files, "_BLOCKS", 7)
        monkeypatch.setattr(token_files, "_BLOCK", 10)
    digest = language(text_folder).digest()
    assert language(tokens).digest() == digest
    file = tokens / "train.tokens"
    words = np.fromfile(file, "<u2")
    last = len(words) - len(words) % 4 - 1  # the last one that is in a stream
    seen = 0
    for at in (0, last, *range(20, 60)):
        changed = words.copy()
        changed[at] = (changed[at] + 1) % 5
        changed.tofile(file)
        seen += language(tokens).digest() != digest
    assert seen == (2 if huge else 42)
    np.delete(np.append(words, words[:1]), 30).tofile(file)  # all that follows is shifted
    assert language(tokens).digest() != digest


def test_a_run_from_disk_is_resumed_exactly(tokens, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesrnn.lab.engine.loop._LOOK_EVERY", 1)
    whole = run(tokens, tmp_path / "whole")

    class Stopped:
        def say(self, text): ...
        def step(self, progress):
            if (progress.epoch, progress.step) == (2, 30):
                raise KeyboardInterrupt

        def epoch(self, line, epochs): ...

    with pytest.raises(KeyboardInterrupt):
        run(tokens, tmp_path / "stopped", reporter=Stopped())
    assert run(tokens, tmp_path / "stopped", resume=True).curves == whole.curves


def test_evaluate_on_token_files(tokens, tmp_path):
    run(tokens, tmp_path / "r")
    invoke = CliRunner().invoke
    done = invoke(app, ["evaluate", str(tmp_path / "r"), "--samples", "2", "--dynamic"])
    assert done.exit_code == 0, done.output
    assert "test_perplexity_dynamic" in done.stdout
    refused = invoke(app, ["evaluate", str(tmp_path / "r"), "--samples", "2", "--dynamic", "--dynamic-rule", "rms"])
    assert refused.exit_code == 2
    assert "needs the training text in memory" in refused.stderr


def test_the_command(text_folder, tmp_path):
    arguments = ["tokenize", str(text_folder), str(tmp_path / "t"), "--min-count", "200", "--words", "5"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "train: 2,069 words" in done.stdout
    assert f"train on it with --data {tmp_path / 't'}" in done.stdout.replace("\n", " ")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "already holds token files; replace them with --force" in again.stderr
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0


def language(folder, *overrides):
    return Language(override(load("brnn-medium"), [*TINY, *overrides]), str(folder), CPU)


def test_bad_token_files(text_folder, tokens, tmp_path):
    with pytest.raises(UserError, match=r"data.min_count is 3, but the token files in .* were made with 1"):
        language(tokens, "min_count=3")
    with pytest.raises(UserError, match="The valid text has 286 words, fewer than one window of 400"):
        language(tokens, "window=400", "batch_size=1")
    with pytest.raises(UserError, match="The train text has 206 words in each of 10 streams"):
        language(tokens, "window=250", "batch_size=10")
    data = np.fromfile(tokens / "train.tokens", "<u2")
    data[0] = 999
    data.tofile(tokens / "train.tokens")
    with pytest.raises(UserError, match="is damaged: it has a number outside the vocabulary"):
        run(tokens, tmp_path / "r")
    data[:-1].tofile(tokens / "train.tokens")
    with pytest.raises(UserError, match=r"train.tokens is not whole; make the token files again with --force"):
        language(tokens)
    about = json.loads((tokens / "tokens.json").read_text())
    (tokens / "tokens.json").write_text(json.dumps({**about, "format": 2}))
    with pytest.raises(UserError, match="written by a newer bayesrnn"):
        language(tokens)
    (tokens / "tokens.json").write_text("{}")
    with pytest.raises(UserError, match="holds no whole token files"):
        language(tokens)


def test_nothing_half_made_is_left(text_folder, tmp_path, monkeypatch):
    def full(self, words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Vocabulary, "ids", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        tokenize(text_folder, tmp_path / "t")
    assert list((tmp_path / "t").iterdir()) == []
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("a\n" * 50)
    with pytest.raises(UserError, match="fewer than two different words"):
        tokenize(tmp_path, tmp_path / "u")
    assert not (tmp_path / "u").exists()


LIMITED = """
import re, resource, sys
from pathlib import Path
import torch
from bayesrnn.lab.tasks.language.text import read_folder
from bayesrnn.lab.tasks.language.token_files import tokenize
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language.task import Language
from bayesrnn.lab.engine.step import Step

def train(data):
    recipe = override(load("brnn-medium"), "hidden=4 layers=1 batch_size=100 window=20".split())
    task = Language(recipe, data, torch.device("cpu"))
    task.attach(task.build(recipe, task.files()).train())
    step = Step(task, recipe.train)
    for number in range(task.steps):  # all of the text is read
        task.fetch(number)
        if number % 200 == 0:
            step()
    return task.steps

text, small, out = sys.argv[1:]
torch.set_num_threads(1)
tokenize(small, out + "/warm-up")
train(out + "/warm-up")  # what is loaded once is loaded
data = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + (40 << 20),) * 2)
tokenize(text, out + "/tokens")
print(train(out + "/tokens"))
try:
    read_folder(text)
except MemoryError:
    print("the text itself does not fit")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts all memory on Linux only")
def test_constant_memory(tmp_path):
    """20 MB of text, 6 million words, with 40 MB for it all: as a list of words alone it would take more."""
    words = np.random.default_rng(0).integers(0, 20, 500_000)
    block = " ".join(f"w{word}" for word in words.tolist())
    for folder, count in (("large", 12), ("small", 1)):
        (tmp_path / folder).mkdir()
        text = " ".join([block] * count)
        (tmp_path / folder / "train.txt").write_text(text)
        for split in ("valid", "test"):
            (tmp_path / folder / f"{split}.txt").write_text(text[:10_000])
    arguments = [tmp_path / "large", tmp_path / "small", tmp_path]
    done = subprocess.run([sys.executable, "-c", LIMITED, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2999\nthe text itself does not fit\n"
    assert json.loads((tmp_path / "tokens" / "tokens.json").read_text())["tokens"]["train"] == 12 * len(words) + 1
