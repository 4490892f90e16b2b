"""Models out of the library: plain torch modules, exported programs, ONNX files, compiled ones."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bayesrnn as br
from bayesrnn import export
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.lab.tasks.language.task import LanguageModel
from bayesrnn.nn import Dropout
from bayesrnn.posteriors import DropConnect

T, B, V, H = 6, 3, 11, 5
TIED = Model(hidden=H, layers=2, tied=True, word_dropout=0.2, input_dropout=0.3, output_dropout=0.3)


class Tagger(nn.Module):
    """Tokens (T, B) and a state to logits and the next state."""

    def __init__(self, cell=br.LSTM, noisy=True, tied=False, **kwargs):
        super().__init__()
        rates = {"input_dropout": 0.3, "recurrent_dropout": 0.2, "weight_dropout": 0.1} if noisy else {}
        width = H * (2 if kwargs.get("bidirectional") else 1)
        first = kwargs.get("batch_first", False)
        self.embed = br.Embedding(V, H, word_dropout=0.2 if noisy else 0.0, batch_first=first)
        self.rnn = cell(H, H, num_layers=2, dropout=0.1, **rates, **kwargs)
        self.drop = br.SequenceDropout(0.4, batch_first=first)
        self.head = nn.Linear(kwargs.get("proj_size") or width, V)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens, state=None):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.head(self.drop(hidden)), state


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def tokens(steps=T, rows=B):
    return torch.randint(V, (steps, rows))


def state(model_cell, rows, directions=1):
    h = torch.randn(2 * directions, rows, H)
    return (h, torch.randn(2 * directions, rows, H)) if model_cell is br.LSTM else h


def leaves(result):
    return torch.utils._pytree.tree_leaves(result)


def assert_same(a, b, **tolerance):
    for one, other in zip(leaves(a), leaves(b), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


WRAPPINGS = {
    "variational": lambda m: m,
    "bayes_by_backprop": lambda m: br.BayesByBackprop(m, prior=br.ScaleMixture(0.25, 0.5, 0.01)),
    "sharpened": lambda m: br.PosteriorSharpening(br.BayesByBackprop(m)),
    "inside": lambda m: nn.Sequential(br.BayesByBackprop(m, exclude="head.*")),
    "language": lambda m: br.BayesByBackprop(LanguageModel(V, TIED)),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("cell", [br.LSTM, br.GRU, br.RNN])
def test_plain_modules_give_the_mean(wrapping, cell):
    model = WRAPPINGS[wrapping](Tagger(cell, tied=True)).eval()
    x = tokens()
    plain = export.to_torch(model)
    assert_same(plain(x), model(x), rtol=0, atol=0)
    assert not plain.training
    for part in plain.modules():
        assert type(part).__module__.split(".")[0] in ("torch", __name__.split(".")[0], "bayesrnn")
        if type(part).__module__.startswith("bayesrnn"):
            assert type(part) is LanguageModel


def test_noise_on_units_and_weights_of_feedforward_models():
    net = nn.Sequential(nn.Linear(4, 5), Dropout(0.5, noise="gaussian"), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 2))
    model, x = DropConnect(net, p=0.5), torch.randn(3, 4)
    plain = export.to_torch(model)
    assert [type(m).__name__ for m in plain] == ["Linear", "Identity", "ReLU", "Dropout", "Linear"]
    assert_same(plain(x), model.eval()(x), rtol=0, atol=0)


def test_train_mode_and_open_blocks_change_nothing():
    model = br.BayesByBackprop(Tagger())
    x, expected = tokens(), None
    with br.mean(model):
        expected = model(x)
        inside_mean = export.to_torch(model)
    with br.draw(model, seed=1):
        inside_draw = export.to_torch(model)
        assert_same(inside_draw(x), expected)
    for plain in (export.to_torch(model), inside_mean, inside_draw):
        assert_same(plain(x), expected)
        pickle.dumps(plain)
    assert model.training


def test_the_model_is_left_as_it_was():
    model = Tagger()
    export.to_torch(model)
    assert type(model.rnn) is br.LSTM
    assert model.rnn.rates.recurrent_dropout == 0.2
    assert type(model.drop) is br.SequenceDropout


def test_state_dict_ties_and_names_stay():
    model = Tagger(tied=True)
    plain = export.to_torch(model)
    assert plain.head.weight is plain.embed.weight
    assert plain.head.weight is not model.embed.weight
    assert list(plain.state_dict()) == list(model.state_dict())
    assert [n for n, _ in plain.named_modules()] == [n for n, _ in model.named_modules()]
    fresh = nn.LSTM(H, H, 2)
    fresh.load_state_dict(plain.rnn.state_dict())


def test_the_plain_module_trains():
    """Without noise but torch's own, with gradients to the tied weights, as any torch module."""
    plain = export.to_torch(Tagger(tied=True)).train()
    x = tokens()
    plain.rnn.dropout = 0.0
    plain(x)[0].square().sum().backward()
    assert all(p.grad is not None for p in plain.parameters())
    assert torch.equal(plain(x)[0], plain(x)[0])


def test_pruned_weights_are_zeros():
    q = br.BayesByBackprop(Tagger(), init_sigma=(0.01, 2.0))
    report = br.prune(q, 0.6)
    plain = export.to_torch(q)
    zeros = sum(int((p == 0).sum()) for p in plain.parameters())
    assert zeros == report.removed == round(0.6 * report.total)
    x = tokens()
    assert_same(plain(x), q.eval()(x), rtol=0, atol=0)


class OwnLSTM(br.LSTM):
    pass


def test_parts_without_a_plain_form_are_refused():
    model = Tagger()
    model.rnn = OwnLSTM(H, H, 2)
    with pytest.raises(TypeError, match=r"rnn \(OwnLSTM\) has no plain form in torch.nn: give it one of your own"):
        export.to_torch(model)
    model = Tagger()
    nn.utils.parametrizations.weight_norm(model.rnn, "weight_hh_l0")
    with pytest.raises(TypeError, match="remove its parametrisations first"):
        export.to_torch(model)
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        export.to_torch(3)


@pytest.mark.slow
def test_the_plain_module_runs_where_there_is_no_bayesrnn(tmp_path):
    """Pickled here, run in a process in which importing bayesrnn is an error."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        from torch import nn
        class Mine(nn.Module):
            def __init__(self, embed, rnn, drop, head):
                super().__init__()
                self.embed, self.rnn, self.drop, self.head = embed, rnn, drop, head
            def forward(self, x):
                return self.head(self.drop(self.rnn(self.embed(x))[0]))
        """)
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from mine import Mine

        parts = Tagger()
        model = br.PosteriorSharpening(br.BayesByBackprop(Mine(parts.embed, parts.rnn, parts.drop, parts.head))).eval()
        x = tokens()
        with br.draw(model):
            plain = export.to_torch(model)
        (tmp_path / "model.pickle").write_bytes(pickle.dumps((plain, x, model(x).detach())))
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("mine", None)
    code = """
    import pickle, sys
    sys.modules["bayesrnn"] = None
    sys.path.insert(0, ".")
    model, x, expected = pickle.load(open("model.pickle", "rb"))
    print(bool((model(x) == expected).all()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "True", done.stderr


KINDS = [
    (br.LSTM, {}),
    (br.LSTM, {"bidirectional": True, "bias": False}),
    (br.LSTM, {"batch_first": True}),
    (br.GRU, {}),
    (br.GRU, {"bidirectional": True}),
    (br.RNN, {"nonlinearity": "relu"}),
]


def cases(kind):
    """An example and two other sizes, one of a single step and sequence: (tokens, state)."""
    cell, options = kind
    directions = 2 if options.get("bidirectional") else 1
    for steps, rows in ((T, B), (13, 4), (1, 1)):
        x = tokens(steps, rows)
        yield (x.t() if options.get("batch_first") else x), state(cell, rows, directions)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k[0].__name__ + "-".join(["", *k[1]]))
def test_exported_programs_take_any_length_and_batch(kind, tmp_path):
    cell, options = kind
    q = br.BayesByBackprop(Tagger(cell, **options)).eval()
    example, *others = cases(kind)
    program = export.to_exported(q, example)
    assert sum("aten.lstm" in str(n.target) or "aten.gru" in str(n.target) or "aten.rnn" in str(n.target)
               for n in program.graph.nodes) == 1  # fmt: skip
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for case in (example, *others):
        assert_same(loaded(*case), q(*case))


def test_exporting_leaves_torch_as_it_was():
    """Decompositions of torch's recurrent operators are back in place: unrolled again, and right."""
    export.to_exported(Tagger(), (tokens(),))
    plain = export.to_torch(Tagger())
    x = tokens()
    compiled = torch.compile(plain, backend="aot_eager")
    with torch.no_grad():
        assert_same(compiled(x), plain(x))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_exported_without_a_state_and_with_projection():
    model = Tagger(proj_size=3).eval()
    program = export.to_exported(model, tokens())
    for shape in ((T, B), (9, 2)):
        x = tokens(*shape)
        assert_same(program.module()(x), model(x))


IN_ONE = [KINDS[1], KINDS[2], KINDS[4], KINDS[5]]


class Several(nn.Module):
    """All kinds of layers in one model: an export costs seconds, however little is in it."""

    def __init__(self):
        super().__init__()
        self.models = nn.ModuleList(Tagger(cell, **options) for cell, options in IN_ONE)

    def forward(self, inputs):
        return [model(*each) for model, each in zip(self.models, inputs, strict=True)]


@pytest.mark.slow
def test_onnx_gives_the_same_numbers(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    q = br.BayesByBackprop(Several()).eval()
    example, *others = ([*each] for each in zip(*(cases(kind) for kind in IN_ONE), strict=True))
    names = [f"in{k}" for k in range(len(leaves(example)))]
    outputs = [f"out{k}" for k in range(len(leaves(q(example))))]
    path = tmp_path / "model.onnx"
    assert export.to_onnx(q, path, (example,), input_names=names, output_names=outputs)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert [kinds.count(k) for k in ("LSTM", "GRU", "RNN")] == [4, 2, 2]  # one for each layer
    session = runtime.InferenceSession(str(path))
    assert [i.name for i in session.get_inputs()] == names
    assert [o.name for o in session.get_outputs()] == outputs
    for case in (example, *others):
        got = session.run(None, {n: x.numpy() for n, x in zip(names, leaves(case), strict=True)})
        assert_same([torch.from_numpy(g) for g in got], leaves(q(case)), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_onnx_of_a_lone_layer_without_a_state_in_double(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    model = br.GRU(4, 5, batch_first=True, input_dropout=0.2).eval().double()
    export.to_onnx(model, tmp_path / "m.onnx", torch.randn(2, 7, 4).double())
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"))
    x = torch.randn(5, 2, 4)
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_same([torch.from_numpy(g) for g in got], leaves(model.float()(x)), atol=1e-5, rtol=1e-4)


def test_what_cannot_be_exported_is_said(tmp_path):
    x = torch.randn(T, B, H)
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]))
    lstm = br.LSTM(H, H)
    for call in (lambda a: export.to_exported(lstm, a), lambda a: export.to_onnx(lstm, tmp_path / "a.onnx", a)):
        for args in (packed, (packed,)):
            with pytest.raises(TypeError, match=r"a PackedSequence cannot be exported.*padded input"):
                call(args)
        with pytest.raises(ValueError, match=r"axis 1 of an example input has size 1.*at least 2 steps"):
            call((x[:, :1],))
    with pytest.raises(TypeError, match="proj_size, which ONNX's LSTM operator lacks: use to_exported"):
        export.to_onnx(br.LSTM(H, H, proj_size=2), tmp_path / "a.onnx", (x,))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_wrong_file_is_not_kept(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(export._GATES, "LSTM", (0, 1, 2, 3))
    with pytest.raises(RuntimeError, match="does not give the model's numbers"):
        export.to_onnx(br.LSTM(H, H), tmp_path / "a.onnx", (torch.randn(T, B, H),))
    assert not list(tmp_path.iterdir())
