"""The choices that the library does not offer, as benchmarks/differences.py makes them."""

import importlib.util
import json
import math
import random
import sys
from pathlib import Path

import pytest
import torch

import bayesrnn as br
from bayesrnn import draws, kernels
from bayesrnn.lab import recipes
from bayesrnn.lab.tasks.language.task import Language

FILE = Path(__file__).resolve().parents[2] / "benchmarks/differences.py"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("differences", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder, choose = tmp_path_factory.mktemp("text"), random.Random(0)
    for split, lines in (("train", 60), ("valid", 90), ("test", 20)):
        rows = [" ".join(f"w{choose.randrange(30)}" for _ in range(9)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join(rows) + "\n")
    return str(folder)


def made(script, name, text):
    """The task of a variant at its smallest, with its model, and one window of it."""
    variant = script.VARIANTS[name]
    recipe, _ = script.recipe_of(variant, "tiny", 2)
    task = variant.task(recipe, text, CPU)
    torch.manual_seed(1)
    task.attach(task.build(recipe, task.files()).train())
    return task, task.batch(torch.tensor(0))


def gradients(task, batch, seed=3):
    """The gradients of the task's objective, and its value, with the noise of a seed."""
    torch.manual_seed(seed)
    loss, terms, _ = task.objective(batch, task.state())
    params = [p for p in task.model.parameters() if p.requires_grad]
    return loss, terms, torch.autograd.grad(loss, params, allow_unused=True)


def norm(tensors):
    return torch.stack([t.norm() for t in tensors]).norm()


@pytest.mark.parametrize(("name", "factor"), [("brnn-kl-every-step", 10), ("brnn-kl-per-word", 0.1)])
def test_the_kl_counts_so_often(script, text, name, factor):
    right, batch = made(script, "brnn", text)
    wrong, _ = made(script, name, text)
    loss, terms, _ = gradients(right, batch)
    other, same, _ = gradients(wrong, batch)
    assert same.kl == terms.kl
    share = terms.kl / right.sequences
    assert share > 0.01 * loss
    torch.testing.assert_close(other - loss, (factor - 1) * share, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", ["reference", None])
def test_only_the_gradient_of_the_data_is_clipped(script, text, path, monkeypatch):
    plain, batch = made(script, "brnn", text)
    changed, _ = made(script, "brnn-clip-data", text)
    assert changed.recipe.train.clip is None
    monkeypatch.setattr(script.ClippedData, "clip", 0.01)
    with kernels.force(path) if path else torch.enable_grad():
        torch.manual_seed(3)
        loss, terms, _ = plain.objective(batch, plain.state())
        params = list(plain.model.parameters())
        data = torch.autograd.grad(terms.nll / batch.shape[1], params, retain_graph=True, allow_unused=True)
        whole = torch.autograd.grad(loss, params, allow_unused=True)
        value, _, found = gradients(changed, batch)
    length = norm([d for d in data if d is not None])
    assert length > 0.02
    torch.testing.assert_close(value, loss)
    for got, all_of_it, part in zip(found, whole, data, strict=True):
        part = torch.zeros_like(all_of_it) if part is None else part
        torch.testing.assert_close(got, all_of_it - part + part * 0.01 / (length + 1e-6), rtol=1e-4, atol=1e-6)


def test_one_clip_holds_rates_and_weights_together(script, text):
    plain, batch = made(script, "sharpened-eta-large", text)
    changed, _ = made(script, "sharpened-eta-large-one-clip", text)
    object.__setattr__(changed.recipe.train, "clip", 0.05)
    loss, _, whole = gradients(plain, batch)
    value, _, found = gradients(changed, batch)
    etas = {id(p) for p in plain.model.eta.parameters()}
    units = [1 / batch.shape[1] if id(p) in etas else 1.0 for p in plain.model.parameters() if p.requires_grad]
    long = norm([u * g for u, g in zip(units, whole, strict=True)])
    assert long > 0.1
    torch.testing.assert_close(value, loss)
    torch.testing.assert_close(
        norm([u * g for u, g in zip(units, found, strict=True)]), torch.tensor(0.05), rtol=1e-3, atol=0
    )
    for got, before in zip(found, whole, strict=True):
        torch.testing.assert_close(got, before * (0.05 / long), rtol=1e-3, atol=1e-7)


def test_one_bias_for_each_gate(script, text):
    task, batch = made(script, "brnn-one-bias", text)
    two, _ = made(script, "brnn", text)
    random = {name for name, _, _ in two.model.named_posteriors()}
    assert random - {name for name, _, _ in task.model.named_posteriors()} == {"rnn.bias_hh_l0", "rnn.bias_hh_l1"}
    still = {n: p for n, p in task.model.named_parameters() if "bias_hh" in n}
    assert len(still) == 2
    assert not any(p.requires_grad or p.abs().sum() for p in still.values())
    step = script.engine.Step(task, task.recipe.train)
    step()
    assert not any(p.abs().sum() for p in still.values())
    assert task.objective(batch, task.state())[0].requires_grad


def test_tokens_are_dropped_one_by_one(script, text):
    task, _ = made(script, "variational-per-token", text)
    tokens = torch.zeros(500, 4, dtype=torch.long)
    same = Language.build(task.recipe, task.files()).train().embed(tokens)
    kept = task.model.embed(tokens).abs().sum(-1) > 0
    assert all(len(set(row.tolist())) == 1 for row in (same.abs().sum(-1) > 0).t())
    # 2,000 independent fates of keeping 0.8: five standard deviations
    assert abs(kept.double().mean() - 0.8) < 5 * math.sqrt(0.8 * 0.2 / 2000)
    # neighbours agree as often as independent ones do
    assert abs((kept[1:] == kept[:-1]).double().mean() - 0.68) < 5 * math.sqrt(0.68 * 0.32 / 1996 * 2)


def test_steps_have_masks_of_their_own(script, text):
    """Without masks the step-by-step LSTM is the library's; with them no step has the mask of the one before."""
    task, _ = made(script, "variational-per-step", text)
    steps, x = task.model.rnn, torch.randn(6, 4, 8)
    state = tuple(torch.randn(2, 4, 8) for _ in range(2))
    with torch.no_grad():
        steps.rnn.rates = type(steps.rnn.rates)()
        torch.testing.assert_close(steps(x, state), steps.rnn(x, state))
    assert isinstance(task.model.drop, torch.nn.Dropout)
    assert task.model.drop.p == task.recipe.model.output_dropout
    rnn = br.LSTM(8, 8, input_dropout=0.35, recurrent_dropout=0.2)
    with torch.no_grad():
        for weight in rnn.parameters():
            weight.zero_()
        rnn.weight_ih_l0[16] = 0.05  # what cell 0 takes in at a step: tanh of what is left of the inputs, and ...
        rnn.weight_hh_l0[16, 1:] = 0.02  # ... of the other cells' outputs, which stay as they are:
        rnn.bias_ih_l0[1:8], rnn.bias_ih_l0[9:16] = -30.0, 30.0
        start = torch.full((1, 1, 8), 0.5 * math.tanh(1.0)), torch.ones(1, 1, 8)
        cell = torch.atanh(2 * script.StepByStep(rnn)(torch.ones(400, 1, 8), start)[0][:, 0, 0].double())
    before = torch.cat([torch.ones(1).double(), cell[:-1]])
    taken = torch.atanh((cell - before / 2) * 2)
    inputs, others = 0.05 / 0.65, 0.02 * 0.5 * math.tanh(1.0) / 0.8
    # Kept inputs are Binomial(8, 0.65), kept cells Binomial(7, 0.8), anew at every step: five standard deviations.
    variance = inputs**2 * 8 * 0.65 * 0.35 + others**2 * 7 * 0.8 * 0.2
    assert abs(taken.mean() - (inputs * 5.2 + others * 5.6)) < 5 * math.sqrt(variance / 400)
    correlation = ((taken[1:] - taken.mean()) * (taken[:-1] - taken.mean())).mean() / taken.var()
    assert abs(correlation) < 5 / math.sqrt(400)
    assert abs(taken.var() / variance - 1) < 5 * math.sqrt(2 / 400)
    rest = (taken / inputs).round() * inputs - taken  # what the kept cells add, 0 to 7 of it
    assert len({round(float(r / others)) for r in rest}) >= 4


def test_new_masks_in_every_window(script, text):
    """With one window for the whole text, held masks and new ones are the same thing; with more they are not."""
    task, _ = made(script, "variational", text)
    stream, model = task.streams.test, task.model
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(10)
    options = {"samples": 3, "seed": 5}
    whole = script.new_masks_perplexity(model, stream, window=len(stream) - 1, **options)
    assert script.new_masks_perplexity(model, stream, window=len(stream) - 1, **options) == whole
    assert not model.training
    torch.manual_seed(5)
    with draws.bind(model.train(), draws.HeldNoise()), torch.no_grad():
        logits = model(stream[:-1].expand(-1, 3), None)[0]
    logs = logits.log_softmax(-1).gather(-1, stream[1:].expand(-1, 3).unsqueeze(-1)).squeeze(-1).double()
    assert whole == pytest.approx(math.exp(-float((logs.logsumexp(1) - math.log(3)).mean())), rel=1e-4)
    assert script.new_masks_perplexity(model, stream, window=10, **options) != pytest.approx(whole, rel=1e-3)


def test_schedules_are_squeezed(script):
    recipe, overrides = script.recipe_of(script.VARIANTS["brnn"], "small", 35)
    assert (recipe.train.epochs, recipe.train.decay_after, recipe.model.hidden) == (35, 10, 200)
    assert recipe.train.decay == pytest.approx(0.9**2)
    assert "train.epochs=35" in overrides
    after = [script.recipe_of(script.VARIANTS[f"variational-after-{n}"], "small", 55)[0] for n in (10, 14)]
    assert [(r.train.decay_after, round(r.train.decay, 4)) for r in after] == [(10, 0.8696), (14, 0.8696)]


def test_only_the_named_thing_differs(script):
    """Variants of a recipe that are not tasks of their own differ in the settings they name, and in no other."""
    for name, variant in script.VARIANTS.items():
        base = recipes.flatten(script.recipe_of(script.Variant(variant.recipe), "small", 20)[0])
        own = recipes.flatten(script.recipe_of(variant, "small", 20)[0])
        changed = {key for key in base if base[key] != own[key]}
        named = {change.partition("=")[0] for change in variant.changes}
        schedule = {"train.decay", "train.decay_after"} if variant.schedule else set()
        assert changed <= named | schedule, name
        assert changed >= named, name


def test_a_run_and_its_record(script, text, tmp_path, capsys):
    words = ["--data", text, "--size", "tiny", "--epochs", "1", "--samples", "2", "--device", "cpu"]
    words += ["--out", str(tmp_path), "--only", "variational", "sharpened", "lua-count"]
    script.main(words)
    record = json.loads((tmp_path / "variational-tiny-1.json").read_text())
    assert record["run"] == "variational"
    assert (record["epochs"], record["size"], record["seed"]) == (1, "tiny", 1)
    assert len(record["curves"]["valid_perplexity"]) == 1
    for split in ("valid", "test"):
        for more in ("", "_mc", "_mc_words", "_mc_window"):
            assert 5 < record["metrics"][f"{split}_perplexity{more}"] < 60
    assert {"commit", "device", "versions", "command", "settings"} <= record.keys()
    assert "test_perplexity_bound" in json.loads((tmp_path / "sharpened-tiny-1.json").read_text())["metrics"]
    lua = json.loads((tmp_path / "lua-count-tiny-1.json").read_text())["metrics"]
    assert lua["words"] == 900
    assert lua["divided_by"] == pytest.approx(44 / 35)
    assert lua["exponent"] == pytest.approx(35 / 44)
    before = (tmp_path / "variational-tiny-1.json").read_bytes()
    capsys.readouterr()
    script.main(words)
    assert capsys.readouterr().out.count("is there already") == 3
    assert (tmp_path / "variational-tiny-1.json").read_bytes() == before


def test_a_run_that_diverges_is_a_result(script, text, tmp_path, monkeypatch):
    variants = {"brnn": script.Variant("brnn-medium", ("train.lr=1e30", "train.clip=null"))}
    monkeypatch.setattr(script, "VARIANTS", variants)
    words = ["--data", text, "--size", "tiny", "--epochs", "1", "--device", "cpu", "--out", str(tmp_path), "--only"]
    script.main([*words, "brnn"])
    record = json.loads((tmp_path / "brnn-tiny-1.json").read_text())
    assert "in epoch 1" in record["metrics"]["diverged"]
    assert record["curves"] == {}


def test_bad_input(script, text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script.main([])
    assert "--data is missing" in capsys.readouterr().err
    (tmp_path / "valid.txt").write_text("a b c d e f g h i j k l m n o p\n" * 4)
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_bytes((Path(text) / "train.txt").read_bytes())
    with pytest.raises(script.UserError, match="fewer than a window of each of 20 rows"):
        script.lua_count(script.arguments(["--data", str(tmp_path)]))
