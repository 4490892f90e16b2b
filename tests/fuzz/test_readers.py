"""Readers of files that may come from anywhere: they read, or refuse with a `UserError`. `run.py` tries many more."""

import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import first_line, load_yaml, parse_json, printable, read_bytes, read_text, shown

HERE = Path(__file__).parent


def module(name):
    """One of the files beside this one, as a module of its own: those of the readers choose how inputs are made."""
    for other in ("readers", "fuzz_inputs", "fuzz_runs", "fuzz_saved", "fuzz_data", "fuzz_requests"):
        sys.modules.pop(other, None)
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


readers = module("readers")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", readers.READERS)
def test_it_reads_or_refuses(name):
    reader = readers.READERS[name]
    base = Path(tempfile.mkdtemp())
    told = {"read": 0, "refused": 0}

    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(reader.inputs())
    def one(value):
        folder = base / "input"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            reader.read(value, folder)
            told["read"] += 1
        except UserError as error:
            told["refused"] += 1
            message = str(error)
        else:
            message = ""
        assert len(message) <= 1000

    try:
        one()
    finally:
        shutil.rmtree(base)
    assert told["refused"] > 5


def test_pictures_of_any_numbers_are_drawn(monkeypatch, tmp_path):
    """With warnings as errors; `run.py` draws one record of a hundred."""
    runs, inputs = readers.runs, sys.modules[readers.Reader.__module__]
    monkeypatch.setattr(runs, "DRAWN", 1)
    drawn = []

    @settings(max_examples=2, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(inputs.renumbered(runs.a_record()), inputs.renumbered(runs.a_forecast()))
    def one(language, forecast):
        for made in (language, forecast):
            drawn.append(runs.read_record((json.dumps(made).encode(), True, b""), tmp_path).count(b"data:image/png"))

    one()
    assert max(drawn) > 3


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "anchors and aliases are not read"),
        ("a: 1\na: 2\n", "the key 'a' is there twice"),
        ("[" * 60_000, "nested more than 100 deep"),
        ("- " * 20_000, "recursion"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: 2001-99-99", "month must be in"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: !!timestamp 'x'", "not YAML"),
        ("a: !!int ''", "not YAML"),
        ("a: b\n---\nc: d\n", "single document"),
    ],
)
def test_yaml_that_is_not_read(text, said):
    """Without the limits, the first would fill the memory and the third would take hours."""
    with pytest.raises(UserError, match=said):
        load_yaml(text, where="mine.yaml")


@pytest.mark.parametrize("number", ["1:30", "-1:30", "12:30:45.5", "010", "-017", "1_000", "1_0.5", "0b11", "-0x1f"])
def test_numbers_that_yaml_1_1_and_1_2_do_not_read_alike(number):
    import yaml

    value = yaml.safe_load(number)
    assert isinstance(value, (int, float))  # to YAML 1.1
    for text in (number, f"train: {{epochs: {number}}}", f"- {number}", f"{number}: a"):
        with pytest.raises(UserError, match=rf"'{number}' is \S+ in YAML 1.1 and something else in 1.2: write the num"):
            load_yaml(text, where="x")
    assert load_yaml(f"'{number}'", where="x") == number


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("-3", -3), ("+5", 5), ("0", 0), ("007", 7), ("0x1F", 31), ("0.5", 0.5), (".5", 0.5), ("5.", 5.0),
     ("-1.5e-3", -1.5e-3), ("-.inf", -float("inf")), ("on", True), ("no", False), ("089", "089"), ("0o10", "0o10")],
)  # fmt: skip
def test_values_that_yaml_reads(text, value):
    found = load_yaml(text, where="x")
    assert found == value
    assert type(found) is type(value)


def test_yaml_that_is_read():
    assert load_yaml("a: [1, 2.5, x]\nb: {c: null}\n", where="x") == {"a": [1, 2.5, "x"], "b": {"c": None}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 101, "nested more than 100 deep"),
        ('{"a": 1, "a": 2}', "twice"),
        ("9" * 5000, "more than 300 digits"),
        ("{", "not JSON"),
    ],
)
def test_json_that_is_not_read(text, said):
    with pytest.raises(UserError, match=said):
        parse_json(text, where="x")


@given(st.recursive(st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(), lambda x: st.lists(x)))
def test_json_that_is_read(value):
    assert parse_json(json.dumps(value), where="x") == value


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '["a\\uDFFF"]', '{"\\udead": 1}', '{"a": {"b": ["\\ude00\\ud83d"]}}', b'"\xed\xa0\x80"']
)
def test_halves_of_characters_are_refused(text):
    """They can be neither printed nor written."""
    with pytest.raises(UserError, match=r"x is not JSON \(a text has half of a character"):
        parse_json(text, where="x")
    if isinstance(text, str):
        with pytest.raises(UserError, match=r"x is not YAML .* \(a text has half of a character"):
            load_yaml(text.replace("\\ude00\\ud83d", "\\ude00"), where="x")


def test_whole_characters_may_be_written_as_halves():
    assert parse_json('["\\ud83d\\ude00", "\\\\ud800"]', where="x") == ["\U0001f600", "\\ud800"]


def test_brackets_in_strings_are_not_nesting():
    words = ["[" * 300, '\\"[' * 50]
    assert parse_json(json.dumps(words), where="x") == words


def test_files_are_read_up_to_a_limit(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"x" * 100)
    assert read_bytes(file, most=100) == b"x" * 100
    with pytest.raises(UserError, match="is larger than"):
        read_bytes(file, most=99)
    file.write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        read_text(file, most=10)
    for path in (tmp_path, tmp_path / "none", "/dev/zero", "a\0b"):
        with pytest.raises(UserError, match="cannot be read"):
            read_bytes(path, most=10)


def test_what_messages_show():
    assert shown("x" * 100) == "'" + "x" * 78 + "…"
    assert shown(10**5000) == "a number of more than 30 digits"
    assert shown([[1]] * 3) == "a list of 3"
    assert printable("a\x1b[2Jb\nc") == "a [2Jb c"
    assert first_line(ValueError("")) == "ValueError"
    assert len(str(UserError("y" * 5000))) <= 1000
    assert str(UserError("short")) == "short"


def test_a_stranger_s_run_takes_no_more_memory_than_its_files(tmp_path):
    """A configuration that asks for a model of 10^14 weights: refused before anything is built."""
    for name, content in readers.runs.tiny_run().items():
        (tmp_path / name).write_bytes(content)
    config = json.loads((tmp_path / "config.json").read_text())
    import torch

    from bayesrnn.lab.runs.opening import open_run

    open_run(tmp_path, torch.device("cpu"))
    config["settings"]["model"]["hidden"] = 9_000_000
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="vocabulary or recipe are not those of the run"):
        open_run(tmp_path, torch.device("cpu"))
    config["settings"]["model"] |= {"hidden": 3, "layers": 10**8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"model\.layers is 100000000; it must be at most 1,000"):
        open_run(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ([], "its header is not a JSON object"),
        (3, "its header is not a JSON object"),
        ({"__metadata__": [1]}, "its header is not a JSON object"),
        ({"__metadata__": {"bayesrnn.2": [1]}}, "its description is not a JSON object"),
        ({"__metadata__": {"bayesrnn.2": "[]"}}, "its description is not a JSON object"),
        ({"__metadata__": {"bayesrnn.2": '{"checksum": 5}'}}, "its checksum is wrong: bytes have changed"),
    ],
)
def test_checkpoints_with_a_strange_header(header, said, tmp_path):
    from bayesrnn.lab.runs import checkpoint

    (tmp_path / "x.safetensors").write_bytes(readers.runs.safetensors_of(header, b""))
    with pytest.raises(checkpoint.Damaged, match=rf"x.safetensors is not a whole checkpoint \({said}"):
        checkpoint.load(tmp_path / "x.safetensors")


def test_names_of_files_do_not_leave_the_folder(tmp_path):
    for name, content in readers.runs.tiny_run().items():
        (tmp_path / name).write_bytes(content)
    config = json.loads((tmp_path / "config.json").read_text())
    import torch

    from bayesrnn.lab.runs.opening import open_run

    for names in (["../../../etc/passwd"], ["/dev/zero"], [".."], [3], "vocabulary.txt", ["a"] * 101):
        (tmp_path / "config.json").write_text(json.dumps({**config, "files": names}))
        with pytest.raises(UserError):
            open_run(tmp_path, torch.device("cpu"))


def test_a_model_that_does_not_fit_is_refused_before_training(tmp_path):
    from typer.testing import CliRunner

    from bayesrnn.lab.cli import app

    result = CliRunner().invoke(app, ["train", "small-plain", "hidden=300000", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "more than fits into this machine's memory" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["O", "<f8", "V0", ">u2", ["<u2"], None])
def test_token_files_are_read_as_numbers_of_words_alone(tmp_path, kind):
    """As objects ("O") their bytes would be taken for addresses."""
    from bayesrnn.lab.tasks.language.token_files import TokenFolder

    files = readers.data.token_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    about = json.loads(files["tokens.json"])
    assert len(TokenFolder(tmp_path).read("train")) == about["tokens"]["train"]
    (tmp_path / "tokens.json").write_text(json.dumps({**about, "type": kind}))
    with pytest.raises(UserError, match=r"holds no whole token files \(tokens\.json: type: Input should be"):
        TokenFolder(tmp_path)
    for changed, said in (
        ({"format": 2}, "written by a newer bayesrnn"),
        ({"tokens": {**about["tokens"], "valid": -1}}, r"tokens\.valid: Input should be greater than or equal to 0"),
        ({"unknown": {}}, r"unknown\.train: Field required"),
    ):
        (tmp_path / "tokens.json").write_text(json.dumps({**about, **changed}))
        with pytest.raises(UserError, match=said):
            TokenFolder(tmp_path)


def test_absurd_headers_take_no_memory(tmp_path):
    """A PNG of 81 megapixels, one of a pixel's height; .npy: a header of 4 GB, 10^18 values, sizes that crash numpy."""
    import resource

    import numpy as np

    from bayesrnn.lab.tasks.captioning.image_features import open_image, read_features

    image, file = tmp_path / "a.png", tmp_path / "f.npy"
    (tmp_path / "filenames.json").write_text("[]")
    np.save(file, np.zeros((0, 3), np.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width, height in ((9_000, 9_000), (20_000, 1)):
        image.write_bytes(readers.data.png_of(width, height, 8, 2, b""))
        with pytest.raises(UserError, match=f"{width} by {height} pixels"):
            open_image(image)
    file.write_bytes(b"\x93NUMPY\2\0" + b"\xff" * 4 + b"{")
    with pytest.raises(UserError, match=r"not a .npy file of numbers"):
        read_features(file)
    for kind, shape in (
        ("<f4", f"({10**9}, {10**9})"),
        ("|V0", f"({10**18},)"),
        ("|V0", "(-1, )"),
        ("<f4", "(3 4)"),
        ("|O", "(1, 1)"),
        ("<é", "(1,)"),
    ):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n"
        file.write_bytes(readers.data.npy_of(header, b"1234"))
        with pytest.raises(UserError, match=r"not a .npy file of numbers|one row of floating-point features"):
            read_features(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_a_limit_is_no_size(tmp_path):
    """A small file is not read into a buffer of the most that it may have."""
    (tmp_path / "a").write_bytes(b"abc")
    assert read_bytes(tmp_path / "a", most=1 << 50) == b"abc"


@pytest.fixture
def command(monkeypatch):
    """The module of the command, with quick inputs and without a limit of memory for this process."""
    monkeypatch.setenv("BAYESRNN_FUZZ_QUICK", "1")  # as the command does; undone after the test
    monkeypatch.syspath_prepend(str(HERE))
    module("readers")
    run = importlib.import_module("run")
    monkeypatch.setattr(run, "_limit_memory", lambda: None)
    yield run
    for name in ("readers", "run", "fuzz_inputs", "fuzz_runs", "fuzz_saved", "fuzz_data", "quick"):
        sys.modules.pop(name, None)


def test_the_standing_command(command, tmp_path, monkeypatch):
    import signal

    monkeypatch.setattr(sys, "argv", ["run.py", "--inputs", "30", "--out", str(tmp_path / "fuzz.json"), "overrides"])
    before = signal.getsignal(signal.SIGALRM)
    try:
        command.main()
    finally:
        signal.signal(signal.SIGALRM, before)
    found = json.loads((tmp_path / "fuzz.json").read_text())["readers"]["overrides"]
    assert found["inputs"] == found["read"] + found["refused"] == 30
    assert found["commit"]


def test_what_the_command_finds_is_shown(command, monkeypatch, capsys):
    import readers as quick_readers

    def read(value, folder):
        raise IndexError("a finding")

    text = quick_readers.data.text_inputs
    monkeypatch.setitem(quick_readers.READERS, "text", quick_readers.Reader(text, read, "text"))
    with pytest.raises(IndexError, match="a finding"):
        command.fuzz("text", 5, 0)
    assert "input 0 of text, seed 0: (" in capsys.readouterr().err


def test_the_record_as_a_table(tmp_path):
    from docs.build import fuzz

    assert fuzz.table(tmp_path) == fuzz.NO_RECORD
    counts = {"inputs": 100_000, "read": 1, "refused": 99_999, "extra_memory_mb": 20}
    found = {"what": "x", **counts, "versions": {"a": "1"}}
    (tmp_path / "fuzz.json").write_text(json.dumps({"readers": {"recipe": found}}))
    assert "| recipe: x | 100,000 | 1 | 99,999 | 20 |" in fuzz.table(tmp_path)
