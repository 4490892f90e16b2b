"""`br.save` and `br.load`: the same predictions to the bit, and folders of strangers."""

import hashlib
import json
import os
import pickle
import sys

import pytest
import torch
from safetensors.torch import save as encode
from torch import nn
from torch.optim.swa_utils import AveragedModel

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.saving import CONFIG, WEIGHTS


class Tagger(nn.Module):
    def __init__(self, make=br.LSTM, tied=True):
        super().__init__()
        self.embed = br.Embedding(11, 6, word_dropout=0.1)
        self.rnn = make(6, 6, recurrent_dropout=0.2)
        self.out = nn.Linear(6, 11)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.long))
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


MAKERS = {
    "variational": Tagger,
    "gru": lambda: Tagger(br.GRU, tied=False),
    "bbb": lambda: br.BayesByBackprop(Tagger(), prior=br.ScaleMixture(0.25, 1.0, 0.01)),
    "sharpened": lambda: br.PosteriorSharpening(br.BayesByBackprop(Tagger()), 0.02),
    "dropconnect": lambda: br.DropConnect(Tagger(tied=False), 0.3),
    "double": lambda: Tagger().double(),
    "half": lambda: nn.Sequential(nn.Linear(3, 2)).bfloat16(),
}
TOKENS = torch.arange(10).reshape(5, 2)


def made(name, seed):
    torch.manual_seed(seed)
    return MAKERS[name]()


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "half"])
def test_predictions_are_the_same_to_the_bit(name, tmp_path):
    model, other = made(name, 0), made(name, 1)
    br.save(model, tmp_path / "m")
    state = torch.get_rng_state()
    same = br.load(tmp_path / "m", other)
    assert same is other
    assert not same.training
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, same.state_dict()[key])
    if name != "sharpened":
        one, two = (br.predict(m, TOKENS, samples=3, seed=1).samples for m in (model, same))
        assert torch.equal(one, two)
        assert not torch.equal(one[0], one[1])


def test_tied_weights_are_written_once_and_stay_tied(tmp_path):
    folder = br.save(made("variational", 0), tmp_path / "m")
    listed = json.loads((folder / CONFIG).read_text())["tensors"]
    assert "embed.weight" in listed
    assert "out.weight" not in listed
    same = br.load(folder, made("variational", 1))
    assert same.out.weight is same.embed.weight


def test_wrapped_models_are_saved_as_what_they_wrap(tmp_path):
    model = made("gru", 0)
    folder = br.save(AveragedModel(model), tmp_path / "m")
    assert torch.equal(br.load(folder, made("gru", 1)).out.weight, model.out.weight)


def test_saving_again_replaces_only_what_this_program_saved(tmp_path):
    folder = br.save(made("half", 0), tmp_path / "m")
    newer = made("half", 1)
    br.save(newer, folder)
    assert torch.equal(br.load(folder, made("half", 2))[0].weight, newer[0].weight)
    assert sorted(os.listdir(folder)) == [CONFIG, WEIGHTS]
    for other in ('{"model_type": "bert"}', "[]", "{"):
        (folder / CONFIG).write_text(other)
        with pytest.raises(UserError, match="of another program; choose another folder"):
            br.save(newer, folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        br.save(newer, tmp_path / "file")


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(UserError, match=r"weight is of torch.complex64, which br.save cannot write"):
        br.save(nn.Linear(2, 2, dtype=torch.complex64), tmp_path)

    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(UserError, match="_extra_state is not a tensor"):
        br.save(Extra(2, 2), tmp_path)
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module"):
        br.save({}, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: nn.Linear(3, 3), "'weight' is float32 (2, 3) there and float32 (3, 3) in the module"),
        (lambda: nn.Linear(3, 2).double(), "'weight' is float32 (2, 3) there and float64 (2, 3) in the module"),
        (lambda: nn.Linear(3, 2, bias=False), "'bias' is float32 (2,) there and missing in the module"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "'0.weight' is missing there and float32 (2, 3) in the module"),
    ],
)
def test_another_module_is_refused_and_keeps_its_weights(module, said, tmp_path):
    folder, other = br.save(nn.Linear(3, 2), tmp_path / "m"), module()
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(UserError) as error:
        br.load(folder, other)
    assert said in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    return br.save(nn.Linear(3, 2), tmp_path / "m")


def refused(folder, said):
    with pytest.raises(UserError) as error:
        br.load(folder, nn.Linear(3, 2))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 1000


def change(folder, **values):
    about = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**about, **values}))


def replace_weights(folder, data):
    """Replace the weights, and the digest, as a stranger can."""
    (folder / WEIGHTS).write_bytes(data)
    about = json.loads((folder / CONFIG).read_text())
    change(folder, files={**about["files"], WEIGHTS: hashlib.sha256(data).hexdigest()})


def header(entries, body=b"", length=None):
    text = json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


F32 = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04.",
        (2**63).to_bytes(8, "little"),
        header({"weight": F32}, length=10**15),
        header({"weight": F32}),
        header({"weight": {**F32, "data_offsets": [0, 10**12]}}, b"x" * 24),
        header({"weight": {**F32, "shape": [2**40, 2**40]}}, b"x" * 24),
        header({"weight": {**F32, "shape": [-1, 3]}}, b"x" * 24),
        header({"weight": F32, "bias": F32}, b"x" * 24),  # they overlap
        header({"weight": {**F32, "dtype": "PICKLE"}}, b"x" * 24),
        header([1, 2], b""),
    ],
)
def test_weights_that_lie_are_refused(folder, data):
    replace_weights(folder, data)
    refused(folder, f"{WEIGHTS} is damaged")


def test_weights_other_than_those_listed_are_refused(folder):
    for tensors in ({"weight": torch.zeros(2, 3)}, {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}):
        replace_weights(folder, encode(tensors))
        refused(folder, "does not have the tensors that config.json lists")


def test_truncated_and_changed_weights_are_refused(folder):
    data = (folder / WEIGHTS).read_bytes()
    for changed in (data[:-1], data[:20], data + b"\0", data[:-1] + bytes([data[-1] ^ 1])):
        (folder / WEIGHTS).write_bytes(changed)
        refused(folder, "is not the file that was saved")
    (folder / WEIGHTS).unlink()
    refused(folder, "cannot be read")


def test_a_file_far_larger_than_the_listed_tensors_is_not_read(folder):
    with open(folder / WEIGHTS, "r+b") as file:
        file.truncate(1 << 40)  # sparse: takes no disk
    refused(folder, "is larger than")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "bert"}, "was not written by bayesrnn"),
        ({"format": 99}, "saved by a newer bayesrnn (format 99, this one reads 1)"),
        ({"format": "1"}, "its format is not a known number"),
        ({"format": True}, "its format is not a known number"),
        ({"builder": None}, "builder or arguments are missing"),
        ({"arguments": []}, "builder or arguments are missing"),
        ({"files": {}}, "it does not list model.safetensors"),
        ({"files": {WEIGHTS: "", "../../etc/passwd": ""}}, "'../../etc/passwd' is not a plain name of a file"),
        ({"files": {WEIGHTS: "", "/etc/passwd": ""}}, "is not a plain name"),
        ({"files": {WEIGHTS: "", "a\x00b": ""}}, "is not a plain name"),
        ({"files": {WEIGHTS: "", "..": ""}}, "is not a plain name"),
        ({"files": {WEIGHTS: "", CONFIG: ""}}, "is not a plain name"),
        ({"files": {WEIGHTS: 3}}, "config.json has another digest"),
        ({"tensors": []}, "it does not list the tensors"),
        ({"tensors": {"weight": {"dtype": "object", "shape": []}}}, "'weight' has no known dtype and shape"),
        ({"tensors": {"weight": {"dtype": ["float32"], "shape": []}}}, "'weight' has no known dtype and shape"),
        ({"tensors": {"weight": {"dtype": "float32", "shape": [-1]}}}, "'weight' has no known dtype and shape"),
        ({"tensors": {"weight": {"dtype": "float32", "shape": [2**47, 2**47]}}}, "has no known dtype and shape"),
        ({"tensors": {"weight": {"dtype": "float32", "shape": [True]}}}, "has no known dtype and shape"),
        ({"tensors": {"weight": {"dtype": "float32", "shape": [2**40]}}}, "is of another model"),
    ],
)
def test_configurations_that_lie_are_refused(folder, values, said):
    change(folder, **values)
    refused(folder, said)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "[" * 200, '{"a": 1, "a": 2}', "\ud800".encode("utf-8", "surrogatepass")]
)
def test_what_is_not_a_configuration_is_refused(folder, text):
    (folder / CONFIG).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(folder, CONFIG)


def test_places_that_are_no_saved_folder(tmp_path):
    refused(tmp_path / "none", "There is no folder")
    refused(tmp_path, "has no config.json")


def test_links_are_followed_to_regular_files_alone_and_their_content_is_not_shown(folder, tmp_path):
    """The cache of the Hugging Face Hub is made of links."""
    blob = tmp_path / "blob"
    (folder / WEIGHTS).rename(blob)
    (folder / WEIGHTS).symlink_to(blob)
    br.load(folder, nn.Linear(3, 2))
    os.mkfifo(tmp_path / "pipe")
    for target in ("/dev/zero", tmp_path / "pipe", tmp_path, tmp_path / "none", folder / WEIGHTS):
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).symlink_to(target)
        refused(folder, "cannot be read")
    secret = tmp_path / "secret"
    secret.write_text("password 1234")
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to(secret)
    with pytest.raises(UserError) as error:
        br.load(folder, nn.Linear(3, 2))
    assert "1234" not in str(error.value)


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_nothing_in_the_folder_is_executed(folder, tmp_path, monkeypatch):
    """Code and pickles under the names that other libraries look for, also where the weights should be."""
    marker = tmp_path / "executed"
    code, pickled = f"import os; os.mkdir({str(marker)!r})", pickle.dumps(Evil(marker))
    for name in ("pytorch_model.bin", "model.pt", "optimizer.pkl"):
        (folder / name).write_bytes(pickled)
    for name in ("modeling.py", "__init__.py", "sitecustomize.py", "safetensors.py", "conftest.py"):
        (folder / name).write_text(code)
    change(folder, auto_map={"AutoModel": "modeling.Model"}, architectures=["os.system"], _target_="os.system")
    monkeypatch.chdir(folder)
    br.load(folder, nn.Linear(3, 2))
    br.load(".", nn.Linear(3, 2))
    replace_weights(folder, pickled)
    refused(folder, f"{WEIGHTS} is damaged")
    for builder in ("modeling", "modeling:Model", "os:mkdir", "../lab", "lab:builder"):
        change(folder, builder=builder, arguments={"path": str(marker)})
        with pytest.raises(UserError, match="to build its module; known are lab"):
            br.load(folder)
    assert not marker.exists()
    pickle.loads(pickled)  # it would have been noticed
    assert marker.exists()


def test_a_folder_says_what_it_needs(folder, monkeypatch):
    with pytest.raises(
        UserError, match=r"weights of a module of your own: build it, and call br.load\(folder, model\)"
    ):
        br.load(folder)
    change(folder, builder="os:system", arguments={"command": "true"})
    with pytest.raises(UserError, match="needs 'os:system' to build its module; known are lab"):
        br.load(folder)
    change(folder, builder="lab")
    monkeypatch.setitem(sys.modules, "bayesrnn.lab.hub", None)
    with pytest.raises(UserError, match=r"pip install 'bayesrnn\[lab\]'"):
        br.load(folder)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UserError, match="pip install safetensors"):
        br.load(folder, nn.Linear(3, 2))
    with pytest.raises(UserError, match="pip install safetensors"):
        br.save(nn.Linear(3, 2), folder)
